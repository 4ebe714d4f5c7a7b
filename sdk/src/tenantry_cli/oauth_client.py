"""An OAuth client without a secret: signs in with a browser or with a code on another device, and
revokes tokens.
"""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlencode

import msgspec

from tenantry_cli.browser import open_browser
from tenantry_cli.client_configuration import checked_address
from tenantry_cli.demo_folder import is_loopback_url
from tenantry_cli.output import FAILED, NOT_AUTHENTICATED, OUT_OF_REACH, CommandError, printable
from tenantry_sdk import RefreshToken, Secret, Token, oauth
from tenantry_sdk._encoding import NOT_JSON
from tenantry_sdk.errors import ConnectionFailedError, TenantryError

_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_PAGE: Final = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>tenantry</title>'
    b"<h1>Go back to the terminal. You can close this page.</h1></html>\n"
)
_CODE_EXPIRED: Final = "The code expired before it was entered. Try again."
_ENDS: Final = {"access_denied": "The sign-in was denied.", "expired_token": _CODE_EXPIRED}
_MINUTE: Final = 60.0
_TEMPORARY: Final = {"temporarily_unavailable", "server_error"}
_TEMPORARY_STATUSES: Final = {429, *range(500, 600)}

T = TypeVar("T")
Fields = dict[str, str]


