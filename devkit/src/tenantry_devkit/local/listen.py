"""``tenantry listen``: relay the payment provider's events to this machine."""

import asyncio
import logging
import signal
import sys
from collections import Counter
from contextlib import aclosing
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.database import admin_settings, exit_code, local_values
from tenantry.common import logs
from tenantry.common.clock import from_epoch, system_clock
from tenantry.common.process import is_deaf_to_hangup
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.client import ProviderApi, mode_of_key
from tenantry.settings import Settings, read_environment
from tenantry_cli.options import json_option
from tenantry_cli.output import CommandError, counted, json_text, printable, say, shown
from tenantry_devkit.local.endpoint import (
    BAD_SIGNATURE,
    TIMEOUT,
    WEBHOOK_SECRET,
    Endpoint,
    service_address,
    signing_secret,
)
from tenantry_devkit.local.relay import ProviderEventFeed, Relay, RelayAttempt, RelayOutcome

_PROVIDER_KEY: Final = Settings.provider_secret_key.name
_STYLES: Final = {RelayOutcome.DELIVERED: "green", RelayOutcome.RETRYING: "yellow"}
_LONGEST_ANSWER: Final = 300
_MODES: Final = {True: " (live mode)", False: " (test mode)", None: ""}
_WRONG_SECRET: Final = (
    "The service checks signatures with another secret. Start it with\n"
    f'  {WEBHOOK_SECRET}="$(tenantry listen --print-secret)"'
)


@click.command("listen")
@click.option(
    "--forward-to",
    metavar="ADDRESS",
    help="The receiver: an address, host:port, or a port. Default: the service here.",
)
@click.option(
    "--print-secret", is_flag=True, help="Only print the signing secret, alone, on stdout."
)
@json_option("One JSON document a line for each delivery.")
def listen(*, forward_to: str | None, print_secret: bool, as_json: bool) -> None:
    """Relay the payment provider's events to a service on this machine.

    The command reads the provider's list of events with PROVIDER_SECRET_KEY at PROVIDER_API_BASE
    (by default the running demo's). It forwards new events of the types that tenantry handles,
    signed with a secret that stays the same on this machine. Start the service with that secret:

    \b
      PROVIDER_WEBHOOK_SECRET="$(tenantry listen --print-secret)" tenantry serve
      tenantry listen --forward-to 4000

    Events arrive in order. They wait while the service accepts no connections; failed requests are
    repeated. Rejected events (4xx) are printed and skipped. Ctrl-C ends the relay with a summary.

    Exits with 0 if the service accepted every event, else with 1; with 4 if the provider rejects
    the key, and with 6 if the provider is unreachable at the start.
    """
    values = _values()
    secret = signing_secret(values)
    if print_secret:
        click.echo(secret.reveal())
        return
    # the relay prints the warnings of the provider's client itself
    logs.configure("console", logging.ERROR)
    address, settings = service_address(values, forward_to), admin_settings(values)
    if settings.provider_secret_key is None:
        raise CommandError(
            "PROVIDER_SECRET_KEY is not set: it is needed to read the provider's list of events."
        )
    mode = _MODES[mode_of_key(settings.provider_secret_key)]
    introduction = (
        f"listening to   {settings.provider_api_base}{mode}\n"
        f"events         the {len(HANDLED_TYPES)} types that are handled\n"
        f"forwarding to  {address}\n"
        f"signing with   {secret.reveal()}\n"
    )
    provider = ProviderApi(settings.provider_secret_key, settings.provider_api_base)
    try:
        code = asyncio.run(_relay(provider, address, secret, introduction, as_json=as_json))
    except (ProviderRefusedError, ProviderUnavailableError) as error:
        raise CommandError(error.detail, exit_code(error)) from None
    sys.exit(code)


def _values() -> dict[str, str]:
    """Return the settings of the relay: those of the environment, or of a demo.

    A provider's key that is set for this command goes before a demo's; that of a `.env` file does
    not.
    """
    values, is_demo = local_values()
    environment = read_environment({})
    if is_demo and environment.get(_PROVIDER_KEY, "").strip():
        for name in (_PROVIDER_KEY, Settings.provider_api_base.name):
            values[name] = environment.get(name, "")
    return values


