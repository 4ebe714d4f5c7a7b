"""Putting a relay together from the settings, and running it until somebody or something ends it."""

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

from tenantry.cli.environment import command_values, fail_on_settings
from tenantry.cli.exit_codes import fail
from tenantry.cli.on_database import exit_code
from tenantry.cli.text import shown
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.api import ProviderApi, mode_of_key
from tenantry.settings import AdminSettings, SettingsError, load_for_admin, read_environment
from tenantry_devkit.listen.text import DeliveryLines, json_line, summary
from tenantry_devkit.local.addresses import host_and_port, service_address
from tenantry_devkit.local.child import Child, command_line
from tenantry_devkit.local.endpoint import TIMEOUT, Endpoint
from tenantry_devkit.local.provider_events import ALL_TYPES, Subscription
from tenantry_devkit.local.relay import Attempt, Hearing, Pace, Relay, taking_connections
from tenantry_devkit.local.signing_secret import signing_secret

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

    def __init__(
        self, wishes: Wishes, settings: AdminSettings, provider_key: Secret, address: str, secret: Secret
    ) -> None:
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