class ProviderMetadata(msgspec.Struct, frozen=True):
    """An issuer's discovery document (OpenID Connect Discovery, RFC 8414)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None
    authorization_response_iss_parameter_supported: bool = False


def reason_in(fields: Mapping[str, Any]) -> str:
    """Return the reason in an error response (RFC 6749, 4.1.2.1); empty without one."""
    return printable(str(fields.get("error_description") or fields.get("error") or ""))[:300]


class ProviderResponse(NamedTuple):
    """An endpoint's response."""

    status: int
    content: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON object; empty if the response is none."""
        try:
            return msgspec.json.decode(self.content, type=dict[str, Any])
        except NOT_JSON:
            return {}

    def parse(self, kind: type[T], fault: str) -> T:
        """Return the object as ``kind``. Raises `CommandError`, whose message begins with
        ``fault``.
        """
        try:
            return msgspec.convert(self.fields, kind)
        except msgspec.ValidationError as error:
            raise CommandError(f"{fault}: {error}") from None

    @property
    def reason(self) -> str:
        return f"{self.status}, {reason_in(self.fields) or 'an unreadable response'}"


class IdentityProvider:
    """An identity provider as a public client uses it. Every method raises `CommandError`.

    Each response may take ``seconds``. With ``local_only`` every endpoint must be on this machine.
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        audience: str | None = None,
        *,
        seconds: float,
        local_only: bool = False,
    ) -> None:
        checked_address(issuer, "The issuer")
        self.issuer = issuer
        self.client: Fields = {"client_id": client_id}
        """The parameters of every request for tokens: client and audience, which RFC 8707 calls
        ``resource``.
        """
        if audience:
            self.client |= {"audience": audience, "resource": audience}
        self._local_only = local_only
        self._http = oauth.IdentityProviderClient(timeout=seconds)

    @cached_property
    def metadata(self) -> ProviderMetadata:
        metadata = self._fetch_metadata()
        if metadata.issuer != self.issuer:
            raise CommandError(
                f"{self.issuer} calls itself {printable(metadata.issuer)}: the two must be equal."
            )
        for name, endpoint in msgspec.structs.asdict(metadata).items():
            if name.endswith("_endpoint") and endpoint is not None:
                self._check_endpoint(name, endpoint)
        return metadata

    def _fetch_metadata(self) -> ProviderMetadata:
        response = self.request(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
        fault = f"{self.issuer} has no valid OpenID discovery document"
        return response.parse(ProviderMetadata, fault)

    def _check_endpoint(self, name: str, endpoint: str) -> None:
        checked_address(
            endpoint,
            f"{self.issuer}, {name}",
            FAILED,
            allow_query=True,
        )
        if self._local_only and not is_loopback_url(endpoint):
            raise CommandError(
                f"{self.issuer} is on this machine, but its {name} is not: {endpoint}"
            )

    def grant(self, form: Fields) -> ProviderResponse:
        """Send a grant to the token endpoint."""
        return self.request(self.metadata.token_endpoint, {**form, **self.client})

    def token_in(self, response: ProviderResponse) -> Token:
        """Return the tokens of a response to a grant (RFC 6749, 5.1)."""
        grant = RefreshToken(issuer=self.issuer, client_id=self.client["client_id"])
        try:
            return oauth.read_token(grant, response.status, response.content)
        except TenantryError as error:
            raise CommandError(str(error), NOT_AUTHENTICATED) from None

    def revoke(self, refresh_token: Secret) -> bool:
        """Revoke a refresh token (RFC 7009); return whether this provider supports that."""
        if self.metadata.revocation_endpoint is None:
            return False
        form = {"token": refresh_token.reveal(), "token_type_hint": "refresh_token"}
        response = self.request(
            self.metadata.revocation_endpoint, {**form, "client_id": self.client["client_id"]}
        )
        if response.status != HTTPStatus.OK:
            raise CommandError(f"The identity provider answered {response.reason}.")
        return True

    def close(self) -> None:
        self._http.close()

    def request(self, url: str, form: Mapping[str, str] | None = None) -> ProviderResponse:
        """Send a form, or without one a GET request."""
        try:
            response = self._http.request(url, form)
        except ConnectionFailedError as error:
            raise CommandError(str(error), OUT_OF_REACH) from None
        return ProviderResponse(response.status_code, response.content)


def sign_in_with_browser(
    provider: IdentityProvider,
    scope: str,
    *,
    port: int,
    opens: bool,
    timeout: float,
    tell: Callable[[str], None],
) -> Token:
    """Wait up to ``timeout`` seconds for a user to sign in; return the tokens. Raises
    `CommandError`.

    Tells the address, and also opens the browser if ``opens``. Port 0 is any free port.
    """
    endpoint = provider.metadata.authorization_endpoint
    if endpoint is None:
        raise CommandError(f"{provider.issuer} has no sign-in for browsers.")
    state = secrets.token_urlsafe(32)
    verifier = secrets.token_urlsafe(48)
    with _CallbackServer(state, port) as server:
        parameters = {
            "response_type": "code",
            "redirect_uri": server.redirect_uri,
            "state": state,
            "code_challenge": _code_challenge(verifier),
            "code_challenge_method": "S256",
            "scope": scope,
            **provider.client,
        }
        url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"
        if opens:
            open_browser(url)
        tell(
            f"{'Your browser opens. If it does not, open' if opens else 'Open'} this address:\n\n{url}\n"
        )
        response = server.wait(timeout)
    form = {
        "grant_type": "authorization_code",
        "code": _code_of(response, provider),
        "code_verifier": verifier,
    }
    return provider.token_in(provider.grant({**form, "redirect_uri": server.redirect_uri}))


def _code_challenge(verifier: str) -> str:
    """Return the challenge of a verifier (RFC 7636, 4.2)."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _code_of(response: Fields, provider: IdentityProvider) -> str:
    """Return the code of a response with the right state (RFC 6749, 4.1.2; RFC 9207)."""
    names_issuer = (
        provider.metadata.authorization_response_iss_parameter_supported or "iss" in response
    )
    if names_issuer and response.get("iss") != provider.issuer:
        raise CommandError("The response is not from the identity provider.", NOT_AUTHENTICATED)
    if "error" in response:
        raise CommandError(
            f"The identity provider did not sign you in: {reason_in(response)}", NOT_AUTHENTICATED
        )
    if not response.get("code"):
        raise CommandError("The identity provider's response has no code.", NOT_AUTHENTICATED)
    return response["code"]


class _CallbackServer(ThreadingHTTPServer):
    """Listens for the response with this state, and rejects all other requests."""

    timeout = 0.1

    def __init__(self, state: str, port: int) -> None:
        self.state = state
        self.responses: list[Fields] = []
        try:
            super().__init__((_HOST, port), _CallbackHandler)
        except OSError as error:
            raise CommandError(
                f"Cannot listen on port {port} of {_HOST}: {error.strerror}."
            ) from None
        self.redirect_uri = f"http://{_HOST}:{self.server_address[1]}{_PATH}"

    def wait(self, seconds: float) -> Fields:
        """Return the response's parameters. Raises `CommandError` if it does not come in time."""
        ends = time.monotonic() + seconds
        while not self.responses and time.monotonic() < ends:
            self.handle_request()
        if not self.responses:
            raise CommandError(
                f"The sign-in was not completed within {seconds:.0f} s.", NOT_AUTHENTICATED
            )
        return self.responses[0]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that closes the connection."""


class _CallbackHandler(BaseHTTPRequestHandler):
    server: _CallbackServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        # a repeated name counts as missing (RFC 6749, 3.1)
        fields = {name: values[0] for name, values in parse_qs(query).items() if len(values) == 1}
        if path != _PATH:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not hmac.compare_digest(fields.get("state", "").encode(), self.server.state.encode()):
            self.send_error(
                HTTPStatus.BAD_REQUEST, explain="The request is not part of this sign-in."
            )
        else:
            try:
                self.send_response_only(HTTPStatus.OK)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(_PAGE)
            finally:  # the response counts even if the browser does not wait for the page
                self.server.responses.append(fields)

    def version_string(self) -> str:
        """Return the value of the Server header: the base class names the version of Python."""
        return "tenantry"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Log nothing: the request holds a code."""


class DeviceAuthorization(msgspec.Struct, frozen=True):
    """The response of the device authorization endpoint (RFC 8628, 3.2). Times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str | None = None
    interval: float = 5.0


def next_interval(interval: float, response: ProviderResponse) -> float:
    """Return the seconds to the next poll after a response without tokens (RFC 8628, 3.5).

    Raises `CommandError` for a final response.
    """
    error = str(response.fields.get("error"))
    if error == "authorization_pending":
        return interval
    if error == "slow_down":
        return min(interval + 5, _MINUTE)
    if error in _ENDS:
        raise CommandError(_ENDS[error], NOT_AUTHENTICATED)
    if error in _TEMPORARY or response.status in _TEMPORARY_STATUSES:
        return min(interval * 2, _MINUTE)
    raise CommandError(
        f"The identity provider issued no token: {response.reason}.", NOT_AUTHENTICATED
    )


def sign_in_with_code(
    provider: IdentityProvider,
    scope: str,
    *,
    timeout: float,
    tell: Callable[[str], None],
    poll: float,
) -> Token:
    """Show a code, and return the tokens of the user who enters it. Raises `CommandError`.

    ``poll`` is the minimum interval in seconds between two requests, whatever the identity provider
    allows.
    """
    device = _authorize_device(provider, scope)
    seconds = min(device.expires_in, timeout)
    message = _CODE_EXPIRED
    if timeout < device.expires_in:
        message = f"The code was not entered within {timeout:.0f} s."
    tell(_instructions(device, seconds))
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": device.device_code,
    }
    interval = min(max(device.interval, poll), _MINUTE)
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        time.sleep(min(interval, left))  # the last poll is at the end
        try:
            response = provider.grant(form)
        except CommandError:  # no response
            interval = min(interval * 2, _MINUTE)
            continue
        if response.status == HTTPStatus.OK:
            return provider.token_in(response)
        interval = next_interval(interval, response)
    raise CommandError(message, NOT_AUTHENTICATED)


def _authorize_device(provider: IdentityProvider, scope: str) -> DeviceAuthorization:
    endpoint = provider.metadata.device_authorization_endpoint
    if endpoint is None:
        raise CommandError(f"{provider.issuer} has no sign-in with a code. Omit --device.")
    response = provider.request(endpoint, {**provider.client, "scope": scope})
    if response.status != HTTPStatus.OK:
        raise CommandError(
            f"The identity provider gave no code: {response.reason}.", NOT_AUTHENTICATED
        )
    fault = f"The response of {endpoint} does not follow RFC 8628"
    device = response.parse(DeviceAuthorization, fault)
    for address in (device.verification_uri, device.verification_uri_complete):
        if address is not None:
            checked_address(
                address,
                f"{endpoint}, verification_uri",
                FAILED,
                allow_query=True,
            )
    return device


def _instructions(device: DeviceAuthorization, seconds: float) -> str:
    complete = device.verification_uri_complete
    direct = f"or open {complete}\n\n" if complete else ""
    duration = f"{seconds // 60:.0f} min" if seconds >= _MINUTE else f"{max(0.0, seconds):.0f} s"
    return (
        f"Open {device.verification_uri} on any device, and enter the code\n\n"
        f"    {printable(device.user_code)[:64]}\n\n{direct}It is good for {duration}. Waiting ..."
    )