async def _relay(
    provider: ProviderApi, address: str, secret: Secret, introduction: str, *, as_json: bool
) -> int:
    """Relay until a signal; return the exit code.

    Raises `ProviderRefusedError`, and `ProviderUnavailableError` at the start.
    """
    _cancel_on_signals()
    async with aclosing(provider), new_http_client(TIMEOUT) as client:
        feed = ProviderEventFeed(provider, HANDLED_TYPES)
        relay = Relay(feed, Endpoint(client, address, secret), _RelayPrinter(as_json=as_json))
        try:
            await feed.begin()
            say(introduction)
            await relay.run()
        except asyncio.CancelledError:
            say(summary(relay.received, relay.outcomes))
        return 0 if relay.outcomes[RelayOutcome.DELIVERED] == relay.received else 1


def _cancel_on_signals() -> None:
    """Let SIGINT, SIGTERM and the end of the terminal cancel the current task."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # called in one
    numbers = [signal.SIGINT, signal.SIGTERM]
    if not is_deaf_to_hangup():
        numbers.append(signal.SIGHUP)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


class _RelayPrinter:
    """Prints the attempts and notices of a relay."""

    def __init__(self, *, as_json: bool) -> None:
        self._line_of = json_line if as_json else attempt_line
        self._stdout = Console(highlight=False)
        self._has_hinted = False

    def notice(self, text: str) -> None:
        say(text)

    def attempted(self, attempt: RelayAttempt) -> None:
        self._stdout.print(self._line_of(attempt), soft_wrap=True)
        if attempt.response.text == BAD_SIGNATURE and not self._has_hinted:
            self._has_hinted = True
            self.notice(_WRONG_SECRET)


def attempt_line(attempt: RelayAttempt) -> Text:
    """Format an attempt: the time, the status, the event, and what was wrong."""
    event, response = attempt.event.facts, attempt.response
    style = _STYLES.get(attempt.outcome, "bold red")
    duration = "" if response.status is None else f"{response.milliseconds:,} ms"
    about = (event.id, event.org_id, event.customer_id)
    line = Text.assemble(
        f"{system_clock().astimezone():%H:%M:%S}  ",
        (f"{response.status or '---'}", style),
        f"  {duration:>8}  {printable(event.type)}  ",
        ("  ".join(map(printable, filter(None, about))), "dim"),
    )
    if attempt.outcome is not RelayOutcome.DELIVERED:
        line.append(f"  {_problem(attempt)}", style)
    return line


def _problem(attempt: RelayAttempt) -> str:
    answer = printable(" ".join(attempt.response.text.split()))[:_LONGEST_ANSWER] or "(no text)"
    if attempt.outcome is RelayOutcome.RETRYING:
        return f"{answer}; trying again"
    if attempt.outcome is RelayOutcome.GIVEN_UP:
        return f"{answer}; given up after {attempt.number} tries"
    return answer


def json_line(attempt: RelayAttempt) -> Text:
    event, response = attempt.event.facts, attempt.response
    line = {
        "time": shown(system_clock()),
        "id": event.id,
        "type": event.type,
        "created": shown(from_epoch(event.created)),
        "tenantId": event.org_id,
        "customer": event.customer_id,
        "outcome": attempt.outcome,
        "attempt": attempt.number,
        "status": response.status,
        "milliseconds": response.milliseconds,
        "answer": response.text,
    }
    return Text(json_text(msgspec.json.encode(line)))


def summary(received: int, outcomes: Counter[RelayOutcome]) -> str:
    counts = {
        "delivered": outcomes[RelayOutcome.DELIVERED],
        "refused": outcomes[RelayOutcome.REFUSED],
        "given up": outcomes[RelayOutcome.GIVEN_UP],
        "not delivered yet": received - outcomes.total(),
    }
    parts = (
        f"{number:,} {what}" for what, number in counts.items() if number or what == "delivered"
    )
    return f"{counted(received, 'event')}: {', '.join(parts)}"
