"""Signing in with a browser on any device, by a code that is typed there (RFC 8628)."""

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tenantry.cli.exit_codes import NOT_AUTHENTICATED, OUT_OF_REACH, CommandError
from tenantry.cli.sign_in.provider import Answer, Provider, checked_address_of_endpoint, token_of
from tenantry.cli.text import printable
from tenantry_sdk import Token

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


def sign_in(
    provider: Provider,
    scope: str,
    *,
    patience: float,
    tell: Callable[[str], None],
    poll: float,
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
