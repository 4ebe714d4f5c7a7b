"""Access tokens and where they come from. Nothing here asks the network."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk._store import Token, TokenStore
from tenantry_sdk.errors import ConfigurationError, TokenRefreshError

_JWT_PARTS: Final = 3
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


class _Grant(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    client_id: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}(issuer={self.issuer!r}, client_id={self.client_id!r}, ...)"


class RefreshToken(_Grant, frozen=True, kw_only=True):
    """Tokens of a user, from a refresh token (RFC 6749, 6).

    ``issuer`` is the identity provider; it is asked where its token endpoint is, unless ``token_url`` says so.
    Identity providers that hand out a new refresh token each time have the newest one kept, in ``store`` too if there
    is one: then several processes share it without using one twice.
    """

    refresh_token: str | Secret | None = None
    client_secret: str | Secret | None = None
    scope: str | None = None
    token_url: str | None = None
    store: TokenStore | None = None

    def form(self, last: Token | None) -> dict[str, str]:
        """What is sent to the token endpoint. Raises `ConfigurationError`."""
        kept = last.refresh_token if last is not None else None
        refresh_token = kept or self.refresh_token
        if not refresh_token:
            raise ConfigurationError("There is no refresh token: sign in first.")
        return _filled(grant_type="refresh_token", refresh_token=revealed(refresh_token), scope=self.scope)


class ClientCredentials(_Grant, frozen=True, kw_only=True):
    """Tokens of a program of its own (RFC 6749, 4.4). ``audience`` is sent as ``audience`` and ``resource``."""

    client_secret: str | Secret
    scope: str | None = None
    audience: str | None = None
    token_url: str | None = None

    store: None = None

    def form(self, last: Token | None) -> dict[str, str]:  # noqa: ARG002
        """What is sent to the token endpoint."""
        return _filled(
            grant_type="client_credentials", scope=self.scope, audience=self.audience, resource=self.audience
        )


Grant = RefreshToken | ClientCredentials
Callback = Callable[[], str | Token]
AsyncCallback = Callback | Callable[[], Awaitable[str | Token]]
TokenSource = Grant | Callback
AsyncTokenSource = Grant | AsyncCallback


class TokenRequest(msgspec.Struct, frozen=True):
    """What to send to a token endpoint."""

    url: str
    headers: dict[str, str]
    form: dict[str, str]


def token_request(grant: Grant, url: str, last: Token | None) -> TokenRequest:
    """The request for the next token. A secret goes with HTTP Basic (RFC 6749, 2.3.1)."""
    check_address(url, "The token endpoint")
    headers = {"Accept": "application/json"}
    form = grant.form(last)
    if grant.client_secret:
        pair = f"{quote(grant.client_id, safe='')}:{quote(revealed(grant.client_secret), safe='')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    else:
        form["client_id"] = grant.client_id
    return TokenRequest(url, headers, form)


def discovery_url(issuer: str) -> str:
    """Where an issuer describes itself (OpenID Connect Discovery, 4)."""
    check_address(issuer, "The issuer")
    return issuer.rstrip("/") + "/.well-known/openid-configuration"


def endpoint_of(issuer: str, name: str, status: int, content: bytes) -> str:
    """An endpoint out of an issuer's description of itself. Raises `TokenRefreshError`."""
    document = _object(content)
    if status != 200 or not isinstance(document.get(name), str):  # noqa: PLR2004
        raise TokenRefreshError(f"{issuer} does not say where its {name} is (status {status}).")
    if document.get("issuer") != issuer:
        raise TokenRefreshError(f"{issuer} calls itself {document.get('issuer')!r}: the two have to be the same.")
    return str(document[name])


def token_of(status: int, content: bytes, now: float, last: Token | None) -> Token:
    """The token in a token endpoint's answer (RFC 6749, 5.1). Raises `TokenRefreshError`."""
    document = _object(content)
    access_token = document.get("access_token")
    if status != 200 or not isinstance(access_token, str) or not access_token:  # noqa: PLR2004
        code = document.get("error")
        reason = document.get("error_description") or code or "nothing that can be read"
        raise TokenRefreshError(
            f"The identity provider gave no token: {status}, {reason}.", code=code if isinstance(code, str) else None
        )
    said = document.get("expires_in")
    lifetime = float(said) if isinstance(said, int | float) and not isinstance(said, bool) and said > 0 else None
    refresh_token = document.get("refresh_token")
    kept = last.refresh_token if last is not None else None
    return Token(
        Secret(access_token),
        _expiry(access_token) if lifetime is None else now + lifetime,
        Secret(refresh_token) if isinstance(refresh_token, str) else kept,
        lifetime,
    )


def as_token(value: str | Token, now: float) -> Token:
    """What a caller's function gave, as a token: a JWT says itself when it ends."""
    if isinstance(value, Token):
        return value
    expires_at = _expiry(value)
    return Token(Secret(value), expires_at, None, None if expires_at is None else max(0.0, expires_at - now))


def check_address(url: str, what: str) -> None:
    """Let only addresses pass where what is sent can be read by nobody else. Raises `ConfigurationError`."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ConfigurationError(f"{what} has to be an https address, or on this machine: {url}")


class _Claims(msgspec.Struct):
    exp: float | None = None


def _expiry(token: str) -> float | None:
    """``exp`` of a JWT, unchecked: it only says when to ask again."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return None
    try:
        content = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(content, type=_Claims).exp
    except (ValueError, msgspec.MsgspecError):
        return None


def _object(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _filled(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
