"""Metrics whose values are in the database."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psycopg
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.core import GaugeMetricFamily as Gauge

from tenantry.billing import reconcile_store
from tenantry.billing.ledger_queries_store import count_parked
from tenantry.billing.stale_tenants import STALE_TENANTS
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.job_names import PERIODIC, TASKS
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.domain.webhooks import WebhookEndpoint
from tenantry.jobs import runs_store
from tenantry.notifications import mails_store as mails
from tenantry.outbound.events_store import LONGEST_WRITER, OldestWriter, read_oldest_writer
from tenantry.outbound.webhooks import read_states

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class DatabaseMetrics:
    """Reads metrics from the database, also of the webhooks' ``endpoints``."""

    database: Database
    endpoints: Sequence[WebhookEndpoint] = ()
    _error: str = field(default="", init=False)

    async def read(self) -> list[Metric] | None:
        """Read the metrics: none while the database answers with an error, None while it is
        unreachable.
        """
        metrics, error = list[Metric](), ""
        try:
            async with self.database.transaction(ACROSS_TENANTS) as connection:
                metrics = [
                    *await _mails(connection),
                    *await _billing(connection),
                    *await _jobs(connection),
                    *await _job_runs(connection),
                    *await _outbound_webhooks(connection, self.endpoints),
                    await _oldest_writer(connection),
                ]
        except DatabaseUnavailableError:
            return None
        except psycopg.Error as fault:  # an older schema, or missing privileges
            error = type(fault).__name__
        self._log_change(error)
        self._error = error
        return metrics

    def _log_change(self, error: str) -> None:
        if error == self._error:
            return
        if error:
            logger.warning("metrics of the database are unavailable: %s", error)
        else:
            logger.info("metrics of the database are available again")


async def _mails(connection: Connection) -> list[Metric]:
    queue = await mails.read_queue(connection)
    oldest = queue.oldest_seconds
    return [
        Gauge("tenantry_notifications_queued", "Mails still to be delivered.", queue.queued),
        Gauge("tenantry_notifications_failed", "Mails that were given up.", queue.failed),
        Gauge(
            "tenantry_notifications_oldest_queued_seconds",
            "Age of the oldest mail still to be delivered.",
            oldest,
        ),
    ]


async def _billing(connection: Connection) -> list[Metric]:
    parked = await count_parked(connection)
    drifted, ambiguous = await reconcile_store.count_drift_and_ambiguity(connection)
    stale = (await reconcile_store.read_findings(connection)).get(STALE_TENANTS, 0)
    return [
        Gauge(
            "tenantry_billing_events_parked",
            "Events that wait for their tenant or customer.",
            parked,
        ),
        Gauge(
            "tenantry_stale_tenants",
            "Tenants whose period ended without an event since, at the hourly check.",
            stale,
        ),
        Gauge(
            "tenantry_tenants_drifted",
            "Tenants that had drifted from the provider, in the last 24 h.",
            drifted,
        ),
        Gauge(
            "tenantry_ambiguous_events",
            "Events in an ambiguous order, in the last 24 h.",
            ambiguous,
        ),
    ]


async def _jobs(connection: Connection) -> list[Metric]:
    jobs = Gauge("tenantry_jobs", "Jobs that have not succeeded yet.", labels=("queue", "status"))
    for labels, number in (await runs_store.count_by_status(connection)).items():
        jobs.add_metric(labels, number)
    text = "How long the longest waiting job has been due."
    due = Gauge("tenantry_jobs_longest_due_seconds", text, labels=("queue",))
    for queue, seconds in (await runs_store.longest_due(connection)).items():
        due.add_metric((queue,), seconds)
    return [jobs, due]


async def _job_runs(connection: Connection) -> list[Metric]:
    runs = CounterMetricFamily(
        "tenantry_job_runs", "Finished runs of jobs, by outcome.", labels=("task", "outcome")
    )
    text = "When a job last succeeded; 0 for a scheduled job that never has."
    last = Gauge("tenantry_job_last_success_timestamp_seconds", text, labels=("task",))
    found = {run.task: run for run in await runs_store.read_runs(connection)}
    never = {task: runs_store.JobRuns(task, 0, 0, 0) for task in TASKS}
    for task, run in sorted((never | found).items()):
        runs.add_metric((task, "succeeded"), run.succeeded)
        runs.add_metric((task, "failed"), run.failed)
        if run.last_success or task in PERIODIC:
            last.add_metric((task,), run.last_success)
    return [runs, last]


async def _oldest_writer(connection: Connection) -> Metric:
    """Return the age of the oldest transaction that writes. It is named only once it is too old:
    each name is another series.
    """
    oldest = await read_oldest_writer(connection) or OldestWriter()
    gauge = Gauge(
        "tenantry_oldest_writing_transaction_seconds",
        "How long the oldest transaction of the server that writes has been open.",
        labels=("transaction", "database", "application"),
    )
    is_named = oldest.seconds >= LONGEST_WRITER
    labels = (oldest.name, oldest.database, oldest.application) if is_named else ("", "", "")
    gauge.add_metric(labels, oldest.seconds)
    return gauge


async def _outbound_webhooks(
    connection: Connection, endpoints: Sequence[WebhookEndpoint]
) -> list[Metric]:
    """Return the metrics of webhooks; none without endpoints."""
    states = await read_states(connection, endpoints)
    if not states:
        return []
    attempts = CounterMetricFamily(
        "tenantry_outbound_webhook_attempts",
        "Attempts to send an event, by outcome.",
        labels=("endpoint", "outcome"),
    )
    for state in states:
        attempts.add_metric((state.name, "accepted"), state.accepted)
        attempts.add_metric((state.name, "failed"), state.failed)
    waiting = {state.name: state.waiting for state in states}
    held = {state.name: state.held for state in states}
    disabled = {state.name: state.disabled_at is not None for state in states}
    return [
        attempts,
        _of_endpoints("events_waiting", "Events that will be sent.", waiting),
        _of_endpoints("events_held", "Events that wait for the operator.", held),
        _of_endpoints("disabled", "1 if the endpoint is disabled.", disabled),
    ]


def _of_endpoints(name: str, text: str, values: Mapping[str, float]) -> Gauge:
    gauge = Gauge(f"tenantry_outbound_webhook_{name}", text, labels=("endpoint",))
    for endpoint, value in values.items():
        gauge.add_metric((endpoint,), float(value))
    return gauge
