"""Sign-in from a terminal: with a browser on this machine, or with a code on another device."""

import base64
import contextlib
import hashlib
import hmac
import os
import queue
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from tenantry.cli.output import NOT_AUTHENTICATED, OUT_OF_REACH, CommandError, printable
from tenantry.cli.sign_in_provider import IdentityProvider, ProviderResponse, checked_endpoint, token_of
from tenantry_sdk import Token

_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_SECRETS: Final = re.compile(
    r"(?:TENANTRY|DATABASE)_.*|.*(?:SECRET|PASSW|PASSPHRASE|PEPPER|CREDENTIAL).*|(?:.*_)?(?:KEY|TOKEN)S?(?:_.*)?",
    re.IGNORECASE,
)
"""Variables that the browser's process must not get."""
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>tenantry</title>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""
_DONE: Final = _PAGE.format(title="Go back to the terminal", text="You can close this page.")
_UNEXPECTED: Final = _PAGE.format(title="Unexpected response", text="The request is not part of this sign-in.")
_HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}

CODE_EXPIRED: Final = "The code expired before it was entered. Try again."
_MINUTE: Final = 60.0
_TEMPORARY: Final = {"temporarily_unavailable", "server_error"}
_TEMPORARY_STATUSES: Final = {429, *range(500, 600)}

Fields = dict[str, str]


def sign_in_with_browser(
    provider: IdentityProvider, scope: str, *, port: int, opens: bool, timeout: float, tell: Callable[[str], None]
) -> Token:
    """Wait up to ``timeout`` seconds for a user to sign in; return the tokens. Raises `CommandError`.

    Tells the address, and also opens the browser if ``opens``. Port 0 is any free port.
    """
    endpoint = provider.metadata.authorization_endpoint
    if endpoint is None:
        raise CommandError(f"{provider.issuer} has no sign-in for browsers.")
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with _listening(state, port) as (redirect_uri, responses):
        parameters = {
            "response_type": "code",
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **provider.token_parameters(scope),
        }
        url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(parameters)}"
        if opens:
            _open(url)
        tell(f"{'Your browser opens. If it does not, open' if opens else 'Open'} this address:\n\n{url}\n")
        try:
            response = responses.get(timeout=timeout)
        except queue.Empty:
            raise CommandError(f"The sign-in was not completed within {timeout:.0f} s.", NOT_AUTHENTICATED) from None
    code = _code_of(response, provider)
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
    return token_of(provider.token(form))


def _open(url: str) -> None:
    """Start the browser in the background, without our streams and without secrets.

    Other users of the machine can see the address, but the response is useless without the verifier.
    """
    environment = {name: value for name, value in os.environ.items() if not _SECRETS.fullmatch(name)}
    command = [sys.executable, "-I", "-m", "webbrowser", url]  # -I: do not import from the current folder
    silent = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # the user can open the address
        subprocess.Popen(  # noqa: S603  # ours, and no shell
            command, env=environment, stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )


def _code_of(response: Fields, provider: IdentityProvider) -> str:
    """Return the code of a response with the right state (RFC 6749, 4.1.2; RFC 9207)."""
    names_issuer = provider.metadata.authorization_response_iss_parameter_supported or "iss" in response
    if names_issuer and response.get("iss") != provider.issuer:
        raise CommandError("The response is not from the identity provider.", NOT_AUTHENTICATED)
    if "error" in response:
        reason = printable(response.get("error_description") or response["error"])[:300]
        raise CommandError(f"The identity provider did not sign you in: {reason}", NOT_AUTHENTICATED)
    if not response.get("code"):
        raise CommandError("The identity provider's response has no code.", NOT_AUTHENTICATED)
    return response["code"]


class _CallbackServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that closes the connection."""


@contextmanager
def _listening(state: str, port: int) -> Iterator[tuple[str, "queue.SimpleQueue[Fields]"]]:
    """Give the redirect address, and a queue of the responses with this state; rejects all other requests."""
    responses: queue.SimpleQueue[Fields] = queue.SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            fields = _fields(query)
            if path != _PATH:
                self._show(HTTPStatus.NOT_FOUND, _UNEXPECTED)
            elif not hmac.compare_digest(fields.get("state", "").encode(), state.encode()):
                self._show(HTTPStatus.BAD_REQUEST, _UNEXPECTED)
            else:
                try:
                    self._show(HTTPStatus.OK, _DONE)
                finally:  # the response counts even if the browser does not wait for the page
                    responses.put(fields)

        def _show(self, status: HTTPStatus, page: str) -> None:
            content = page.encode()
            self.send_response_only(status)
            for name, value in {**_HEADERS, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            """Log nothing: the request holds a code."""

    try:
        server = _CallbackServer((_HOST, port), Handler)
    except OSError as error:
        raise CommandError(f"Cannot listen on port {port} of {_HOST}: {error.strerror}.") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{_HOST}:{server.server_address[1]}{_PATH}", responses
    finally:
        server.shutdown()
        server.server_close()


def _fields(query: str) -> Fields:
    """Parse a query; a malformed one, or one with a repeated name, has no fields."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=30)
    except ValueError:
        return {}
    return dict(pairs) if len({name for name, _ in pairs}) == len(pairs) else {}


