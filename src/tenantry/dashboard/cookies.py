"""The dashboard's cookies: the session, sign-ins in progress, and the next page's flash message or
secret.
"""

import hmac
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, TypeVar

import msgspec
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from litestar.datastructures import Cookie

from tenantry.api.guards import AnyRequest, Connection
from tenantry.common.clock import Clock, to_micros
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.domain.sessions import ABSOLUTE, Session, SessionSecret
from tenantry.integrations.oidc.sign_in import PendingSignIn

MOST_PENDING: Final = 5
"""Sign-ins in progress in one browser; the oldest ones make room for a new one."""
MOST_READ: Final = 2 * MOST_PENDING
"""Cookies of sign-ins that the service reads of one request. Tabs that begin together exceed
`MOST_PENDING`.
"""
# with one more sign-in and the session, a header of 8 KiB still has room
_MOST_SIGN_IN_BYTES: Final = 4096
_FLASH_LIFETIME: Final = timedelta(minutes=1)
SECRET_LIFETIME: Final = timedelta(minutes=1)
"""How long the secret of a new key waits for the page that shows it."""
_JWE_HEADER: Final = {"alg": "dir", "enc": "A256GCM"}
_UNSAFE_IN_NAME: Final = re.compile("[^A-Za-z0-9_-]")


class SignInCookie(msgspec.Struct, frozen=True):
    """A sign-in in progress in one browser tab, and the page that follows it."""

    begun: PendingSignIn
    return_to: str
    until: int
    """In microseconds since the Unix epoch."""


class NewSecret(msgspec.Struct, frozen=True):
    """The secret of a new key, between the form that created the key and the page that shows it."""

    key_id: str
    secret: str
    until: int
    """In microseconds since the Unix epoch."""


Expiring = TypeVar("Expiring", SignInCookie, NewSecret)


