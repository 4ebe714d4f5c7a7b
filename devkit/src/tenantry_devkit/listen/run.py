"""``tenantry listen``: one session of relaying, and its output."""

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.database import command_values, exit_code, fail_on_settings
from tenantry.cli.output import counted, fail, json_text, printable, shown
from tenantry.common import logs
from tenantry.common.clock import from_epoch, system_clock
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.api import ProviderApi, mode_of_key
from tenantry.settings import Settings, SettingsError, load_for_admin, read_environment
from tenantry_devkit.local.endpoint import TIMEOUT, Endpoint, host_and_port, service_address, signing_secret
from tenantry_devkit.local.relay import (
    ALL_TYPES,
    Attempt,
    Child,
    Hearing,
    Outcome,
    Pace,
    Relay,
    Subscription,
    Tally,
    command_line,
    taking_connections,
)

_STYLES: Final = {
    Outcome.DELIVERED: "green",
    Outcome.REFUSED: "bold red",
    Outcome.RETRYING: "yellow",
    Outcome.GIVEN_UP: "bold red",
}
_BESIDE: Final = 110
"""Columns from which on an event's id stands beside its type, instead of below."""
_TYPE_WIDTH: Final = 31
_LONGEST_ANSWER: Final = 300


class DeliveryLines:
    """Writes each attempt: on a terminal in two lines that fit it, elsewhere in one that is easy to search."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, attempt: Attempt) -> None:
        """Write an attempt down."""
        event = attempt.event
        status = "---" if attempt.status is None else str(attempt.status)
        taken = "" if attempt.milliseconds is None else f"{attempt.milliseconds:,} ms"
        head = Text.assemble(
            (f"{attempt.at.astimezone():%H:%M:%S}", "dim"), "  ", (status, _STYLES[attempt.outcome]), f"{taken:>10}  "
        )  # fmt: skip
        indent = head.cell_len
        event_type, about = printable(event.type), Text(_about(attempt), "dim")
        more = [_trouble(attempt)] if attempt.outcome is not Outcome.DELIVERED else []
        if not self._console.is_terminal:
            line = Text("  ").join([head + event_type, about, *more])
            self._console.print(line, soft_wrap=True)
            return
        if self._console.width >= _BESIDE:
            self._console.print(head + f"{event_type:{_TYPE_WIDTH}}  " + about, soft_wrap=True)
        else:
            self._console.print(head + event_type, soft_wrap=True)
            more.insert(0, about)
        for text in more:
            for part in text.wrap(self._console, max(self._console.width - indent, 20)):
                part.rstrip()
                self._console.print(Text(" " * indent) + part, soft_wrap=True)


def _about(attempt: Attempt) -> str:
    event = attempt.event
    return "  ".join(printable(part) for part in (event.id, event.tenant, event.customer) if part)


def _trouble(attempt: Attempt) -> Text:
    answer = printable(" ".join(attempt.answer.split()))[:_LONGEST_ANSWER] or "(no text)"
    match attempt.outcome:
        case Outcome.RETRYING:
            return Text(f"{answer}; trying again", _STYLES[attempt.outcome])
        case Outcome.GIVEN_UP:
            return Text(f"{answer}; given up after {counted(attempt.number, 'try').replace('trys', 'tries')}", "red")
        case _:
            return Text(answer, "red")


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    time: str
    id: str
    type: str
    created: str
    tenant_id: str | None
    customer: str | None
    outcome: Outcome
    attempt: int
    status: int | None
    milliseconds: int | None
    answer: str


def json_line(attempt: Attempt) -> str:
    """An attempt as one line of JSON."""
    event = attempt.event
    line = _Line(
        time=shown(attempt.at),
        id=event.id,
        type=event.type,
        created=shown(from_epoch(event.created)),
        tenant_id=event.tenant,
        customer=event.customer,
        outcome=attempt.outcome,
        attempt=attempt.number,
        status=attempt.status,
        milliseconds=attempt.milliseconds,
        answer=attempt.answer,
    )
    return json_text(msgspec.json.encode(line))


def summary(tally: Tally) -> str:
    """What a run came to, in one line."""
    parts = [f"{tally.delivered:,} delivered"]
    parts += [
        f"{number:,} {what}"
        for number, what in (
            (tally.refused, "refused"),
            (tally.given_up, "given up"),
            (tally.waiting, "not delivered yet"),
        )
        if number
    ]
    return f"{counted(tally.received, 'event')}: {', '.join(parts)}"


_SECRETS: Final = "PROVIDER_WEBHOOK_SECRET"
_AGO: Final = re.compile(r"([1-9]\d{0,5})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_KEPT: Final = timedelta(days=30)
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MODES: Final = {True: " (live mode)", False: " (test mode)", None: ""}
_BAD_SIGNATURE: Final = "Invalid signature"


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    forward_to: str | None
    types: frozenset[str]
    since: str | None
    command: str | None
    concurrency: int
    retries: int
    interval: float
    as_json: bool


def print_signing_secret() -> None:
    """Print the secret, alone."""
    values, _ = command_values()
    click.echo(signing_secret(values).reveal())


def run(wishes: Wishes) -> NoReturn:
    """Relay until the end; exits with the code that says how it went."""
    logs.configure("console", logging.ERROR)  # what the provider's client warns of is told here, and once
    values, _ = command_values()
    address = service_address(values, wishes.forward_to)
    since = _since(wishes.since)
    words = _words(wishes.command)
    try:
        settings = load_for_admin(values, needs_pepper=False)
    except SettingsError as error:
        fail_on_settings(error)
    if settings.provider_secret_key is None:
        fail("PROVIDER_SECRET_KEY is not set: the provider's list of events is read with it.")
    session = _Session(wishes, settings, settings.provider_secret_key, address, signing_secret(values))
    try:
        code = asyncio.run(session.run(since, words))
    except (ProviderRefusedError, ProviderUnavailableError) as error:
        fail(error.detail, exit_code(error))
    sys.exit(code)


def _since(text: str | None) -> int | None:
    """The second that ``--since`` names; a usage error where it names none."""
    if text is None:
        return None
    now = system_clock()
    ago = _AGO.fullmatch(text)
    try:
        moment = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])}) if ago else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise click.BadParameter("is neither 30m, 2h or 7d nor a time", param_hint="--since") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment > now:
        raise click.BadParameter("is in the future", param_hint="--since")
    if moment < now - _KEPT:
        click.echo(f"The provider lists events for {_KEPT.days} days, none from before {shown(now - _KEPT)}.", err=True)
    return max(0, int(moment.timestamp()))


def _words(command: str | None) -> list[str]:
    if command is None:
        return []
    try:
        return command_line(command)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--exec") from None


class _Stdout(Console):
    """stdout, whose end is told as what it is, and does not end the process where it is met."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise BrokenPipeError


