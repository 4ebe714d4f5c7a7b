"""The outbox: jobs that are deferred in a transaction, and begin once it is committed."""

from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.types import JSONDict

from tenantry.common.tracing import Tracing
from tenantry.db import outbox_store
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.job_names import (
    DELIVER_MAIL,
    DELIVER_WEBHOOKS,
    FETCH_SNAPSHOT,
    FOLLOW_SEATS,
    MAIL,
    MAINTENANCE,
    PLACE_REVERSALS,
    PROVIDER,
    RUN_OF_TENANT,
    WEBHOOKS,
)
from tenantry.domain.billing.ledger import SnapshotRequest

_A_MOMENT: Final = timedelta(seconds=2)


class _JobKind(NamedTuple):
    """A task of which one job runs at a time for an object, which is its ``argument``."""

    task: str
    queue: str
    argument: str


_FETCHES: Final = _JobKind(FETCH_SNAPSHOT, PROVIDER, "tenant_id")
_SEATS: Final = _JobKind(FOLLOW_SEATS, PROVIDER, "tenant_id")
_WEBHOOKS: Final = _JobKind(DELIVER_WEBHOOKS, WEBHOOKS, "endpoint")


class Outbox:
    """Defers jobs for the workers, on the connection of the caller's transaction.

    Without ``asks_provider`` it drops requests for snapshots, and without ``follows_seats`` those
    to set the seats of tenants. With ``tracing`` a job continues the
    trace that deferred it. Where a use case has no outbox, as in a replay, owners get no mail and
    no snapshots are fetched.
    """

    def __init__(
        self,
        *,
        asks_provider: bool = False,
        follows_seats: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        self._asks_provider = asks_provider
        self._follows_seats = follows_seats
        self._tracing = tracing
        self._app = App(connector=PsycopgConnector())

    async def defer_mail(
        self,
        connection: Connection,
        ids: Sequence[UUID],
        traces: Mapping[UUID, str | None] | None = None,
        *,
        delay: timedelta | None = None,
    ) -> None:
        """Deliver these mails once the connection's transaction is committed, or after ``delay``.

        ``traces`` has the ``traceparent`` of deliveries that do not belong to the current trace.
        Raises psycopg errors.
        """
        if not ids:
            return
        later = None if delay is None else await outbox_store.now(connection) + delay
        deferrer = self._app.configure_task(
            DELIVER_MAIL, queue=MAIL, connection=connection, schedule_at=later
        )
        arguments = [
            self._with_trace({"mail_id": str(mail)}, (traces or {}).get(mail)) for mail in ids
        ]
        await _deferred(deferrer.batch_defer_async(*arguments))

    async def defer_snapshots(
        self,
        connection: Connection,
        requests: Sequence[SnapshotRequest],
        traces: Mapping[str, str] | None = None,
    ) -> None:
        """Fetch snapshots of tenants, which the transaction has locked, once it is committed.

        A tenant whose job waits already gets no second one. ``traces`` as in `defer_mail`, by
        tenant.
        """
        if not self._asks_provider or not requests:
            return
        wanted = {request.tenant_id: request.later for request in requests}
        await self._defer_once(connection, _FETCHES, wanted, traces)

    async def defer_seats(self, connection: Connection, tenants: Sequence[str]) -> None:
        """Set the seats of tenants to the number of their active members once the transaction is
        committed. If that changed the number, it has locked the tenant.

        A tenant whose job waits already gets no second one: that job counts the members later.
        """
        if not self._follows_seats or not tenants:
            return
        async with connection.within(ACROSS_TENANTS):
            await self._defer_once(connection, _SEATS, dict.fromkeys(tenants, False), None)

    async def defer_webhooks(self, connection: Connection, endpoints: Sequence[str]) -> None:
        """Send what is due to these endpoints once the transaction is committed.

        An endpoint whose job waits already gets no second one: that job looks later.
        """
        await self._defer_once(connection, _WEBHOOKS, dict.fromkeys(endpoints, False), None)

    async def defer_placing(self, connection: Connection) -> None:
        """Ask the provider whose the parked refunds and disputes are once the transaction is
        committed. Without its API the task's schedule finds what the ledger knows by then.
        """
        if not self._asks_provider or await outbox_store.is_waiting(connection, PLACE_REVERSALS):
            return  # one run is for all of them
        deferrer = self._app.configure_task(
            PLACE_REVERSALS, queue=MAINTENANCE, connection=connection, lock=PLACE_REVERSALS
        )
        await _deferred(deferrer.defer_async(timestamp=0))

    async def defer_tenant_run(self, connection: Connection, tenant_id: str) -> None:
        """Do the tenant's replay or reconciliation, whose row the transaction has locked, once it
        is committed.

        One run of all tenants is done at a time: long ones would keep mails and snapshots
        waiting. A job whose lock is taken stays in the queue, where it occupies no worker.
        """
        if await outbox_store.is_run_waiting(connection, RUN_OF_TENANT, tenant_id):
            return
        deferrer = self._app.configure_task(
            RUN_OF_TENANT, queue=MAINTENANCE, connection=connection, lock=RUN_OF_TENANT
        )
        await _deferred(deferrer.defer_async(**self._with_trace({"tenant_id": tenant_id}, None)))

    async def _defer_once(
        self,
        connection: Connection,
        kind: _JobKind,
        wanted: dict[str, bool],
        traces: Mapping[str, str] | None,
    ) -> None:
        """Defer a job for each object, such as a tenant, without one that waits.

        ``wanted`` says which begin a moment later. One job of a task runs at a time for an object.
        """
        now, waiting = await outbox_store.waiting(connection, kind.task, wanted)
        for name in waiting:
            del wanted[name]  # what it finds at a later moment serves this request too
        for name, later in wanted.items():
            deferrer = self._app.configure_task(
                kind.task,
                queue=kind.queue,
                connection=connection,
                lock=f"{kind.task} {name}",
                schedule_at=now + _A_MOMENT if later else None,
            )
            arguments = self._with_trace({kind.argument: name}, (traces or {}).get(name))
            await _deferred(deferrer.defer_async(**arguments))

    def _with_trace(self, arguments: JSONDict, trace: str | None) -> JSONDict:
        if self._tracing is None:
            return arguments
        trace = trace or self._tracing.traceparent()
        return {**arguments, "traceparent": trace} if trace else arguments


async def _deferred(deferring: Awaitable[object]) -> None:
    try:
        await deferring
    except ConnectorException as error:
        if isinstance(error.__cause__, psycopg.Error):
            raise error.__cause__ from None
        raise
