"""The dashboard's cookies: of the session, of a sign-in that is under way, and of what the next page is to say."""

from datetime import timedelta
from typing import Final

import msgspec
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from litestar.datastructures import Cookie

from tenantry.api.guards import AnyRequest, Connection
from tenantry.common.clock import Clock, to_micros
from tenantry.domain.sessions import ABSOLUTE, SessionSecret
from tenantry.integrations.oidc.sign_in import PendingSignIn

SIGN_IN_GOOD_FOR: Final = timedelta(minutes=10)
MOST_PENDING: Final = 5
"""Sign-ins that may be under way in one browser; the oldest make room for a new one."""
_MOST_BYTES_KEPT: Final = 4096  # so that with one more, and the session, a header of 8 KiB has room for all
NOTICE_GOOD_FOR: Final = timedelta(minutes=1)
_HEADER: Final = {"alg": "dir", "enc": "A256GCM"}
_PART_OF_STATE: Final = 12


class Pending(msgspec.Struct, frozen=True):
    """A sign-in under way in one tab of a browser, and where it is to lead."""

    begun: PendingSignIn
    return_to: str
    until: int
    """In microseconds since the Unix epoch."""


class Cookies:
    """Reads and makes the cookies. Over https their names begin with ``__Host-``: no other host can set them."""

    def __init__(self, secret: SessionSecret, clock: Clock, *, secure: bool) -> None:
        self._key = OctKey.import_key(secret.key("sign-in"))
        self._clock = clock
        self._secure = secure
        prefix = "__Host-" if secure else ""
        self._session = f"{prefix}tenantry_session"
        self._sign_in = f"{prefix}tenantry_sign_in_"
        self._notice = f"{prefix}tenantry_notice"

    def session(self, request: Connection) -> str | None:
        """What the cookie of the session holds."""
        return request.cookies.get(self._session)

    def with_session(self, token: str) -> Cookie:
        """The cookie of a session that was just begun."""
        return self._cookie(self._session, token, ABSOLUTE)

    def without_session(self) -> Cookie:
        """What takes the session's cookie away."""
        return self._cookie(self._session, "", timedelta())

    def with_sign_in(self, begun: PendingSignIn, return_to: str) -> Cookie:
        """The cookie of a sign-in: sealed, so that nobody reads the verifier, and one for each tab."""
        until = to_micros(self._clock() + SIGN_IN_GOOD_FOR)
        content = msgspec.json.encode(Pending(begun, return_to, until))
        sealed = jwe.encrypt_compact(dict(_HEADER), content, self._key)
        return self._cookie(self._name_of(begun.state), sealed, SIGN_IN_GOOD_FOR)

    def sign_in(self, request: AnyRequest, state: str) -> Pending | None:
        """The sign-in that an answer of the provider belongs to; None if it was not begun here, or is too old."""
        sealed = request.cookies.get(self._name_of(state))
        return None if sealed is None else self._opened(sealed)

    def without_sign_in(self, state: str) -> Cookie:
        """What takes the cookie of a sign-in away."""
        return self._cookie(self._name_of(state), "", timedelta())

    def making_room(self, request: AnyRequest) -> list[Cookie]:
        """What takes away sign-ins that are over, and the oldest where there would be too many with one more.

        Each tab has one, and a request carries all of them: without a bound, servers would refuse its header.
        """
        found = [(name, sealed) for name, sealed in request.cookies.items() if name.startswith(self._sign_in)]
        ages = {name: pending.until for name, sealed in found if (pending := self._opened(sealed))}
        kept = size = 0
        gone = []
        for name, sealed in sorted(found, key=lambda one: ages.get(one[0], 0), reverse=True):
            if name in ages and kept < MOST_PENDING - 1 and size + len(sealed) <= _MOST_BYTES_KEPT:
                kept, size = kept + 1, size + len(sealed)
            else:
                gone.append(self._cookie(name, "", timedelta()))
        return gone

    def _opened(self, sealed: str) -> Pending | None:
        try:
            content = jwe.decrypt_compact(sealed, self._key).plaintext
            pending = msgspec.json.decode(content or b"", type=Pending)
        except (JoseError, ValueError):
            return None
        return pending if to_micros(self._clock()) < pending.until else None

    def notice(self, request: Connection) -> str | None:
        """What the next page is to say, as it was proved."""
        return request.cookies.get(self._notice)

    def with_notice(self, proved: str) -> Cookie:
        """The cookie of what the next page is to say."""
        return self._cookie(self._notice, proved, NOTICE_GOOD_FOR)

    def without_notice(self) -> Cookie:
        """What takes that cookie away."""
        return self._cookie(self._notice, "", timedelta())

    def _name_of(self, state: str) -> str:
        known = "".join(
            letter for letter in state[:_PART_OF_STATE] if letter.isascii() and (letter.isalnum() or letter in "-_")
        )
        return self._sign_in + known

    def _cookie(self, name: str, value: str, lifetime: timedelta) -> Cookie:
        return Cookie(
            key=name,
            value=value,
            max_age=int(lifetime.total_seconds()),
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )
