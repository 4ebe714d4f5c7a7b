"""Access tokens and their sources. Pure: no network access."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import msgspec

from tenantry_sdk._encoding import NOT_JSON
from tenantry_sdk._request import Content
from tenantry_sdk._response import Response
from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk.errors import ConfigurationError, TokenRefreshError

_RENEWED_BEFORE: Final = 30.0  # seconds before its expiry
_JWT_PARTS: Final = 3
_OK: Final = 200
_NO_ADDRESS: Final = "not an http or https address."
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


class Token(msgspec.Struct, frozen=True):
    """An access token. ``issuer`` and ``client_id`` name its origin: the SDK sends it to no other
    identity provider.
    """

    access_token: Secret
    """The token itself."""
    expires_at: float | None = None
    """When it expires, in Unix time; None if unknown."""
    refresh_token: Secret | None = None
    """The token for the next renewal; None without one."""
    lifetime: float | None = None
    """The seconds that it was valid for when it was issued; None if unknown."""
    issuer: str | None = None
    """The identity provider that issued it; None if unknown."""
    client_id: str | None = None
    """The client that it was issued to; None if unknown."""

    def is_of(self, issuer: str, client_id: str) -> bool:
        """Whether it may come from this issuer and client."""
        return self.issuer in {None, issuer} and self.client_id in {None, client_id}

    def is_due(self, now: float) -> bool:
        """Whether to renew it: in the last quarter of its lifetime, at most 30 s before it
        expires.
        """
        if self.expires_at is None:
            return False
        ahead = (
            _RENEWED_BEFORE if self.lifetime is None else min(_RENEWED_BEFORE, self.lifetime / 4)
        )
        return now >= self.expires_at - ahead

    def is_over(self, now: float) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and now >= self.expires_at


class TokenStore(Protocol):
    """Stores a token that several processes share; one at a time renews it."""

    def load(self) -> Token | None:
        """Return the stored token, if any."""

    def save(self, token: Token) -> None:
        """Store this token instead."""

    def clear(self) -> None:
        """Delete the stored token."""

    def try_lock(self) -> Any:  # noqa: ANN401
        """Lock the token; return the argument for `unlock`, or None if another process holds the
        lock.
        """

    def unlock(self, lock: Any) -> None:  # noqa: ANN401
        """Unlock the token."""


class _Grant(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    """The identity provider."""
    client_id: str
    """The id of the client at the identity provider."""

    def __post_init__(self) -> None:
        for name in ("refresh_token", "client_secret"):
            value = getattr(self, name, None)
            if isinstance(value, str):
                msgspec.structs.force_setattr(self, name, Secret(value))


class RefreshToken(_Grant, frozen=True, kw_only=True):
    """Tokens of a user, from a refresh token (RFC 6749 section 6).

    If the identity provider rotates refresh tokens, the newest one is kept.
    """

    refresh_token: str | Secret | None = None
    """The first refresh token, if the ``store`` has none."""
    client_secret: str | Secret | None = None
    """The client's secret; None for a public client."""
    scope: str | None = None
    """The scopes to ask for, with spaces between; None for those of the sign-in."""
    token_url: str | None = None
    """The token endpoint; None for that of the issuer's discovery document."""
    store: TokenStore | None = None
    """Where the tokens are kept: several processes share it, and never use a refresh token
    twice.
    """

    def form(self, last: Token | None) -> dict[str, Secret]:
        """Return the parameters for the token endpoint. Raises `ConfigurationError`."""
        kept = last.refresh_token if last is not None else None
        refresh_token = kept or self.refresh_token
        if not refresh_token:
            raise ConfigurationError("There is no refresh token: sign in first.")
        return _parameters(
            grant_type="refresh_token", refresh_token=refresh_token, scope=self.scope
        )


class ClientCredentials(_Grant, frozen=True, kw_only=True):
    """Tokens of a program (RFC 6749 section 4.4)."""

    client_secret: str | Secret
    """The client's secret."""
    scope: str | None = None
    """The scopes to ask for, with spaces between; None for the client's own."""
    audience: str | None = None
    """The API that the tokens are for; it is sent as ``audience`` and ``resource``."""
    token_url: str | None = None
    """The token endpoint; None for that of the issuer's discovery document."""
    store: None = None
    """None: a program can always get another token."""

    def form(self, last: Token | None) -> dict[str, Secret]:  # noqa: ARG002
        """Return the parameters for the token endpoint."""
        return _parameters(
            grant_type="client_credentials",
            scope=self.scope,
            audience=self.audience,
            resource=self.audience,
        )


Grant = RefreshToken | ClientCredentials
Callback = Callable[[], str | Secret | Token]
AsyncCallback = Callback | Callable[[], Awaitable[str | Secret | Token]]
TokenSource = Grant | Callback
AsyncTokenSource = Grant | AsyncCallback


class TokenRequest(msgspec.Struct, frozen=True):
    """A request to an identity provider."""

    method: str
    url: str
    headers: dict[str, str]
    content: Content | None = None
    basic: Secret | None = None

    @property
    def host(self) -> str:
        """The host that receives it."""
        return urlsplit(self.url).hostname or ""


