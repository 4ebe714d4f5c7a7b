"""Sessions of the dashboard: what the cookie holds, how it is stored, and how long it is good."""

import base64
import binascii
import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Final

import msgspec

RANDOM_BYTES: Final = 32
IDLE: Final = timedelta(hours=2)
"""A session ends when it has not been used for so long."""
ABSOLUTE: Final = timedelta(hours=12)
"""A session ends this long after the sign-in, however much it is used."""
PROOF_GOOD_FOR: Final = timedelta(hours=1)
"""For so long the provider's word on a user counts; then it is asked again, without the user."""
FORM_GRACE: Final = timedelta(minutes=30)
"""For so long after that a form may still be sent, which was being filled in meanwhile."""
AWAY_GRACE: Final = timedelta(hours=1)
"""For so long after that everything goes on while the provider is out of reach."""
WRITE_EVERY: Final = timedelta(minutes=1)
"""The last use of a session is written no more often than this."""
_TAG_BYTES: Final = 16
_TOKEN_BYTES: Final = RANDOM_BYTES + _TAG_BYTES


class Session(msgspec.Struct, frozen=True):
    """Somebody signed in with a browser. ``claims`` are the provider's, as JSON."""

    digest: bytes
    issuer: str
    subject: str
    claims: str
    name: str | None
    tenant_id: str | None
    """The tenant that was looked at last."""
    address: str | None
    agent: str | None
    proved_at: datetime
    started_at: datetime
    used_at: datetime

    @property
    def ends_at(self) -> datetime:
        """When it ends, however much it is used."""
        return self.started_at + ABSOLUTE

    def is_over(self, now: datetime) -> bool:
        """Whether it has been idle or open for too long."""
        return now >= self.ends_at or now >= self.used_at + IDLE

    def is_unproved(self, now: datetime) -> bool:
        """Whether the provider's word is too old."""
        return now >= self.proved_at + PROOF_GOOD_FOR

    def may_send_forms(self, now: datetime) -> bool:
        """Whether the provider's word is good enough for a form that was begun while it was."""
        return now < self.proved_at + PROOF_GOOD_FOR + FORM_GRACE

    def may_go_on_without(self, now: datetime) -> bool:
        """Whether the provider's word is good enough while it cannot be asked."""
        return now < self.proved_at + PROOF_GOOD_FOR + AWAY_GRACE


class SessionSecret:
    """The deployment's secret for sessions: it makes cookies that nobody else can make, and what is stored of them.

    A forged cookie is told without the database. Another secret ends all sessions.
    """

    __slots__ = ("_key",)

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()

    def token(self, random: bytes) -> str:
        """What the cookie of a session holds, made from 32 random bytes."""
        return base64.urlsafe_b64encode(random + self._mac(b"tag", random)[:_TAG_BYTES]).decode()

    def digest_of(self, random: bytes) -> bytes:
        """What is stored of a session, from the random bytes that its token was made of."""
        return self._mac(b"digest", random)

    def digest(self, token: str) -> bytes | None:
        """What is stored of a session; None for a token that was not made here."""
        try:
            content = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        random, tag = content[:RANDOM_BYTES], content[RANDOM_BYTES:]
        if len(content) != _TOKEN_BYTES or not hmac.compare_digest(tag, self._mac(b"tag", random)[:_TAG_BYTES]):
            return None
        return self.digest_of(random)

    def form_token(self, digest: bytes) -> str:
        """What every form of a session carries along, so that no other site can send one (CSRF)."""
        return self._mac(b"form", digest).hex()

    def proof(self, digest: bytes, text: str) -> str:
        """What shows that a text was written here, for this session: hexadecimal digits."""
        return self._mac(b"text", digest + text.encode()).hex()

    def key(self, purpose: str) -> bytes:
        """A key of 32 bytes for another purpose."""
        return self._mac(b"key", purpose.encode())

    def _mac(self, purpose: bytes, content: bytes) -> bytes:
        return hmac.digest(self._key, b"tenantry session " + purpose + b":" + content, hashlib.sha256)
