"""Checks of what leaves tenantry: the feed of changes, and the endpoints of webhooks."""

from collections.abc import Iterator

from tenantry.cli.doctor import Finding, ok, problem
from tenantry.cli.output import counted, largest_unit, minute, printable
from tenantry.db.connection import Connection
from tenantry.outbound.events_store import LONGEST_WRITER, OldestWriter, read_oldest_writer
from tenantry.outbound.webhooks import EndpointState, read_states
from tenantry.settings import Settings


def judge_writer(oldest: OldestWriter | None) -> list[Finding]:
    """Judge whether the feed waits for a transaction that stays open, for a second at least."""
    if oldest is None or (oldest.is_exact and oldest.seconds == 0):
        return []
    age = largest_unit(oldest.seconds)
    opened = age if oldest.is_exact else f"at least {age}"
    name = printable(oldest.name) or "not shown to this login"
    database = printable(oldest.database) or "-"
    application = printable(oldest.application) or "(not set)"
    text = (
        f"the oldest transaction that writes has been open for {opened}: {name}, "
        f"database {database}, application {application}"
    )
    if oldest.seconds >= LONGEST_WRITER:
        return [problem("events.waiting", text=text)]
    return [ok("events", text)]


async def check_writers(connection: Connection) -> list[Finding]:
    """Check whether the feed waits for a transaction that stays open."""
    return judge_writer(await read_oldest_writer(connection))


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
