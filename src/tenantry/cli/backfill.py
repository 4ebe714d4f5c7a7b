"""``tenantry backfill`` and ``tenantry admin fetch-events``: fetch events that never arrived from
the payment provider.
"""

import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, NoReturn

import click

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.billing.backfill import BackfillPart, BackfillResult, MissedEvent, Observer
from tenantry.billing.ingest import FAILED as NOT_HANDLED
from tenantry.billing.ingest import WebhookService
from tenantry.billing.reconcile import Reconciler
from tenantry.billing.reconcile_run import EVENTS_KEPT
from tenantry.cli.database import Result, exit_code, on_database
from tenantry.cli.interruption import STOPPED, LongWork
from tenantry.common import logs
from tenantry.common.clock import from_epoch, system_clock
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.billing.events import REQUIRED_TYPES
from tenantry.domain.errors import DomainError, ProviderNotConfiguredError
from tenantry.installation.endpoint_checks import endpoints_at, known_types_of
from tenantry.integrations.stripe.client import ProviderApi
from tenantry.settings import Settings
from tenantry_cli.options import dry_run_option, json_option
from tenantry_cli.output import (
    FAILED,
    NOT_FOUND,
    CommandError,
    counted,
    print_json,
    print_lines,
    progress,
    say,
    shown,
)
from tenantry_cli.times import past

_CONNECTIONS: Final = 5
"""The size of the pool of commands that ask the provider."""
_EVENT_ID: Final = re.compile(r"evt_[A-Za-z0-9_]{1,250}")


def with_provider(action: Callable[[Settings, Reconciler], Awaitable[Result]]) -> Result:
    """Run an action with the payment provider, on the database like `on_database`. The log has
    warnings alone.
    """

    async def run(settings: Settings, database: Database) -> Result:
        async with _reconciler(settings, database) as reconciler:
            return await action(settings, reconciler)

    logs.configure("console", logging.WARNING)
    return on_database(run, pool_size=_CONNECTIONS)


@asynccontextmanager
async def _reconciler(settings: Settings, database: Database) -> AsyncIterator[Reconciler]:
    """Give a reconciler. Raises `ProviderNotConfiguredError`."""
    if settings.provider_secret_key is None:
        raise ProviderNotConfiguredError(
            "The payment provider's API is not set up here: PROVIDER_SECRET_KEY is unset."
        )
    outbox = Outbox(asks_provider=False)
    webhooks = WebhookService(
        [database.lane()],
        settings.billing,
        outbox,
        system_clock,
    )
    async with aclosing(
        ProviderApi(settings.provider_secret_key, settings.provider_api_base)
    ) as provider:
        try:
            yield Reconciler(
                database,
                provider,
                webhooks,
                settings.billing,
                outbox,
                system_clock,
            )
        finally:
            await webhooks.close()


def event_line(event: MissedEvent) -> str:
    """Describe an event on one line, without its tenant."""
    return f"{shown(event.created)}  {event.type}  {event.id}"


def _event_id(text: str) -> str:
    if _EVENT_ID.fullmatch(text) is None:
        raise click.BadParameter(f"{text!r} is not an event's id, such as evt_1SQk7xLm3Rk2pXw7")
    return text


