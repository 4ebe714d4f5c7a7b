"""What users have let the client do: authorization codes and refresh tokens, in memory."""

import base64
import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.common.clock import Clock
from tenantry_devkit.identity_provider.tokens import DemoUser

CODE_LIFETIME: Final = timedelta(seconds=60)
REFRESH_LIFETIME: Final = timedelta(days=30)


class OAuthError(Exception):
    """An error answer of RFC 6749 section 5.2: its ``error`` code and a description that holds nothing secret."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.description = description


class Grant(msgspec.Struct, frozen=True):
    """What one sign-in allows."""

    user: DemoUser
    scopes: tuple[str, ...]
    nonce: str | None
    authenticated_at: datetime


class _Code(msgspec.Struct):
    grant: Grant
    redirect_uri: str
    code_challenge: str
    expires_at: datetime
    is_spent: bool = False


class _RefreshToken(msgspec.Struct):
    grant: Grant
    sign_in: str
    expires_at: datetime
    is_spent: bool = False


class Grants:
    """Codes work once, for 60 s; refresh tokens work once, for 30 days, and are replaced at each use.

    A code or refresh token that is used again was stolen, from the client or by it: every refresh token of that
    sign-in ends (RFC 6749 section 4.1.2, RFC 9700 section 4.14.2). There is one client, so all are bound to it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._codes: dict[str, _Code] = {}
        self._refresh_tokens: dict[str, _RefreshToken] = {}

    def new_code(self, grant: Grant, *, redirect_uri: str, code_challenge: str) -> str:
        """A code that `redeem` takes from whoever knows the verifier of ``code_challenge`` (S256, RFC 7636)."""
        now = self._clock()
        self._codes = {code: entry for code, entry in self._codes.items() if entry.expires_at > now}
        code = secrets.token_urlsafe(32)
        self._codes[code] = _Code(grant, redirect_uri, code_challenge, now + CODE_LIFETIME)
        return code

    def redeem(self, code: str, *, redirect_uri: str, code_verifier: str) -> tuple[Grant, str]:
        """What ``code`` stands for, and the first refresh token. The code is spent even when this is refused.

        Raises `OAuthError` ``invalid_grant``.
        """
        entry = self._codes.get(code)
        if entry is None or entry.expires_at <= self._clock():
            raise OAuthError("invalid_grant", "The code is unknown or has expired.")
        if entry.is_spent:
            self._end_sign_in(code)
            raise OAuthError("invalid_grant", "The code was used before.")
        entry.is_spent = True
        if redirect_uri != entry.redirect_uri:
            raise OAuthError("invalid_grant", "redirect_uri is not the one that the code was sent to.")
        digest = hashlib.sha256(code_verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=")
        if not hmac.compare_digest(challenge, entry.code_challenge.encode()):
            raise OAuthError("invalid_grant", "code_verifier does not match the code_challenge.")
        return entry.grant, self._new_refresh_token(entry.grant, code)

    def rotate(self, refresh_token: str, scopes: tuple[str, ...] | None) -> tuple[Grant, str]:
        """What ``refresh_token`` stands for, and its successor; ``scopes`` must be among those granted.

        Raises `OAuthError` ``invalid_grant`` or ``invalid_scope``; the latter does not spend the token.
        """
        entry = self._refresh_tokens.get(refresh_token)
        if entry is None or entry.expires_at <= self._clock():
            raise OAuthError("invalid_grant", "The refresh token is unknown or has ended.")
        if entry.is_spent:
            self._end_sign_in(entry.sign_in)
            raise OAuthError("invalid_grant", "The refresh token was used before.")
        if scopes is not None and not set(scopes) <= set(entry.grant.scopes):
            raise OAuthError("invalid_scope", "scope asks for more than was granted.")
        entry.is_spent = True
        return entry.grant, self._new_refresh_token(entry.grant, entry.sign_in)

    def begin(self, grant: Grant, sign_in: str) -> str:
        """The first refresh token of a sign-in that needed no code of ours; ``sign_in`` names it."""
        return self._new_refresh_token(grant, sign_in)

    def revoke(self, refresh_token: str) -> None:
        """End the sign-in that this token is of; another text ends nothing."""
        entry = self._refresh_tokens.get(refresh_token)
        if entry is not None:
            self._end_sign_in(entry.sign_in)

    def end(self, sub: str) -> None:
        """End all refresh tokens of this user."""
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.grant.user.sub != sub}
        self._refresh_tokens = kept

    def _new_refresh_token(self, grant: Grant, sign_in: str) -> str:
        now = self._clock()
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.expires_at > now}
        token = secrets.token_urlsafe(32)
        self._refresh_tokens = {**kept, token: _RefreshToken(grant, sign_in, now + REFRESH_LIFETIME)}
        return token

    def _end_sign_in(self, sign_in: str) -> None:
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.sign_in != sign_in}
        self._refresh_tokens = kept
