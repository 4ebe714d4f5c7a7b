"""Signing in from a terminal: with a browser on this machine, or with a code on another device."""

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
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from tenantry.cli.exit_codes import NOT_AUTHENTICATED, OUT_OF_REACH, CommandError
from tenantry.cli.sign_in_provider import Answer, Provider, checked_address_of_endpoint, token_of
from tenantry.cli.text import printable
from tenantry_sdk import Token

_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_MOST_FIELDS: Final = 30
_SECRETS: Final = re.compile(
    r"(?:TENANTRY|DATABASE)_.*|.*(?:SECRET|PASSW|PASSPHRASE|PEPPER|CREDENTIAL).*|(?:.*_)?(?:KEY|TOKEN)S?(?:_.*)?",
    re.IGNORECASE,
)
"""Variables of such names are no business of a browser's."""
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>tenantry</title>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""
_DONE: Final = _PAGE.format(title="Go back to the terminal", text="It has the answer. This page can be closed.")
_FOREIGN: Final = _PAGE.format(title="Not an answer that was asked for", text="Nothing was done with it.")
_HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}

Fields = dict[str, str]


def sign_in_with_browser(
    provider: Provider, scope: str, *, port: int, opens: bool, patience: float, tell: Callable[[str], None]
) -> Token:
    """The tokens of whoever signs in within ``patience`` seconds. Raises `CommandError`.

    The address of the sign-in is told in any case; the browser ``opens`` where that is wanted. Port 0 is a free one.
    """
    endpoint = provider.metadata.authorization_endpoint
    if endpoint is None:
        raise CommandError(f"{provider.issuer} has no sign-in for browsers.")
    state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with _listening(state, port) as (redirect_uri, answers):
        asked = {
            "response_type": "code",
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **provider.wishes(scope),
        }
        url = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"
        if opens:
            _open(url)
        tell(f"{'Your browser opens. If it does not, open' if opens else 'Open'} this address:\n\n{url}\n")
        try:
            answer = answers.get(timeout=patience)
        except queue.Empty:
            raise CommandError(f"Nobody signed in within {patience:.0f} s.", NOT_AUTHENTICATED) from None
    code = _code_of(answer, provider)
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
    return token_of(provider.token(form))


def _open(url: str) -> None:
    """Start the browser and leave it alone: it may come back only when it is closed, and say a lot until then.

    It gets none of our streams, for whoever reads them would wait for it, and none of our secrets. Everybody on the
    machine may see the address: it asks for a sign-in, and the answer is of use only with the verifier.
    """
    environment = {name: value for name, value in os.environ.items() if not _SECRETS.fullmatch(name)}
    # -I: what lies in the folder is not run
    command = [sys.executable, "-I", "-m", "webbrowser", url]
    silent = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # the address is told in any case
        subprocess.Popen(  # noqa: S603  # ours, and no shell
            command, env=environment, stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )


