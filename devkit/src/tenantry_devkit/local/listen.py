"""``tenantry listen``: relay the payment provider's events to this machine."""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.database import admin_settings, exit_code, local_values
from tenantry.cli.output import CommandError, counted, json_text, printable, shown
from tenantry.cli.times import past
from tenantry.common import logs
from tenantry.common.clock import from_epoch
from tenantry.common.process import is_deaf_to_hangup
from tenantry.common.secret import Secret
from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.errors import ProviderRefusedError, ProviderUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.stripe.client import ProviderApi, mode_of_key
from tenantry.settings import Settings, read_environment
from tenantry_devkit.local.endpoint import (
    BAD_SIGNATURE,
    TIMEOUT,
    WEBHOOK_SECRET,
    Endpoint,
    Header,
    RetryPolicy,
    parse_headers,
    service_address,
    signing_secret,
)
from tenantry_devkit.local.relay import (
    ALL_TYPES,
    ProviderEventFeed,
    Relay,
    RelayAttempt,
    RelayOutcome,
    wait_for_listener,
)
from tenantry_devkit.local.session import write

_PROVIDER_KEY: Final = Settings.provider_secret_key.name
_STYLES: Final = {RelayOutcome.DELIVERED: "green", RelayOutcome.RETRYING: "yellow"}
_LONGEST_ANSWER: Final = 300
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MODES: Final = {True: " (live mode)", False: " (test mode)", None: ""}
_MAX_SIGNALS: Final = 3
"""How many signals a child may ignore before it is killed."""