class DeviceAuthorization(msgspec.Struct, frozen=True):
    """The response of the device authorization endpoint (RFC 8628, 3.2). Times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str | None = None
    interval: float = 5.0


class DevicePolling:
    """Decides when to poll the token endpoint, and what a response means (RFC 8628, 3.4 and 3.5). Does no I/O."""

    def __init__(self, interval: float, ends: float, timeout_message: str, shortest: float) -> None:
        """``timeout_message`` is the error when it ``ends`` without a token; ``shortest`` is the least interval."""
        self._interval = min(max(interval, shortest), _MINUTE)
        self._ends = ends
        self._timeout_message = timeout_message
        self._has_waited = False

    def wait(self, now: float) -> float:
        """Return the seconds until the next poll; there is at least one. Raises `CommandError` at the end."""
        if now + self._interval >= self._ends and self._has_waited:
            raise CommandError(self._timeout_message, NOT_AUTHENTICATED)
        self._has_waited = True
        return self._interval if now + self._interval < self._ends else max(0.0, self._ends - now)

    def slow_down(self) -> None:
        """Poll less often: there was no response, or the provider is overloaded."""
        self._interval = min(self._interval * 2, _MINUTE)

    def token(self, response: ProviderResponse) -> Token | None:
        """Return the tokens, or None to poll again. Raises `CommandError`."""
        match response.error:
            case "authorization_pending":
                pass
            case "slow_down":
                self._interval = min(self._interval + 5, _MINUTE)
            case "access_denied":
                raise CommandError("The sign-in was denied.", NOT_AUTHENTICATED)
            case "expired_token":
                raise CommandError(CODE_EXPIRED, NOT_AUTHENTICATED)
            case error if error in _TEMPORARY or response.status in _TEMPORARY_STATUSES:
                self.slow_down()
            case _:
                return token_of(response)
        return None


def sign_in_with_code(
    provider: IdentityProvider, scope: str, *, timeout: float, tell: Callable[[str], None], poll: float
) -> Token:
    """Show a code, and return the tokens of the user who enters it. Raises `CommandError`.

    ``poll`` is the minimum interval in seconds between two requests, whatever the identity provider allows.
    """
    device = _authorize_device(provider, scope)
    seconds = min(device.expires_in, timeout)
    message = CODE_EXPIRED if device.expires_in <= timeout else f"The code was not entered within {timeout:.0f} s."
    tell(_instructions(device, seconds))
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": device.device_code}
    polling = DevicePolling(device.interval, time.monotonic() + seconds, message, poll)
    while True:
        time.sleep(polling.wait(time.monotonic()))
        try:
            response = provider.token(form)
        except CommandError as error:
            if error.code != OUT_OF_REACH:
                raise
            polling.slow_down()
            continue
        if (token := polling.token(response)) is not None:
            return token


def _authorize_device(provider: IdentityProvider, scope: str) -> DeviceAuthorization:
    endpoint = provider.metadata.device_authorization_endpoint
    if endpoint is None:
        raise CommandError(f"{provider.issuer} has no sign-in with a code. Omit --device.")
    response = provider.request(endpoint, provider.token_parameters(scope))
    if response.status != HTTPStatus.OK:
        raise CommandError(f"The identity provider gave no code: {response.reason}.", NOT_AUTHENTICATED)
    try:
        device = msgspec.convert(response.fields, DeviceAuthorization)
    except msgspec.ValidationError as error:
        raise CommandError(f"The response of {endpoint} does not follow RFC 8628: {error}") from None
    for address in (device.verification_uri, device.verification_uri_complete):
        if address is not None:
            checked_endpoint(address, f"{endpoint}, verification_uri")
    return device


def _instructions(device: DeviceAuthorization, seconds: float) -> str:
    complete = device.verification_uri_complete
    direct = f"or open {printable(complete)}\n\n" if complete else ""
    duration = f"{seconds // 60:.0f} min" if seconds >= _MINUTE else f"{max(0.0, seconds):.0f} s"
    return (
        f"Open {printable(device.verification_uri)} on any device, and enter the code\n\n"
        f"    {printable(device.user_code)[:64]}\n\n{direct}It is good for {duration}. Waiting ..."
    )