def _code_of(answer: Fields, provider: Provider) -> str:
    """The code in an answer whose state is right (RFC 6749, 4.1.2; RFC 9207)."""
    issuer = answer.get("iss")
    if issuer != provider.issuer and (
        issuer is not None or provider.metadata.authorization_response_iss_parameter_supported
    ):
        raise CommandError("The answer is not the identity provider's own.", NOT_AUTHENTICATED)
    if "error" in answer:
        reason = printable(answer.get("error_description") or answer["error"])[:300]
        raise CommandError(f"The identity provider did not sign you in: {reason}", NOT_AUTHENTICATED)
    if not answer.get("code"):
        raise CommandError("The identity provider's answer holds no code.", NOT_AUTHENTICATED)
    return answer["code"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: whoever connects and goes away is no concern of the one at the terminal."""


@contextmanager
def _listening(state: str, port: int) -> Iterator[tuple[str, "queue.SimpleQueue[Fields]"]]:
    """The redirect address, and the answers with this state that come there; all others are turned away."""
    answers: queue.SimpleQueue[Fields] = queue.SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                parts = urlsplit(self.path)
            except ValueError:
                self._show(HTTPStatus.BAD_REQUEST, _FOREIGN)
                return
            if parts.path != _PATH:
                self._show(HTTPStatus.NOT_FOUND, _FOREIGN)
                return
            fields = _fields(parts.query)
            if not hmac.compare_digest(fields.get("state", "").encode(), state.encode()):
                self._show(HTTPStatus.BAD_REQUEST, _FOREIGN)
                return
            try:
                self._show(HTTPStatus.OK, _DONE)
            finally:  # the answer counts, whether or not whoever brought it stays for the page
                answers.put(fields)

        def _show(self, status: HTTPStatus, page: str) -> None:
            content = page.encode()
            self.send_response_only(status)
            for name, value in {**_HEADERS, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name that it has
            """Nothing: what is asked for holds a code."""

    try:
        server = _Server((_HOST, port), Handler)
    except OSError as error:
        raise CommandError(f"Port {port} of {_HOST} cannot be listened on: {error.strerror}.") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{_HOST}:{server.server_address[1]}{_PATH}", answers
    finally:
        server.shutdown()
        server.server_close()


def _fields(query: str) -> Fields:
    """The parameters; none where one is there twice or there are too many."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        return {}
    return dict(pairs) if len({name for name, _ in pairs}) == len(pairs) else {}


_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
EXPIRED: Final = "The code has expired before anybody entered it. Try again."
_INTERVAL: Final = 5.0
_MINUTE: Final = 60
_SLOWER: Final = 5.0
_LONGEST_INTERVAL: Final = 60.0
_OK: Final = 200
_TOO_MANY: Final = 429
_IN_TROUBLE: Final = 500
_LATER: Final = {"temporarily_unavailable", "server_error"}


class Started(msgspec.Struct, frozen=True):
    """What the device authorization endpoint answers (RFC 8628, 3.2). Times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    verification_uri_complete: str | None = None
    interval: float = _INTERVAL


class Polling:
    """When to ask for the token, and what the answers mean (RFC 8628, 3.4 and 3.5). It asks nobody itself."""

    def __init__(self, interval: float, ends: float, over: str, shortest: float) -> None:
        """``over`` is what is said where it ``ends`` without a token; ``shortest`` bounds the interval from below."""
        self._interval = min(max(interval, shortest), _LONGEST_INTERVAL)
        self._ends = ends
        self._over = over
        self._has_waited = False

    def wait(self, now: float) -> float:
        """Seconds until the next question, of which there is one in any case. Raises `CommandError` at the end."""
        if now + self._interval < self._ends:
            self._has_waited = True
            return self._interval
        if self._has_waited:
            raise CommandError(self._over, NOT_AUTHENTICATED)
        self._has_waited = True
        return max(0.0, self._ends - now)

    def lost(self) -> None:
        """There was no answer, or the provider has too much to do: ask more rarely."""
        self._interval = min(self._interval * 2, _LONGEST_INTERVAL)

    def after(self, answer: Answer) -> Token | None:
        """The tokens, or nothing where it is to be asked again. Raises `CommandError`."""
        match answer.error:
            case "authorization_pending":
                pass
            case "slow_down":
                self._interval = min(self._interval + _SLOWER, _LONGEST_INTERVAL)
            case "access_denied":
                raise CommandError("The sign-in was denied.", NOT_AUTHENTICATED)
            case "expired_token":
                raise CommandError(EXPIRED, NOT_AUTHENTICATED)
            case error if answer.status >= _IN_TROUBLE or answer.status == _TOO_MANY or error in _LATER:
                self.lost()
            case _:
                return token_of(answer)
        return None


def sign_in_with_code(
    provider: Provider, scope: str, *, patience: float, tell: Callable[[str], None], poll: float
) -> Token:
    """Show a code, and return the tokens of the user who enters it. Raises `CommandError`.

    ``poll`` is the minimum interval in seconds between two requests, whatever the identity provider allows.
    """
    started = _started(provider, scope)
    seconds = min(started.expires_in, patience)
    over = EXPIRED if started.expires_in <= patience else f"Nobody entered the code within {patience:.0f} s."
    tell(_instructions(started, seconds))
    polling = Polling(started.interval, time.monotonic() + seconds, over, poll)
    while True:
        time.sleep(polling.wait(time.monotonic()))
        try:
            answer = provider.token({"grant_type": _GRANT, "device_code": started.device_code})
        except CommandError as error:
            if error.code != OUT_OF_REACH:
                raise
            polling.lost()
            continue
        if (token := polling.after(answer)) is not None:
            return token


def _started(provider: Provider, scope: str) -> Started:
    endpoint = provider.metadata.device_authorization_endpoint
    if endpoint is None:
        raise CommandError(f"{provider.issuer} has no sign-in with a code. Leave --device out.")
    answer = provider.post(endpoint, provider.wishes(scope))
    if answer.status != _OK:
        raise CommandError(f"The identity provider gave no code: {answer.reason}.", NOT_AUTHENTICATED)
    fields: dict[str, Any] = answer.fields
    try:
        started = msgspec.convert(fields, Started)
    except msgspec.ValidationError as error:
        raise CommandError(f"{endpoint} does not answer as RFC 8628 says: {error}") from None
    for address in (started.verification_uri, started.verification_uri_complete):
        if address is not None:
            checked_address_of_endpoint(address, f"{endpoint}, verification_uri")
    return started


def _instructions(started: Started, seconds: float) -> str:
    lines = [f"Open {printable(started.verification_uri)} on any device, and enter the code", ""]
    lines += [f"    {printable(started.user_code)[:64]}", ""]
    if started.verification_uri_complete:
        lines += [f"or open {printable(started.verification_uri_complete)}", ""]
    shown = f"{seconds // 60:.0f} min" if seconds >= _MINUTE else f"{max(0.0, seconds):.0f} s"
    return "\n".join([*lines, f"It is good for {shown}. Waiting ..."])
