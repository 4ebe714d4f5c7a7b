"""Webhooks: the events of the feed become deliveries, which jobs send.

Each endpoint follows the feed with its own position. What is queued is sent at its time, again
after a failure, and held when the attempts are exhausted (docs/decisions/0083).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain import webhook_deliveries as rules
from tenantry.domain.errors import NotFoundError
from tenantry.domain.outbound_events import event_id, version_of
from tenantry.domain.webhook_endpoints import (
    EndpointState,
    ListedEndpoint,
    QueuedEvents,
    WebhookTest,
)
from tenantry.domain.webhooks import WebhookEndpoint
from tenantry.integrations.webhook_client import DeliveryResult, WebhookClient
from tenantry.outbound import events_store
from tenantry.outbound import webhooks_store as store
from tenantry.outbound.events_store import BEGINNING, Position
from tenantry.outbound.webhooks_store import DueDelivery

INTERVAL: Final = 1.0
"""Seconds between two looks for new events and for deliveries that are due."""
AT_ONCE: Final = 4
"""How many attempts at an endpoint are made at the same time."""
_SEEN_EVERY: Final = timedelta(minutes=1)
_PORTION: Final = 1000
"""How many events a transaction looks at."""
_MOST_DUE: Final = 1000
"""The deliveries of an endpoint that are due; above, further events wait in the feed."""
_MOST_IN_JOB: Final = 200
_JOB_SECONDS: Final = 10.0
"""How long a job begins attempts: jobs end soon when a worker stops."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class OutboundWebhooks:
    """The webhooks of one process. A loop calls `queue_due`, and jobs call `deliver`.

    It does nothing, and opens no connection, without ``endpoints``.
    """

    database: Database
    outbox: Outbox
    client: WebhookClient
    clock: Clock
    endpoints: Sequence[WebhookEndpoint]
    _: KW_ONLY
    interval: float = INTERVAL

    def __post_init__(self) -> None:
        self._by_name = {endpoint.name: endpoint for endpoint in self.endpoints}
        self._recording = asyncio.Lock()

    # Following the feed

    async def queue_due(self) -> None:
        """Queue the deliveries of new events, and a job for each endpoint with deliveries that are
        due.

        Several processes may run it at the same time. Raises `DatabaseUnavailableError`.
        """
        surveys = await self._survey()
        due = set[str]()
        for each in surveys:
            if each.due:
                due.add(each.name)
            if each.has_events and each.due < _MOST_DUE and await self._follow_feed(each.name):
                due.add(each.name)
        if due:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                await self.outbox.defer_webhooks(connection, sorted(due))

    async def _survey(self) -> list[store.EndpointSurvey]:
        """Return what there is to do for active endpoints, and make new ones known."""
        now = self.clock()
        names = list(self._by_name)
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            until = await _horizon(connection)
            surveys = await store.survey(connection, names, until, _MOST_DUE, now)
            seen = [each.name for each in surveys if each.seen_at > now - _SEEN_EVERY]
            if len(seen) < len(names):
                await store.see(connection, names, until, now)
        return [each for each in surveys if each.is_active]

    async def _follow_feed(self, name: str) -> int:
        """Queue the deliveries of an endpoint's next events; return their number."""
        types = self._by_name[name].types.types()
        added = 0
        while added < _MOST_DUE:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                # Before the events are read: all below the horizon are committed by then.
                until = await _horizon(connection)
                after = await store.lock_position(connection, name)
                if after is None:
                    break
                last = await events_store.portion_end(connection, after, until, _PORTION)
                end = last or until
                added += await store.queue(connection, name, types, after, end, self.clock())
                await store.move(connection, name, end)
            if last is None:
                break
        return added

    # Sending

    async def deliver(self, name: str) -> None:
        """Send what is due to an endpoint, `AT_ONCE` at a time, for some seconds; the next job
        continues.

        If the process dies between an attempt and its record, the event is sent again. Raises
        `DatabaseUnavailableError`.
        """
        endpoint = self._by_name.get(name)
        if endpoint is None:
            return
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            due = await store.read_due(connection, name, _MOST_IN_JOB, self.clock())
        batch = _Batch(deque(due), asyncio.get_running_loop().time() + _JOB_SECONDS)
        senders = [self._send_batch(endpoint, batch) for _ in range(min(AT_ONCE, len(due)))]
        outcomes = await asyncio.gather(*senders, return_exceptions=True)
        if batch.accepted or batch.failed:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                await store.count_attempts(connection, name, batch.accepted, batch.failed)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _send_batch(self, endpoint: WebhookEndpoint, batch: "_Batch") -> None:
        try:
            while (delivery := batch.next()) is not None:
                if not await self._attempt(endpoint, delivery, batch):
                    batch.end()
        except BaseException:
            batch.end()
            raise

    async def _attempt(
        self, endpoint: WebhookEndpoint, delivery: DueDelivery, batch: "_Batch"
    ) -> bool:
        """Send one delivery; return whether the endpoint can receive the next one now."""
        event = delivery.event
        if event is None:
            await self._forget(endpoint.name, delivery.version)
            return True
        body = rules.message_of(event)
        result = await self.client.send(endpoint, event.id, body, self.clock())
        batch.count(result)
        # One at a time: attempts at ten endpoints would else take the pool's connections.
        async with self._recording, self.database.transaction(ACROSS_TENANTS) as connection:
            if result.is_success:
                now = self.clock()
                version = delivery.version
                await store.mark_delivered(connection, endpoint.name, version, result.status, now)
                return True
            return await self._record_failure(connection, endpoint.name, delivery, result)

    async def _record_failure(
        self, connection: Connection, name: str, delivery: DueDelivery, result: DeliveryResult
    ) -> bool:
        now = self.clock()
        attempts = delivery.attempts + 1
        following = rules.next_attempt(attempts, now)
        await store.mark_failed(
            connection,
            name,
            delivery.version,
            status=result.status,
            error=result.error,
            next_attempt_at=following,
        )
        pause = rules.pause_until(result.retry_after, now)
        failing_since = await store.note_failure(connection, name, pause, now)
        event = event_id(delivery.version)
        what = result.error or f"status {result.status}"
        logger.info("webhook %s: attempt %d at %s failed: %s", name, attempts, event, what)
        if following is None:
            held = "webhook %s: %s is held after %d attempts"
            connection.after_commit(partial(logger.warning, held, name, event, attempts))
        reason = rules.reason_to_disable(result.status, failing_since, now)
        if reason is not None and await store.disable(connection, name, reason, now):
            disabled = "webhook %s is disabled: %s"
            connection.after_commit(partial(logger.error, disabled, name, reason))
        return reason is None and pause is None

    async def _forget(self, name: str, version: int) -> None:
        async with self._recording, self.database.transaction(ACROSS_TENANTS) as connection:
            await store.remove(connection, name, version)
        logger.warning("webhook %s: %s was not delivered, and is gone", name, event_id(version))

    # Operating

    async def states(self, most: int | None = None) -> list[EndpointState]:
        """Return the states of the catalog's endpoints as `read_states`."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await read_states(connection, self.endpoints, most)

    async def list_endpoints(self, most: int | None = None) -> list[ListedEndpoint]:
        """Return the endpoints of the catalog with their states as `read_states`."""
        pairs = zip(self.endpoints, await self.states(most), strict=True)
        return [ListedEndpoint.of(*pair) for pair in pairs]

    async def test(self, name: str) -> WebhookTest:
        """Send an endpoint a message as `send_test_message`. Raises `NotFoundError`."""
        return await send_test_message(self.client, self.endpoint(name), self.clock())

    async def enable(self, connection: Connection, name: str) -> QueuedEvents:
        """Enable an endpoint, and send it all that is held, from the first attempt on, and the
        events that it has not read; return the number of all of them. Raises `NotFoundError`.
        """
        endpoint = self.endpoint(name)
        await self._release(connection, name)
        state = await _state(connection, endpoint)
        position = await store.position_of(connection, name)
        has_lost = position and await events_store.is_purged_after(connection, position)
        await store.enable(connection, name)
        if has_lost and state.disabled_at:
            lost = "webhook %s: events were removed with age while it was disabled"
            connection.after_commit(partial(logger.warning, lost, name))
        return QueuedEvents(name, (await _state(connection, endpoint)).waiting)

    async def resend(
        self,
        connection: Connection,
        name: str,
        *,
        event: str | None = None,
        since: datetime | None = None,
    ) -> QueuedEvents:
        """Send again: this event, or all that were recorded ``since`` a moment, delivered or not;
        with neither, all that are not delivered.

        They wait while the endpoint is disabled. Raises `NotFoundError` for an endpoint or an event
        that is unknown.
        """
        endpoint = self.endpoint(name)
        if event is not None:
            number = await self._resend_one(connection, name, event)
        elif since is not None:
            number = await self._resend_since(connection, endpoint, since)
        else:
            number = await self._release(connection, name)
        return QueuedEvents(name, number)

    def endpoint(self, name: str) -> WebhookEndpoint:
        """Return an endpoint of the catalog. Raises `NotFoundError`."""
        if name not in self._by_name:
            raise NotFoundError(f"webhook in the plan catalog: {name!r}")
        return self._by_name[name]

    async def _release(self, connection: Connection, name: str) -> int:
        now = self.clock()
        released = 0
        last: int | None = 0
        while last is not None:
            number, last = await store.release(connection, name, last, now)
            released += number
        return released

    async def _resend_one(self, connection: Connection, name: str, event: str) -> int:
        version = version_of(event)
        is_known = version is not None and await store.release_one(
            connection, name, version, self.clock()
        )
        if not is_known:
            raise NotFoundError(f"event for the webhook {name!r}: {event!r}")
        return 1

    async def _resend_since(
        self, connection: Connection, endpoint: WebhookEndpoint, since: datetime
    ) -> int:
        """Queue the events up to the endpoint's position: it will receive the later ones."""
        types = endpoint.types.types()
        now = self.clock()
        after = BEGINNING
        added = 0
        until = await store.position_of(connection, endpoint.name)
        if until is None:
            return 0
        while True:
            last = await events_store.portion_end(connection, after, until, _PORTION)
            end = last or until
            added += await store.queue(
                connection,
                endpoint.name,
                types,
                after,
                end,
                now,
                since,
            )
            if last is None:
                return added
            after = last