@click.command("listen")
@click.option(
    "--forward-to",
    metavar="ADDRESS",
    help="The receiver: an address, host:port, or a port. Default: the service here.",
)
@click.option(
    "--events",
    "types",
    multiple=True,
    metavar="TYPE,...",
    help="Which types; '*' is a wildcard. Default: those that tenantry handles. '*' alone: all.",
)
@click.option(
    "-H",
    "--headers",
    multiple=True,
    metavar="NAME:VALUE,...",
    help="Headers of the forwarded requests, such as 'X-Tunnel: 1'; repeatable.",
)
@click.option(
    "--since",
    type=past,
    metavar="TIME",
    help="Begin with the events since then: 1h, 7d or an RFC 3339 time.",
)
@click.option(
    "--exec",
    "command",
    metavar="COMMAND",
    help="Start this command with the secret set, and end with it.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 32),
    default=1,
    show_default=True,
    help="How many events to send at a time; above 1 in any order.",
)
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    default=6,
    show_default=True,
    help="How often to repeat a failed request.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for events.",
)
@click.option(
    "--print-secret", is_flag=True, help="Only print the signing secret, alone, on stdout."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each delivery.")
def listen(
    *,
    forward_to: str | None,
    types: tuple[str, ...],
    headers: tuple[str, ...],
    since: datetime | None,
    command: str | None,
    concurrency: int,
    retries: int,
    interval: float,
    print_secret: bool,
    as_json: bool,
) -> None:
    """Relay the payment provider's events to a service on this machine.

    The command reads the provider's list of events with PROVIDER_SECRET_KEY at PROVIDER_API_BASE
    (by default the running demo's). It forwards new events, signed with a secret that stays the
    same on this machine. Start the service with that secret, or let --exec do so:

    \b
      PROVIDER_WEBHOOK_SECRET="$(tenantry listen --print-secret)" tenantry serve
      tenantry listen --exec "tenantry serve"
      tenantry listen --forward-to 4000 --headers 'X-Tunnel: 1, X-Stage: dev'

    Events arrive in order. They wait while the service accepts no connections; failed requests are
    repeated. Rejected events (4xx) are printed and skipped. Ctrl-C ends the relay with a summary.

    Exits with 0 if the service accepted every event, else with 1; with the command's own exit code
    if --exec started one; with 4 if the provider rejects the key, and with 6 if the provider is
    unreachable at the start.
    """
    values, environment = _values(has_command=command is not None)
    if print_secret:
        click.echo(signing_secret(values).reveal())
        return
    # the relay prints the warnings of the provider's client itself
    logs.configure("console", logging.ERROR)
    # the command that --exec starts has the settings of the environment, not the demo's
    address = service_address(environment if command else values, forward_to)
    words, extra = _parse_command(command), _parse_headers(headers)
    settings = admin_settings(values)
    if settings.provider_secret_key is None:
        raise CommandError(
            "PROVIDER_SECRET_KEY is not set: it is needed to read the provider's list of events."
        )
    provider = ProviderApi(settings.provider_secret_key, settings.provider_api_base)
    source = f"{settings.provider_api_base}{_MODES[mode_of_key(settings.provider_secret_key)]}"
    policy = RetryPolicy(interval=interval, retries=retries)
    session = _Session(
        source,
        _parse_types(types) or KNOWN_TYPES,
        address,
        signing_secret(values),
        extra,
        as_json=as_json,
    )
    try:
        code = asyncio.run(
            session.run(
                provider,
                since,
                words,
                policy,
                concurrency,
            )
        )
    except (ProviderRefusedError, ProviderUnavailableError) as error:
        raise CommandError(error.detail, exit_code(error)) from None
    sys.exit(code)


def _values(*, has_command: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the relay, and those of the environment.

    A provider's key that is set for this command goes before a demo's: its `.env` file counts only
    where ``--exec`` starts a service with it.
    """
    values, is_demo = local_values()
    environment = read_environment() if has_command else read_environment({})
    if is_demo and environment.get(_PROVIDER_KEY, "").strip():
        values |= {
            name: environment.get(name, "")
            for name in (_PROVIDER_KEY, Settings.provider_api_base.name)
        }
    return values, environment


def _parse_types(texts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(filter(None, (part.strip() for part in ",".join(texts).split(","))))


def _parse_headers(texts: tuple[str, ...]) -> list[Header]:
    try:
        return parse_headers(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--headers") from None


def _parse_command(command: str | None) -> list[str]:
    """Split the command of ``--exec``; ``tenantry`` means this installation."""
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--exec") from None
    if not words:
        raise click.BadParameter("names no program", param_hint="--exec")
    # -P: import nothing from the current folder
    return (
        [
            sys.executable,
            "-P",
            "-m",
            "tenantry",
            *words[1:],
        ]
        if words[0] == "tenantry"
        else words
    )


class _Session:
    """One run of the command."""

    def __init__(
        self,
        source: str,
        types: frozenset[str],
        address: str,
        secret: Secret,
        headers: list[Header],
        *,
        as_json: bool,
    ) -> None:
        self._headers = headers
        self._source = source
        self._types = types
        self._address = address
        self._secret = secret
        self._as_json = as_json
        self._stdout = Console(highlight=False)
        self._stderr = Console(stderr=True, highlight=False)
        self._stop = asyncio.Event()
        self._child: asyncio.subprocess.Process | None = None
        self._signals = 0
        self._has_hinted = False

    async def run(
        self,
        provider: ProviderApi,
        since: datetime | None,
        words: list[str],
        policy: RetryPolicy,
        concurrency: int,
    ) -> int:
        """Relay until a signal, the child's end or the provider's rejection; return the exit code.

        Raises `ProviderRefusedError`, and `ProviderUnavailableError` at the start.
        """
        for number in _SIGNALS:
            if number == signal.SIGHUP and is_deaf_to_hangup():
                continue
            asyncio.get_running_loop().add_signal_handler(
                number,
                self._handle_signal,
                number,
            )
        async with aclosing(provider), new_http_client(TIMEOUT) as client:
            feed = ProviderEventFeed(provider, self._types)
            if not await self._until_stopped(
                feed.begin(None if since is None else max(0, int(since.timestamp())))
            ):
                return 0
            endpoint = Endpoint(
                client,
                self._address,
                self._secret,
                headers=self._headers,
            )
            relay = Relay(
                feed,
                endpoint,
                self,
                policy=policy,
                concurrency=concurrency,
            )
            self._introduce(has_child=bool(words))
            code = 0
            try:
                if words:
                    code = await self._relay_beside_child(relay, words)
                else:
                    await self._until_stopped(relay.run())
            finally:
                if self._stderr.is_terminal:
                    self._print("")  # after the terminal's ^C
                self._print(summary(relay.received, relay.outcomes), style="bold")
            return code or (0 if relay.outcomes[RelayOutcome.DELIVERED] == relay.received else 1)

    async def _relay_beside_child(self, relay: Relay, words: list[str]) -> int:
        """Return the child's exit code, or 128 and the number of the signal that ended it."""
        environment = read_environment()
        known = environment.get(WEBHOOK_SECRET, "").strip()
        environment[WEBHOOK_SECRET] = ",".join(filter(None, (self._secret.reveal(), known)))
        stdin, stdout = asyncio.subprocess.DEVNULL, sys.stderr if self._as_json else None
        try:
            # in its own process group: a signal of the terminal reaches it once, through this
            # process
            self._child = child = await asyncio.create_subprocess_exec(
                *words,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandError(
                f"--exec: {words[0]} cannot be started: {error.strerror or error}"
            ) from None
        ended = asyncio.create_task(child.wait())
        ended.add_done_callback(lambda _: self._stop.set())
        try:
            if await self._until_stopped(wait_for_listener(self._address)):
                await self._until_stopped(relay.run())
        finally:
            self._handle_signal(signal.SIGTERM)
            code = await ended
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)  # processes that it has left behind
        return code if code >= 0 else 128 - code

    async def _until_stopped(self, action: Coroutine[Any, Any, None]) -> bool:
        """Run an action until a signal or the child's end; return whether it has completed."""
        acting, stopped = asyncio.create_task(action), asyncio.create_task(self._stop.wait())
        await asyncio.wait((acting, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (acting, stopped):
            task.cancel()
        await asyncio.wait((acting, stopped))
        if acting.cancelled():
            return False
        acting.result()
        return True

    def _handle_signal(self, number: int) -> None:
        """Forward a signal to the child, with which the relay ends; the fourth one kills it.
        Without a child, end.
        """
        if self._child is None:
            self._stop.set()
        elif self._child.returncode is None:
            self._signals += 1
            with contextlib.suppress(ProcessLookupError):
                os.killpg(
                    self._child.pid, number if self._signals <= _MAX_SIGNALS else signal.SIGKILL
                )

    def _introduce(self, *, has_child: bool) -> None:
        is_default = self._types == KNOWN_TYPES
        which = (
            f"the {len(self._types)} types that are handled"
            if is_default
            else ", ".join(sorted(self._types))
        )
        self._print(f"listening to   {self._source}")
        self._print(f"events         {'all' if ALL_TYPES in self._types else which}")
        self._print(f"forwarding to  {self._address}")
        if self._headers:
            self._print(f"with headers   {', '.join(name for name, _ in self._headers)}")
        if not has_child:
            self._print(f"signing with   {self._secret.reveal()}")
        self._print("")

    def _print(self, text: str, style: str = "dim") -> None:
        self._stderr.print(
            text,
            style=style,
            soft_wrap=True,
            markup=False,
        )

    def notice(self, text: str) -> None:
        self._print(text, style="yellow")

    def attempted(self, attempt: RelayAttempt) -> None:
        try:
            if self._as_json:
                self._stdout.print(Text(json_line(attempt)), soft_wrap=True)
            else:
                write_attempt(self._stdout, attempt)
        except (SystemExit, BrokenPipeError):
            # rich raises SystemExit when the reader closes the pipe
            self._stop.set()
        if attempt.response.text == BAD_SIGNATURE and not self._has_hinted:
            self._has_hinted = True
            self.notice(
                "The service checks signatures with another secret. Start it with\n"
                f'  {WEBHOOK_SECRET}="$(tenantry listen --print-secret)"\n'
                'or let the relay start it: --exec "tenantry serve"'
            )


def write_attempt(console: Console, attempt: RelayAttempt) -> None:
    """Print an attempt: on a terminal in lines that fit it, elsewhere in one line."""
    event, response = attempt.event, attempt.response
    taken = "" if response.milliseconds is None else f"{response.milliseconds:,} ms"
    head = Text.assemble(
        (f"{attempt.at.astimezone():%H:%M:%S}", "dim"),
        "  ",
        (str(response.status or "---"), _STYLES.get(attempt.outcome, "bold red")),
        f"{taken:>10}  ",
    )
    indent = head.cell_len
    head += printable(event.type)
    about = Text(
        "  ".join(printable(part) for part in (event.id, event.tenant, event.customer) if part),
        "dim",
    )
    more = [_problem(attempt)] if attempt.outcome is not RelayOutcome.DELIVERED else []
    if not console.is_terminal:
        console.print(Text("  ").join([head, about, *more]), soft_wrap=True)
        return
    console.print(head, soft_wrap=True)
    for text in (about, *more):
        write(console, text, indent)


def _problem(attempt: RelayAttempt) -> Text:
    answer = printable(" ".join(attempt.response.text.split()))[:_LONGEST_ANSWER] or "(no text)"
    if attempt.outcome is RelayOutcome.RETRYING:
        return Text(f"{answer}; trying again", "yellow")
    tries = counted(attempt.number, "try").replace("trys", "tries")
    return Text(
        f"{answer}; given up after {tries}" if attempt.outcome is RelayOutcome.GIVEN_UP else answer,
        "red",
    )


def json_line(attempt: RelayAttempt) -> str:
    event, response = attempt.event, attempt.response
    line = {
        "time": shown(attempt.at),
        "id": event.id,
        "type": event.type,
        "created": shown(from_epoch(event.created)),
        "tenantId": event.tenant,
        "customer": event.customer,
        "outcome": attempt.outcome,
        "attempt": attempt.number,
        "status": response.status,
        "milliseconds": response.milliseconds,
        "answer": response.text,
    }
    return json_text(msgspec.json.encode(line))


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
