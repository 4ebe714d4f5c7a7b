"""Checks of what leaves tenantry: the feed of changes, and the endpoints of webhooks."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from tenantry.cli.doctor import Finding, ok, problem
from tenantry.cli.doctor import doctor_store as store
from tenantry.cli.doctor.doctor_store import OpenTransaction
from tenantry.cli.output import counted, largest_unit, minute, printable
from tenantry.db.connection import Connection
from tenantry.outbound.webhooks import EndpointState, read_states
from tenantry.settings import Settings

LONGEST_TRANSACTION: Final = timedelta(minutes=2)
"""From when on an open transaction is reported."""


def judge_transaction(
    oldest: OpenTransaction | None, longest: timedelta = LONGEST_TRANSACTION
) -> list[Finding]:
    """Judge whether the feed waits for a transaction that stays open."""
    if oldest is None or oldest.seconds < longest.total_seconds():
        return []
    return [
        problem(
            "events.waiting",
            age=largest_unit(oldest.seconds),
            who=printable(oldest.who),
            database=printable(oldest.database),
            application=printable(oldest.application) or "(not set)",
        )
    ]


async def check_transactions(connection: Connection) -> list[Finding]:
    """Check whether the feed waits for a transaction that stays open, as the login."""
    return judge_transaction(await store.read_oldest_transaction(connection))


async def check_webhooks(connection: Connection, settings: Settings) -> list[Finding]:
    """Check the endpoints of the plan catalog: disabled, failing, with events that are held."""
    states = await read_states(connection, settings.billing.catalog.webhooks)
    return [finding for state in states for finding in judge_endpoint(state)]


def judge_endpoint(state: EndpointState) -> list[Finding]:
    """Judge whether an endpoint receives its events."""
    found = list(_problems(state))
    waiting = f"{counted(state.waiting, 'event')} waiting"
    last = f"last success {minute(state.last_success_at)}"
    return found or [ok("webhooks", f"{state.name}: {waiting}, {last}")]


def _problems(state: EndpointState) -> Iterator[Finding]:
    waiting = counted(state.waiting, "event")
    facts = {"name": state.name, "waiting": waiting, "held": counted(state.held, "event")}
    if state.disabled_at is not None:
        since, reason = minute(state.disabled_at), state.disabled_reason
        yield problem("webhooks.disabled", since=since, reason=reason, **facts)
        return
    if state.failing_since is not None:
        yield problem("webhooks.failing", since=minute(state.failing_since), **facts)
    if state.held:
        yield problem("webhooks.held", **facts)