class _Session:
    """One run of the command."""

    def __init__(self, wishes: Wishes, settings: Settings, provider_key: Secret, address: str, secret: Secret) -> None:
        self._wishes = wishes
        self._provider_key = provider_key
        self._provider_base = settings.provider_api_base
        self._address = address
        self._secret = secret
        self._lines = DeliveryLines(_Stdout(highlight=False))
        self._chatter = Console(stderr=True, highlight=False)
        self._stop = asyncio.Event()
        self._child: Child | None = None
        self._has_hinted = False

    async def run(self, since: int | None, words: list[str]) -> int:
        """Relay until a signal, the child's end or the provider's refusal; returns the exit code.

        Raises `ProviderRefusedError`, and `ProviderUnavailableError` where that is so at the start.
        """
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        async with (
            aclosing(ProviderApi(self._provider_key, self._provider_base)) as provider,
            new_http_client(TIMEOUT) as client,
        ):
            source = Subscription(provider, self._wishes.types)
            if not await self._unless_stopped(source.begin(since)):
                return 0
            relay = Relay(
                source,
                Endpoint(client, self._address, self._secret),
                Hearing(self._attempted, self._warn),
                pace=Pace(interval=self._wishes.interval, retries=self._wishes.retries),
                concurrency=self._wishes.concurrency,
            )
            self._introduce(has_child=bool(words))
            try:
                code = await self._relay(relay, words)
            finally:
                if self._chatter.is_terminal:
                    self._notice("")  # the terminal has shown ^C
                self._notice(summary(relay.tally), style="bold")
            return code or (0 if relay.tally.is_clean else 1)

    async def _relay(self, relay: Relay, words: list[str]) -> int:
        """Run the relay, beside the child if there is one; returns the child's exit code."""
        if not words:
            await self._unless_stopped(relay.run())
            return 0
        values = read_environment()
        known = values.get(_SECRETS, "").strip()
        values[_SECRETS] = ",".join(filter(None, (self._secret.reveal(), known)))
        try:
            self._child = child = await Child.start(words, values, sys.stderr if self._wishes.as_json else None)
        except OSError as error:
            fail(f"--exec: {words[0]} cannot be started: {error.strerror or error}")
        ended = asyncio.create_task(child.wait())
        relaying = asyncio.create_task(self._relay_once_ready(relay))
        stopped = asyncio.create_task(self._stop.wait())  # by a signal that came before there was a child
        try:
            await asyncio.wait((ended, relaying, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (relaying, stopped):
                task.cancel()
            if child.is_running:
                child.send(signal.SIGTERM)
            code = await child.wait()
            await asyncio.wait((relaying, stopped))
        if not relaying.cancelled():
            relaying.result()
        return code

    async def _relay_once_ready(self, relay: Relay) -> None:
        await taking_connections(*host_and_port(self._address))
        await relay.run()

    async def _unless_stopped(self, action: Coroutine[Any, Any, None]) -> bool:
        """Whether the action came to its end before a signal ended it."""
        acting, stopped = asyncio.create_task(action), asyncio.create_task(self._stop.wait())
        await asyncio.wait((acting, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (acting, stopped):
            task.cancel()
        await asyncio.wait((acting, stopped))
        if acting.cancelled():
            return False
        acting.result()
        return True

    def _signalled(self, number: int) -> None:
        if self._child is None:
            self._stop.set()
        else:
            self._child.send(number)  # its end is ours

    def _introduce(self, *, has_child: bool) -> None:
        types = self._wishes.types
        which = "all" if ALL_TYPES in types else "the five types that are handled"
        if types != HANDLED_TYPES and ALL_TYPES not in types:
            which = ", ".join(sorted(types))
        self._notice(f"listening to   {self._provider_base}{_MODES[mode_of_key(self._provider_key)]}")
        self._notice(f"events         {which}")
        self._notice(f"forwarding to  {self._address}")
        if not has_child:
            self._notice(f"signing with   {self._secret.reveal()}")
        self._notice("")

    def _notice(self, text: str, style: str = "dim") -> None:
        self._chatter.print(text, style=style, soft_wrap=True, markup=False)

    def _warn(self, text: str) -> None:
        self._notice(text, style="yellow")

    def _attempted(self, attempt: Attempt) -> None:
        try:
            if self._wishes.as_json:
                click.echo(json_line(attempt))
            else:
                self._lines.write(attempt)
        except BrokenPipeError:  # whoever read along has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._stop.set()
        if attempt.answer == _BAD_SIGNATURE and not self._has_hinted:
            self._has_hinted = True
            self._warn(
                "The service checks with another secret. Start it with\n"
                f'  {_SECRETS}="$(tenantry listen --print-secret)"\n'
                'or let it be started here: --exec "tenantry serve"'
            )
