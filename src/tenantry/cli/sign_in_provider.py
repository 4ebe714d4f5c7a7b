"""A client of the identity provider without a client secret: discovery and the endpoints."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from tenantry.cli.client_configuration import checked_address, is_plain
from tenantry.cli.demo_folder import is_loopback_url
from tenantry.cli.output import NOT_AUTHENTICATED, OUT_OF_REACH, CommandError, printable
from tenantry.common.encoding import NOT_JSON
from tenantry_sdk import Secret, Token

_MOST_BYTES: Final = 256 * 1024
_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""Unencrypted requests to this machine must not leave it."""

T = TypeVar("T")


class ProviderMetadata(msgspec.Struct, frozen=True):
    """An issuer's discovery document (OpenID Connect Discovery, RFC 8414)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None
    authorization_response_iss_parameter_supported: bool = False


class ProviderResponse(msgspec.Struct, frozen=True):
    """An endpoint's response; ``fields`` is empty if it is not a JSON object."""

    status: int
    fields: dict[str, Any]

    @property
    def error(self) -> str | None:
        """The OAuth error (RFC 6749, 5.2), if any."""
        error = self.fields.get("error")
        return error if isinstance(error, str) else None

    @property
    def reason(self) -> str:
        text = self.fields.get("error_description") or self.fields.get("error") or "an unreadable response"
        return f"{self.status}, {printable(str(text))[:300]}"


class IdentityProvider:
    """An identity provider as a public client uses it. Every method raises `CommandError`.

    Each response may take ``seconds``. With ``local_only`` every endpoint must be on this machine.
    """

    def __init__(
        self, issuer: str, client_id: str, audience: str | None = None, *, seconds: float, local_only: bool = False
    ) -> None:
        checked_address(issuer, "The issuer")
        self.issuer = issuer
        self.client_id = client_id
        self._audience = audience
        self._local_only = local_only
        self._seconds = seconds
        self._http = httpx2.Client(timeout=seconds, follow_redirects=False, mounts=_WITHOUT_PROXY)
        self.metadata = ProviderMetadata(issuer, "")

    def discover(self) -> None:
        response = self.request(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        try:
            self.metadata = msgspec.convert(response.fields, ProviderMetadata)
        except msgspec.ValidationError as error:
            raise CommandError(f"{self.issuer} has no valid OpenID discovery document: {error}") from None
        if (named := self.metadata.issuer) != self.issuer:
            raise CommandError(f"{self.issuer} calls itself {printable(named)}: the two must be equal.")
        for name in ("token", "authorization", "device_authorization", "revocation"):
            if (endpoint := getattr(self.metadata, f"{name}_endpoint")) is not None:
                checked_endpoint(endpoint, f"{self.issuer}, {name}_endpoint")
                if self._local_only and not is_loopback_url(endpoint):
                    raise CommandError(f"{self.issuer} is on this machine, but its {name}_endpoint is not: {endpoint}")

    def token_parameters(self, scope: str) -> dict[str, str]:
        """Return the parameters of every request for tokens: client, scope and audience (RFC 8707)."""
        audience = {"audience": self._audience, "resource": self._audience} if self._audience else {}
        return {"client_id": self.client_id, "scope": scope, **audience}

    def token(self, form: Mapping[str, str]) -> ProviderResponse:
        """Send a grant to the token endpoint."""
        audience = {"resource": self._audience} if self._audience else {}
        return self.request(self.metadata.token_endpoint, {**form, "client_id": self.client_id, **audience})

    def revoke(self, token: Token) -> bool:
        """Revoke the refresh token (RFC 7009); return whether this provider supports that."""
        endpoint = self.metadata.revocation_endpoint
        if token.refresh_token is None or endpoint is None:
            return token.refresh_token is None
        refresh_token = token.refresh_token.reveal()
        form = {"token": refresh_token, "token_type_hint": "refresh_token", "client_id": self.client_id}
        response = self.request(endpoint, form)
        if response.status != HTTPStatus.OK:
            raise CommandError(f"The identity provider answered {response.reason}.")
        return True

    def close(self) -> None:
        self._http.close()

    def request(self, url: str, form: Mapping[str, str] | None = None) -> ProviderResponse:
        """Send a form, or without one a GET request."""
        try:
            status, content = _within(self._seconds, lambda: self._read(url, form))
        except (TimeoutError, httpx2.TransportError) as error:
            is_timeout = isinstance(error, TimeoutError)
            late = f"no complete response within {self._seconds:g} s"
            reason = late if is_timeout else str(error) or type(error).__name__
            raise CommandError(f"The identity provider at {url} does not answer: {reason}", OUT_OF_REACH) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise CommandError(f"The identity provider at {url} cannot be reached: {error}") from None
        try:
            fields = msgspec.json.decode(content, type=dict[str, Any])
        except NOT_JSON:
            fields = {}
        return ProviderResponse(status, fields)

    def _read(self, url: str, form: Mapping[str, str] | None) -> tuple[int, bytes]:
        ends, method = time.monotonic() + self._seconds, "GET" if form is None else "POST"
        with self._http.stream(method, url, data=form, headers={"Accept": "application/json"}) as response:
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _MOST_BYTES:
                    raise CommandError(f"{url} answers with more than {_MOST_BYTES // 1024} KiB.")
                if time.monotonic() > ends:
                    raise TimeoutError  # the caller no longer waits
        return response.status_code, bytes(content)


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Call a function in a thread. Raises its errors, and `TimeoutError` when the seconds are over.

    Nothing else bounds a DNS lookup, or a response that arrives byte by byte.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)


def checked_endpoint(endpoint: str, source: str) -> str:
    """Return an endpoint, which may have a query (RFC 6749, 3.1). Raises `CommandError` for an unsafe one."""
    if not is_plain(endpoint):
        raise CommandError(f"{source}: {endpoint!a} is no http address.")
    checked_address(endpoint.partition("?")[0], source)
    return endpoint


def token_of(response: ProviderResponse) -> Token:
    """Return the tokens of a token response (RFC 6749, 5.1), unchecked. Raises `CommandError` without tokens."""
    fields = response.fields
    access_token, refresh_token = fields.get("access_token"), fields.get("refresh_token")
    if response.status != HTTPStatus.OK or not isinstance(access_token, str) or not access_token:
        raise CommandError(f"The identity provider gave no token: {response.reason}.", NOT_AUTHENTICATED)
    if str(fields.get("token_type", "")).lower() != "bearer":
        raise CommandError("The identity provider gave a token that is not a bearer token.", NOT_AUTHENTICATED)
    expires_in = fields.get("expires_in")
    is_number = isinstance(expires_in, int | float) and not isinstance(expires_in, bool)
    lifetime = max(0.0, float(expires_in or 0)) if is_number else 0.0
    refresh = Secret(refresh_token) if isinstance(refresh_token, str) and refresh_token else None
    return Token(Secret(access_token), time.time() + lifetime if lifetime else None, refresh, lifetime or None)


def checked_token(token: Token) -> Token:
    """Return a token that a header can carry. Raises `CommandError` for any other."""
    text = token.access_token.reveal().strip()
    if not text or not is_plain(text):
        raise CommandError("The identity provider gave a token with invalid characters.", NOT_AUTHENTICATED)
    return msgspec.structs.replace(token, access_token=Secret(text))