class _Batch:
    """The deliveries of a job, which its senders share; none after ``deadline``, a time of the
    event loop.
    """

    def __init__(self, waiting: deque[DueDelivery], deadline: float) -> None:
        self._waiting = waiting
        self._deadline = deadline
        self.accepted = 0
        self.failed = 0

    def count(self, result: DeliveryResult) -> None:
        """Count an attempt."""
        self.accepted += result.is_success
        self.failed += not result.is_success

    def next(self) -> DueDelivery | None:
        """Take the next delivery; None if no further attempt shall begin."""
        if not self._waiting or asyncio.get_running_loop().time() > self._deadline:
            return None
        return self._waiting.popleft()

    def end(self) -> None:
        """Begin no further attempts."""
        self._waiting.clear()


async def send_test_message(
    client: WebhookClient, endpoint: WebhookEndpoint, now: datetime
) -> WebhookTest:
    """Send a signed message of the type `webhook.test` once. It is no delivery, and leaves no
    trace.
    """
    message_id = f"evt_test_{uuid4().hex}"
    body = rules.trial_message(message_id, endpoint.name, now)
    result = await client.send(endpoint, message_id, body, now)
    return WebhookTest(endpoint.name, result.is_success, result.status, result.error)


async def read_states(
    connection: Connection, endpoints: Sequence[WebhookEndpoint], most: int | None = None
) -> list[EndpointState]:
    """Return the state of each endpoint, in their order. ``most`` limits how many deliveries that
    wait, and how many that are held, are counted for each; None: all.
    """
    return [await _state(connection, endpoint, most) for endpoint in endpoints]


async def _horizon(connection: Connection) -> Position:
    newest = await events_store.newest_epoch(connection)
    return await events_store.horizon(connection, newest)


async def _state(
    connection: Connection, endpoint: WebhookEndpoint, most: int | None = None
) -> EndpointState:
    row = await store.read_endpoint(connection, endpoint.name, endpoint.types.types(), most)
    if row is None:
        return EndpointState(name=endpoint.name)
    to_come = row.queued + row.unread
    return EndpointState(
        name=endpoint.name,
        accepted=row.accepted,
        failed=row.failed,
        waiting=0 if row.disabled_at else to_come,
        held=row.held + to_come if row.disabled_at else row.held,
        last_success_at=row.last_success_at,
        failing_since=row.failing_since,
        paused_until=row.paused_until,
        disabled_at=row.disabled_at,
        disabled_reason=row.disabled_reason,
    )
