"""Authorization codes, refresh tokens and device codes, in memory."""

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
DEVICE_LIFETIME: Final = timedelta(minutes=10)
DEVICE_INTERVAL: Final = timedelta(seconds=1)
_SLOW_DOWN: Final = timedelta(seconds=5)
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""Without vowels: no words, and no letters that look alike (RFC 8628 section 6.1)."""


class OAuthError(Exception):
    """An error response of RFC 6749 section 5.2, with its ``error`` code and a description."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.description = description


class Grant(msgspec.Struct, frozen=True):
    """The result of a sign-in."""

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
    """Codes work once, for 60 s; refresh tokens work once, for 30 days, and are rotated.

    Reuse of a code or refresh token revokes every refresh token of its sign-in (RFC 6749 section 4.1.2, RFC 9700
    section 4.14.2).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._codes: dict[str, _Code] = {}
        self._refresh_tokens: dict[str, _RefreshToken] = {}

    def new_code(self, grant: Grant, *, redirect_uri: str, code_challenge: str) -> str:
        """Return a code for the client that knows the verifier of ``code_challenge`` (S256, RFC 7636)."""
        now = self._clock()
        self._codes = {code: entry for code, entry in self._codes.items() if entry.expires_at > now}
        code = secrets.token_urlsafe(32)
        self._codes[code] = _Code(grant, redirect_uri, code_challenge, now + CODE_LIFETIME)
        return code

    def redeem(self, code: str, *, redirect_uri: str, code_verifier: str) -> tuple[Grant, str]:
        """Return the grant of a code and a refresh token; raises `OAuthError`, which spends the code too."""
        entry = self._codes.get(code)
        if entry is None or entry.expires_at <= self._clock():
            raise OAuthError("invalid_grant", "The code is unknown or has expired.")
        if entry.is_spent:
            self._revoke_sign_in(code)
            raise OAuthError("invalid_grant", "The code was used before.")
        entry.is_spent = True
        if redirect_uri != entry.redirect_uri:
            raise OAuthError("invalid_grant", "redirect_uri differs from that of the authorization request.")
        digest = hashlib.sha256(code_verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=")
        if not hmac.compare_digest(challenge, entry.code_challenge.encode()):
            raise OAuthError("invalid_grant", "code_verifier does not match the code_challenge.")
        return entry.grant, self.new_refresh_token(entry.grant, code)

    def rotate(self, refresh_token: str) -> tuple[Grant, str]:
        """Return the grant of a refresh token and its successor; raises `OAuthError`."""
        entry = self._refresh_tokens.get(refresh_token)
        if entry is None or entry.expires_at <= self._clock():
            raise OAuthError("invalid_grant", "The refresh token is unknown or has expired.")
        if entry.is_spent:
            self._revoke_sign_in(entry.sign_in)
            raise OAuthError("invalid_grant", "The refresh token was used before.")
        entry.is_spent = True
        return entry.grant, self.new_refresh_token(entry.grant, entry.sign_in)

    def revoke(self, refresh_token: str) -> None:
        """Revoke the refresh tokens of a token's sign-in; ignore an unknown token."""
        entry = self._refresh_tokens.get(refresh_token)
        if entry is not None:
            self._revoke_sign_in(entry.sign_in)

    def new_refresh_token(self, grant: Grant, sign_in: str) -> str:
        """Return a refresh token of the sign-in that began with this code."""
        now = self._clock()
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.expires_at > now}
        token = secrets.token_urlsafe(32)
        self._refresh_tokens = {**kept, token: _RefreshToken(grant, sign_in, now + REFRESH_LIFETIME)}
        return token

    def _revoke_sign_in(self, sign_in: str) -> None:
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.sign_in != sign_in}
        self._refresh_tokens = kept


class _Device(msgspec.Struct):
    user_code: str
    scopes: tuple[str, ...]
    expires_at: datetime
    next_poll: datetime
    interval: timedelta = DEVICE_INTERVAL
    grant: Grant | None = None
    is_denied: bool = False


class Devices:
    """Device codes, each for one sign-in within ten minutes (RFC 8628)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}

    def begin(self, scopes: tuple[str, ...]) -> tuple[str, str]:
        now = self._clock()
        self._devices = {code: device for code, device in self._devices.items() if device.expires_at > now}
        letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
        user_code, device_code = f"{letters[:4]}-{letters[4:]}", secrets.token_urlsafe(32)
        self._devices[device_code] = _Device(user_code, scopes, now + DEVICE_LIFETIME, now + DEVICE_INTERVAL)
        return device_code, user_code

    def decide(self, user_code: str, grant: Grant | None) -> bool:
        """Allow the device the scopes that it asked for, or deny it; return whether one was waiting."""
        wanted, now = _normalized(user_code), self._clock()
        for device in self._devices.values():
            is_pending = device.expires_at > now and not device.is_denied and device.grant is None
            if is_pending and _normalized(device.user_code) == wanted:
                device.is_denied = grant is None
                device.grant = None if grant is None else msgspec.structs.replace(grant, scopes=device.scopes)
                return True
        return False

    def poll(self, device_code: str) -> Grant:
        """Return the device's grant, once. Raises `OAuthError` while it is pending, and afterwards."""
        now, device = self._clock(), self._devices.get(device_code)
        if device is None:
            raise OAuthError("invalid_grant", "The device code is unknown or was used before.")
        if device.expires_at <= now:
            raise OAuthError("expired_token", "The device code has expired.")
        if device.is_denied:
            raise OAuthError("access_denied", "The user denied the sign-in.")
        if device.grant is not None:
            del self._devices[device_code]
            return device.grant
        is_early = now < device.next_poll
        if is_early:
            device.interval += _SLOW_DOWN
        device.next_poll = now + device.interval
        if is_early:
            raise OAuthError("slow_down", "The device polls too often.")
        raise OAuthError("authorization_pending", "The user has not entered the code yet.")


def _normalized(user_code: str) -> str:
    """Ignore hyphens and case."""
    return "".join(letter for letter in user_code.upper() if letter in _LETTERS)