@click.command("fetch-events")
@click.argument(
    "event_ids",
    metavar="EVENT...",
    nargs=-1,
    required=True,
    type=_event_id,
)
@json_option("The events and their outcomes as one JSON document.")
def fetch_events(event_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Fetch events from the payment provider by their ids, and process them as if the provider sent
    them again.

    For events that never arrived, failed or were invalid. An event that the ledger has changes
    nothing: its outcome is `duplicate`. The owner gets a mail about a failed payment that is recent
    and still unpaid. The provider keeps events for 30 days. Safe while the service runs. Needs
    PROVIDER_SECRET_KEY.

    \b
      tenantry admin fetch-events evt_1SQk7xLm3Rk2pXw7

    Exits with 0 when done, with 1 if an event could not be handled or the provider rejects a
    request, with 4 if it rejects the API key, with 5 if it has no such event, and with 6 if the
    provider or the database is out of reach.
    """
    events = list[MissedEvent]()
    missing = list[str]()

    async def action(_: Settings, reconciler: Reconciler) -> None:
        for event_id in dict.fromkeys(event_ids):
            event = await reconciler.backfill.resend(event_id)
            if event is None:
                missing.append(event_id)
                continue
            events.append(event)
            if not as_json:
                print_lines([_missed_line(event)])

    try:
        with_provider(action)
    finally:
        if as_json:
            print_json({"events": events, "missing": missing})
    if missing:
        raise CommandError(f"The payment provider has no event {', '.join(missing)}.", NOT_FOUND)
    sys.exit(FAILED if any(event.outcome == NOT_HANDLED for event in events) else 0)


class _Span(NamedTuple):
    """The events that a backfill is about: those created from ``since`` to ``until``, or to now."""

    since: datetime
    until: datetime | None
    now: datetime

    @property
    def last(self) -> int:
        """The newest second."""
        return int((self.until or self.now).timestamp())

    @property
    def seconds(self) -> int:
        """How many seconds of them the provider lists."""
        first = max(self.since, self.now - EVENTS_KEPT)
        return max(self.last - int(first.timestamp()), 1)


@click.command("backfill")
@click.option(
    "--since",
    required=True,
    type=past,
    metavar="TIME",
    help="Events created since then: 1h, 7d or an RFC 3339 time.",
)
@click.option(
    "--until",
    type=past,
    metavar="TIME",
    help="Events created until then; continues a stopped run.",
)
@dry_run_option("Only print what was missed: write nothing.")
@json_option("The missed events and their outcomes as one JSON document.")
def backfill(
    since: datetime,
    until: datetime | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fetch the events of the payment provider that never arrived, such as after an outage.

    Reads the provider's list of events, which covers 30 days, from the newest event back to the
    given time: those of the types that your webhook endpoint sends. Missed events are processed
    like all others, and shown with their outcomes. The owner gets a mail about a failed payment
    that is recent and still unpaid. Safe while the service runs. Needs PROVIDER_SECRET_KEY.

    Exits with 0 when done, with 1 if an event could not be handled or the provider rejects a
    request, with 4 if it rejects the API key, and with 6 if the provider or the database is out of
    reach. A run that an error or Ctrl-C stops keeps the events that it has processed, and prints
    the command that continues it. A second Ctrl-C ends it immediately, without a summary; with
    --json nothing is printed then.

    \b
      tenantry backfill --since 1d
    """
    span = _Span(since, until, system_clock())
    _check(span)
    missed = list[MissedEvent]()
    work = LongWork("backfill", "--since", shown(since), dry_run=dry_run, as_json=as_json)

    async def action(settings: Settings, reconciler: Reconciler) -> BackfillResult:
        with progress("fetching events", span.seconds, is_share=True) as update, work.handling():
            observer = _observer(span, update, missed, work)
            return await _run(reconciler, settings, span, observer, dry_run=dry_run)

    done = with_provider(action)
    rest = _rest_of(done, until, work)
    if as_json:
        asked = {"dryRun": dry_run, "since": since, "until": until}
        end = {"continueWith": rest and rest.command, "details": missed}
        print_json({**asked, **_counts(done), **end})
    elif done.listed or rest is None:
        click.echo(_summary(done, dry_run=dry_run))
    _exit(done, rest)


def _exit(done: BackfillResult, rest: "_Rest | None") -> NoReturn:
    if rest is not None:
        raise CommandError(rest.message, exit_code(done.stopped) if done.stopped else FAILED)
    sys.exit(FAILED if done.outcomes.get(NOT_HANDLED) else 0)


def _check(span: _Span) -> None:
    """Reject contradictory times, and warn of those that the provider does not list any more."""
    if span.until is not None and span.until < span.since:
        raise click.BadParameter("is before --since", param_hint="--until")
    oldest = span.now - EVENTS_KEPT
    if span.since < oldest:
        say(
            f"The provider lists events for {EVENTS_KEPT.days} days: what was missed before {shown(oldest)} cannot be "
            "fetched. `tenantry reconcile` repairs tenants without it."
        )


async def _run(
    reconciler: Reconciler,
    settings: Settings,
    span: _Span,
    observer: Observer,
    *,
    dry_run: bool,
) -> BackfillResult:
    try:
        types = await _sent_types(reconciler.provider, settings)
    except DomainError as error:
        return BackfillResult(0, 0, {}, stopped=error)
    until = None if span.until is None else span.last
    return await reconciler.backfill.run(
        int(span.since.timestamp()),
        until=until,
        types=types,
        dry_run=dry_run,
        observer=observer,
    )


async def _sent_types(provider: ProviderApi, settings: Settings) -> frozenset[str]:
    """Return the types that the provider sends to our endpoint; at least those that it must."""
    endpoints = await provider.webhook_endpoints()
    ours = endpoints_at(endpoints or (), settings.base_url + WEBHOOK_PATH)
    return REQUIRED_TYPES | known_types_of(ours)


def _observer(
    span: _Span,
    update: Callable[..., None],
    missed: list[MissedEvent],
    work: LongWork,
) -> Observer:
    """Return what keeps and shows the missed events of each part, and how far back the run is."""
    left = span.last

    def observe(part: BackfillPart) -> bool:
        nonlocal left
        update(advance=left - part.oldest.created)
        left = part.oldest.created
        missed.extend(part.missed)
        if part.missed:
            work.show(map(_missed_line, part.missed))
        return work.is_requested()

    return observe


def _missed_line(event: MissedEvent) -> str:
    return f"{event_line(event)}  {shown(event.tenant_id)}  {event.outcome or 'missed'}"


def _counts(done: BackfillResult) -> dict[str, Any]:
    reached = done.reached and {"id": done.reached.id, "created": from_epoch(done.reached.created)}
    counts = {"listed": done.listed, "missed": done.missed, "outcomes": done.outcomes}
    return {**counts, "stopped": _why_stopped(done), "reached": reached}


def _why_stopped(done: BackfillResult) -> str | None:
    if done.interrupted:
        return STOPPED
    return str(done.stopped) if done.stopped else None


def _summary(done: BackfillResult, *, dry_run: bool) -> str:
    outcomes = [f"{number:,} {outcome}" for outcome, number in sorted(done.outcomes.items())]
    then = "nothing written" if dry_run else ", ".join(outcomes) or "nothing to do"
    return f"{counted(done.listed, 'event')} listed, {done.missed:,} missed: {then}"


class _Rest(NamedTuple):
    """What a stopped backfill has left: where and why it was stopped, and the command that
    continues, if any.
    """

    message: str
    command: str | None = None


def _rest_of(done: BackfillResult, until: datetime | None, work: LongWork) -> _Rest | None:
    """Return the rest of a stopped backfill; None if it has completed."""
    why = _why_stopped(done)
    if why is None:
        return None
    if done.reached is None:
        return _Rest(f"Stopped before the first event: {why}")
    moment = from_epoch(done.reached.created)
    where = f"after {counted(done.listed, 'event')}, at {done.reached.id} of {shown(moment)}"
    if failed := done.outcomes.get(NOT_HANDLED, 0):
        continue_at = until
        what = f"{counted(failed, 'event')} could not be handled. Retry them and fetch the rest"
    else:
        continue_at = moment
        what = f"Events from {'the newest event' if until is None else shown(until)} back to then are done. Continue"
    command = work.continued(*(["--until", shown(continue_at)] if continue_at else []))
    return _Rest(f"Stopped {where}: {why}\n{what} with: {command}", command)