def token_request(grant: Grant, url: str, last: Token | None) -> TokenRequest:
    """Return the request for the next token. A client secret is sent with HTTP Basic (RFC 6749
    section 2.3.1).
    """
    source = "token_url" if grant.token_url else f"the token endpoint of {grant.issuer}"
    checked_address(url, source, allow_query=True)
    form = grant.form(last)
    basic = None
    if grant.client_secret:
        pair = f"{quote(grant.client_id, safe='')}:{quote(revealed(grant.client_secret), safe='')}"
        basic = Secret(base64.b64encode(pair.encode()).decode())
    else:
        form["client_id"] = Secret(grant.client_id)
    content = Content(urlencode({name: value.reveal() for name, value in form.items()}).encode())
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    return TokenRequest("POST", url, headers, content, basic)


def discovery_request(issuer: str) -> TokenRequest:
    """Return the request for an issuer's discovery document (OpenID Connect Discovery section
    4).
    """
    checked_address(issuer, "issuer")
    return TokenRequest(
        "GET",
        issuer.rstrip("/") + "/.well-known/openid-configuration",
        {"Accept": "application/json"},
    )


def endpoint_of(issuer: str, response: Response) -> str:
    """Return the token endpoint from an issuer's discovery document. Raises `TokenRefreshError`."""
    document = _object(response.content)
    endpoint = document.get("token_endpoint")
    if response.status_code != _OK or not isinstance(endpoint, str):
        raise TokenRefreshError(
            f"The discovery document of {issuer} names no token_endpoint "
            f"(status {response.status_code})."
        )
    if document.get("issuer") != issuer:
        raise TokenRefreshError(
            f"The discovery document of {issuer} names another issuer: {document.get('issuer')!r}."
        )
    return endpoint


def token_of(grant: Grant, response: Response, now: float, last: Token | None) -> Token:
    """Return the token in a token endpoint's response (RFC 6749 section 5.1). Raises
    `TokenRefreshError`.
    """
    document = _object(response.content)
    access_token = document.get("access_token")
    if response.status_code != _OK or not isinstance(access_token, str) or not access_token:
        raise _refusal(response.status_code, document)
    lifetime = _positive(document.get("expires_in"))
    refresh_token = document.get("refresh_token")
    kept = last.refresh_token if last is not None else None
    return Token(
        _usable(access_token),
        _expiry(access_token) if lifetime is None else now + lifetime,
        Secret(refresh_token) if isinstance(refresh_token, str) and refresh_token else kept,
        lifetime,
        grant.issuer,
        grant.client_id,
    )


def _refusal(status: int, document: dict[str, Any]) -> TokenRefreshError:
    code = document.get("error")
    reason = str(document.get("error_description") or code or "no readable error")
    return TokenRefreshError(
        f"The identity provider issued no token: {status}, {reason.removesuffix('.')}.",
        code=code if isinstance(code, str) else None,
    )


def _positive(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return None


def as_token(value: object, now: float) -> Token:
    """Return the result of a caller's token function as a token; a JWT names its own expiry.

    Raises `ConfigurationError`.
    """
    if isinstance(value, Token):
        _usable(value.access_token.reveal())
        return value
    if not isinstance(value, str | Secret):
        raise ConfigurationError(
            f"The token function returned a {type(value).__name__}: it must return a string or a Token."
        )
    text = revealed(value)
    expires_at = _expiry(text.strip())
    return Token(
        _usable(text), expires_at, None, None if expires_at is None else max(0.0, expires_at - now)
    )


def checked_address(
    address: str,
    source: str,
    *,
    allow_http: bool = False,
    allow_query: bool = False,
) -> str:
    """Return an address that may receive credentials, without a trailing slash: https, or on this
    machine.

    Raises `ConfigurationError`, whose message begins with ``source``, and shows no address that may
    contain a password. ``allow_http`` permits plain http to other machines.
    """
    parts = _split(address)
    if parts is None or (parts.query and not allow_query):
        raise ConfigurationError(f"{source}: {_NO_ADDRESS}")
    if "@" in parts.netloc:
        raise ConfigurationError(f"{source}: the address must not contain a user or password.")
    if parts.scheme not in {"http", "https"} or not is_plain(address):
        raise ConfigurationError(f"{source}: {_NO_ADDRESS}")
    is_safe = parts.scheme == "https" or parts.hostname in _LOOPBACK
    if not is_safe and not allow_http:
        raise ConfigurationError(f"{source}: {address} must be https: it receives secrets.")
    return address.rstrip("/")


def _split(address: str) -> SplitResult | None:
    """Return the parts of an address; None without a host, with a fragment, or for an invalid port
    or IPv6 address.
    """
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.hostname and parts.port != 0 and not parts.fragment:
            return parts
    return None


def is_plain(text: str) -> bool:
    """Whether a header or an address can carry the text."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _usable(token: str) -> Secret:
    """Return the token if a header can carry it."""
    stripped = token.strip()
    if not is_plain(stripped):
        raise ConfigurationError("The access token is empty or has invalid characters.")
    return Secret(stripped)


class _Claims(msgspec.Struct):
    exp: float | None = None


def _expiry(token: str) -> float | None:
    """Return the ``exp`` of a JWT, unverified: it only determines the renewal."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return None
    try:
        content = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(content, type=_Claims).exp
    except (ValueError, *NOT_JSON):
        return None


def _object(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except NOT_JSON:
        return {}


def _parameters(**values: str | Secret | None) -> dict[str, Secret]:
    return {
        name: value if isinstance(value, Secret) else Secret(value)
        for name, value in values.items()
        if value
    }
