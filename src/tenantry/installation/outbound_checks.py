"""Checks of what leaves tenantry: the feed of changes, webhooks, mails, and their jobs."""

from collections.abc import Iterator
from typing import Final

from tenantry.common.text_formats import counted, largest_unit, minute, printable
from tenantry.domain.webhook_endpoints import EndpointState
from tenantry.installation.findings import (
    CheckedDatabase,
    Finding,
    ok,
    problem,
    problem_if,
)
from tenantry.jobs import runs_store
from tenantry.notifications import mails_store
from tenantry.outbound.events_store import LONGEST_WRITER, OldestWriter, read_oldest_writer
from tenantry.outbound.webhooks import read_states

_LONGEST_WAIT: Final = 15 * 60
"""Seconds for which a mail or a job may be due. A worker that is restarted takes less."""


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


async def check_writers(database: CheckedDatabase) -> list[Finding]:
    """Check whether the feed waits for a transaction that stays open."""
    return judge_writer(await read_oldest_writer(database.connection))


async def check_webhooks(database: CheckedDatabase) -> list[Finding]:
    """Check the endpoints of the plan catalog: disabled, failing, with events that are held."""
    endpoints = database.settings.billing.catalog.webhooks
    states = await read_states(database.connection, endpoints, database.entries)
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


async def check_mails(database: CheckedDatabase) -> list[Finding]:
    """Check whether mails failed, and whether one waits for too long where a server is set."""
    queue = await mails_store.read_queue(database.connection)
    found = problem_if(queue.failed, "mail.failed")
    seconds = int(queue.oldest_seconds)
    if database.settings.smtp is not None and seconds >= _LONGEST_WAIT:
        facts = {"number": queue.queued, "age": largest_unit(seconds)}
        found.append(problem("mail.waiting", **facts))
    return found


async def check_jobs(database: CheckedDatabase) -> list[Finding]:
    """Check whether jobs wait for a worker."""
    due = await runs_store.longest_due(database.connection)
    late = {queue: int(seconds) for queue, seconds in due.items() if seconds >= _LONGEST_WAIT}
    if not late:
        return []
    return [
        problem(
            "jobs.waiting",
            queues=", ".join(sorted(late)),
            age=largest_unit(max(late.values())),
        )
    ]
