"""Dashboard sessions: the cookie's token, its digest, and how long a session is valid."""

import base64
import binascii
import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.domain.members import User

RANDOM_BYTES: Final = 32
IDLE: Final = timedelta(hours=2)
"""A session expires after this time without use."""
ABSOLUTE: Final = timedelta(hours=12)
"""A session expires this long after the sign-in, whatever its use."""
PROOF_GOOD_FOR: Final = timedelta(hours=1)
"""The provider's claims are valid for this time; then the dashboard renews them without the
user.
"""
FORM_GRACE: Final = timedelta(minutes=30)
"""After that, a form that was opened before may be submitted for this time."""
AWAY_GRACE: Final = timedelta(hours=1)
"""After that, the session continues for this time while the provider is unavailable."""
WRITE_EVERY: Final = timedelta(minutes=1)
"""The shortest time between two stored uses of a session."""
_TAG_BYTES: Final = 16
_TOKEN_BYTES: Final = RANDOM_BYTES + _TAG_BYTES


class Session(msgspec.Struct, frozen=True):
    """A signed-in browser. ``claims`` are the provider's, as JSON."""

    digest: bytes
    issuer: str
    subject: str
    claims: str
    name: str | None
    tenant_id: str | None
    """The last viewed tenant."""
    address: str | None
    agent: str | None
    proved_at: datetime
    started_at: datetime
    used_at: datetime
    authenticated_at: datetime | None = None
    """When the provider authenticated the user for this session, if it said so."""

    @property
    def user(self) -> User:
        """The signed-in user."""
        return User(self.issuer, self.subject)

    @property
    def ends_at(self) -> datetime:
        """When the session expires whatever its use."""
        return self.started_at + ABSOLUTE

    def is_expired(self, now: datetime) -> bool:
        """Whether the session was idle or open for too long."""
        return now >= self.ends_at or now >= self.used_at + IDLE

    def needs_renewal(self, now: datetime) -> bool:
        """Whether the provider's claims are too old."""
        return now >= self.proved_at + PROOF_GOOD_FOR

    def may_send_forms(self, now: datetime) -> bool:
        """Whether a form that was opened before the claims became too old may still be
        submitted.
        """
        return now < self.proved_at + PROOF_GOOD_FOR + FORM_GRACE

    def was_authenticated_within(self, time: timedelta, now: datetime) -> bool:
        """Whether the provider authenticated the user this recently. A renewal of the claims does
        not count.
        """
        return self.authenticated_at is not None and now <= self.authenticated_at + time

    def may_continue(self, now: datetime) -> bool:
        """Whether the session may continue while the provider is unavailable."""
        return now < self.proved_at + PROOF_GOOD_FOR + AWAY_GRACE


class SessionSecret:
    """The deployment's secret for sessions: signs their tokens, and derives their digests.

    A forged cookie is rejected without a query. A new secret ends all sessions.
    """

    __slots__ = ("_key",)

    def __init__(self, secret: str) -> None:
        self._key = secret.encode()

    def token(self, random: bytes) -> str:
        """Return the token for a session's cookie, from 32 random bytes."""
        return base64.urlsafe_b64encode(random + self._mac(b"tag", random)[:_TAG_BYTES]).decode()

    def digest_of(self, random: bytes) -> bytes:
        """Return the stored digest for the random bytes of a token."""
        return self._mac(b"digest", random)

    def digest(self, token: str) -> bytes | None:
        """Return the stored digest of a token; None for a forged one."""
        try:
            content = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        random, tag = content[:RANDOM_BYTES], content[RANDOM_BYTES:]
        if len(content) != _TOKEN_BYTES or not hmac.compare_digest(
            tag, self._mac(b"tag", random)[:_TAG_BYTES]
        ):
            return None
        return self.digest_of(random)

    def form_token(self, digest: bytes) -> str:
        """Return the CSRF token of a session's forms."""
        return self._mac(b"form", digest).hex()

    def proof(self, digest: bytes, text: str) -> str:
        """Return the signature of a text for this session, in hexadecimal."""
        return self._mac(b"text", digest + text.encode()).hex()

    def key(self, purpose: str) -> bytes:
        """Derive a key of 32 bytes for another purpose."""
        return self._mac(b"key", purpose.encode())

    def _mac(self, purpose: bytes, content: bytes) -> bytes:
        return hmac.digest(
            self._key, b"tenantry session " + purpose + b":" + content, hashlib.sha256
        )