class Cookies:
    """Reads and creates the cookies. Over https their names begin with ``__Host-``: no other host
    can set them.
    """

    def __init__(self, secret: SessionSecret, clock: Clock, *, secure: bool) -> None:
        self._secret = secret
        self._key = OctKey.import_key(secret.key("sign-in"))
        self._clock = clock
        self._secure = secure
        prefix = "__Host-tenantry" if secure else "tenantry"
        self._session = f"{prefix}_session"
        self._sign_in = f"{prefix}_sign_in_"
        self._flash = f"{prefix}_notice"
        # __Host- allows no other path
        self._new_secret = "__Secure-tenantry_secret_" if secure else "tenantry_secret_"

    def session(self, request: Connection) -> str | None:
        return request.cookies.get(self._session)

    def with_session(self, token: str) -> Cookie:
        return self._cookie(self._session, token, ABSOLUTE)

    def without_session(self) -> Cookie:
        return self._cookie(self._session, "", timedelta())

    def with_sign_in(self, begun: PendingSignIn, return_to: str, lifetime: timedelta) -> Cookie:
        """Return the cookie of a sign-in, one for each tab, encrypted because it holds the PKCE
        verifier.
        """
        until = to_micros(self._clock() + lifetime)
        content = msgspec.json.encode(SignInCookie(begun, return_to, until))
        encrypted = jwe.encrypt_compact(dict(_JWE_HEADER), content, self._key)
        return self._cookie(self._sign_in_name(begun.state), encrypted, lifetime)

    def sign_in(self, request: AnyRequest, state: str) -> SignInCookie | None:
        """Return the sign-in with this state; None if another browser began it, or it has
        expired.
        """
        encrypted = request.cookies.get(self._sign_in_name(state))
        return None if encrypted is None else self._decrypted(encrypted)

    def without_sign_in(self, state: str) -> Cookie:
        return self._cookie(self._sign_in_name(state), "", timedelta())

    def without_old_sign_ins(self, request: AnyRequest) -> list[Cookie]:
        """Return cookies that delete expired sign-ins, and the oldest ones if one more would exceed
        the limits.

        A request carries all of them, and servers reject a header that is too large. Browsers send
        the newest last (RFC 6265 section 5.4); those before the last `MOST_READ` are left to
        expire.
        """
        sent = [
            (name, sealed) for name, sealed in request.cookies.items() if self._is_sign_in(name)
        ]
        found = sent[-MOST_READ:]
        expiries = {
            name: pending.until for name, sealed in found if (pending := self._decrypted(sealed))
        }
        sizes = {name: len(sealed) for name, sealed in found}
        newest = sorted(expiries, key=expiries.__getitem__, reverse=True)
        kept = _fitting(newest, sizes)
        return [self._cookie(name, "", timedelta()) for name in sizes if name not in kept]

    def flash(self, request: Connection, session: Session) -> FlashMessage | None:
        """Return the message that this page is to show, if the dashboard signed it for this session
        and path.
        """
        return self.verified_flash(
            session, request.scope["path"], request.cookies.get(self._flash, "")
        )

    def with_flash(self, session: Session, path: str, message: FlashMessage) -> Cookie:
        """Return the cookie that lets the page at ``path`` show a message once."""
        return self._cookie(self._flash, self.signed_flash(session, path, message), _FLASH_LIFETIME)

    def without_flash(self) -> Cookie:
        return self._cookie(self._flash, "", timedelta())

    def signed_flash(self, session: Session, path: str, message: FlashMessage) -> str:
        """Return the message's name and signature, in letters, digits, underscores and a dot."""
        return f"{message.name}.{self._secret.proof(session.digest, f'{message.name} {path}')}"

    def verified_flash(self, session: Session, path: str, signed: str) -> FlashMessage | None:
        """Return the message that `signed_flash` signed for this session and path; None for any
        other text.
        """
        message = FlashMessage.__members__.get(signed.partition(".")[0])
        expected = self.signed_flash(session, path, message) if message else ""
        return message if hmac.compare_digest(signed.encode(), expected.encode()) else None

    def with_secret(self, session: Session, path: str, key_id: str, secret: str) -> Cookie:
        """Return the cookie that lets the page at ``path`` show a new key's secret (decision 0028).

        Only this session can decrypt it, and browsers send it to no other page. Its name has the
        key's id, so that another host of the domain cannot set a cookie of this name that hides it.
        """
        until = to_micros(self._clock() + SECRET_LIFETIME)
        content = msgspec.json.encode(NewSecret(key_id, secret, until))
        encrypted = jwe.encrypt_compact(dict(_JWE_HEADER), content, self._session_key(session))
        return self._cookie(
            self._new_secret + key_id,
            encrypted,
            SECRET_LIFETIME,
            path,
        )

    def secret(self, request: AnyRequest, session: Session, key_id: str) -> str | None:
        """Return the secret of this key; None if the cookie is missing, of another session or key,
        or expired.
        """
        encrypted = request.cookies.get(self._new_secret + key_id, "")
        found = self._decrypt(encrypted, self._session_key(session), NewSecret)
        return found.secret if found is not None and found.key_id == key_id else None

    def without_secret(self, path: str, key_id: str) -> Cookie:
        return self._cookie(
            self._new_secret + key_id,
            "",
            timedelta(),
            path,
        )

    def _session_key(self, session: Session) -> OctKey:
        return OctKey.import_key(self._secret.key(f"new secret {session.digest.hex()}"))

    def _decrypted(self, encrypted: str) -> SignInCookie | None:
        return self._decrypt(encrypted, self._key, SignInCookie)

    def _decrypt(self, encrypted: str, key: OctKey, kind: type[Expiring]) -> Expiring | None:
        """Return the content of a cookie; None if it was encrypted with another key, altered, or
        has expired.
        """
        try:
            content = jwe.decrypt_compact(encrypted, key).plaintext
            found = msgspec.json.decode(content or b"", type=kind)
        except (JoseError, ValueError):
            return None
        return found if to_micros(self._clock()) < found.until else None

    def _is_sign_in(self, name: str) -> bool:
        state = name.removeprefix(self._sign_in)
        return state != name and _UNSAFE_IN_NAME.search(state) is None

    def _sign_in_name(self, state: str) -> str:
        return self._sign_in + _UNSAFE_IN_NAME.sub("", state[:12])

    def _cookie(self, name: str, value: str, lifetime: timedelta, path: str = "/") -> Cookie:
        max_age = int(lifetime.total_seconds())
        secure = self._secure
        return Cookie(
            key=name,
            value=value,
            path=path,
            max_age=max_age,
            secure=secure,
            httponly=True,
            samesite="lax",
        )


def _fitting(names: Iterable[str], sizes: Mapping[str, int]) -> set[str]:
    """Return the first cookies that leave room for one more sign-in."""
    kept = set[str]()
    size = 0
    for name in names:
        if len(kept) < MOST_PENDING - 1 and size + sizes[name] <= _MOST_SIGN_IN_BYTES:
            kept.add(name)
            size += sizes[name]
    return kept
