"""Metrics whose values are in the database."""

import logging
from collections.abc import Sequence

import msgspec
import psycopg

from tenantry.billing import reconcile_store
from tenantry.billing.ledger_queries_store import count_parked
from tenantry.billing.reconcile import STALE_TENANTS
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import PERIODIC, TASKS, runs_store
from tenantry.notifications import mail_delivery_store as mails

logger = logging.getLogger(__name__)


class DatabaseMetric(msgspec.Struct, frozen=True):
    """A metric with its help text, and its values by labels; a counter if it ``counts``, else a gauge."""

    name: str
    text: str
    values: Sequence[tuple[tuple[str, ...], float]]
    labels: tuple[str, ...] = ()
    counts: bool = False


class DatabaseMetrics:
    """Reads metrics from the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._error = ""

    async def read(self) -> list[DatabaseMetric] | None:
        """Read the metrics: none while the database answers with an error, None while it is unreachable."""
        metrics, error = list[DatabaseMetric](), ""
        try:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                metrics = [*await _mails(connection), *await _billing(connection), *await _jobs(connection)]
        except DatabaseUnavailableError:
            return None
        except psycopg.Error as fault:  # an older schema, or missing privileges
            error = type(fault).__name__
        if error and error != self._error:
            logger.warning("metrics of the database are unavailable: %s", error)
        if self._error and not error:
            logger.info("metrics of the database are available again")
        self._error = error
        return metrics


async def _mails(connection: Connection) -> list[DatabaseMetric]:
    queue = await mails.read_queue(connection)
    oldest = queue.oldest_seconds
    return [
        _gauge("tenantry_notifications_queued", "Mails still to be delivered.", queue.queued),
        _gauge("tenantry_notifications_failed", "Mails that were given up.", queue.failed),
        _gauge("tenantry_notifications_oldest_queued_seconds", "Age of the oldest mail still to be delivered.", oldest),
    ]


async def _billing(connection: Connection) -> list[DatabaseMetric]:
    parked = await count_parked(connection)
    drifted, ambiguous = await reconcile_store.count_drift_and_ambiguity(connection)
    stale = (await reconcile_store.read_findings(connection)).get(STALE_TENANTS, 0)
    return [
        _gauge("tenantry_billing_events_parked", "Events that wait for their tenant or customer.", parked),
        _gauge(
            "tenantry_stale_tenants", "Tenants whose period ended without an event since, at the hourly check.", stale
        ),
        _gauge("tenantry_tenants_drifted", "Tenants that had drifted from the provider, in the last 24 h.", drifted),
        _gauge("tenantry_ambiguous_events", "Events in an ambiguous order, in the last 24 h.", ambiguous),
        # deprecated names, for one release
        _gauge("tenantry_silent_tenants", "Deprecated: tenantry_stale_tenants.", stale),
        _gauge("tenantry_ties_undecided", "Deprecated: tenantry_ambiguous_events.", ambiguous),
    ]


async def _jobs(connection: Connection) -> list[DatabaseMetric]:
    counted = await runs_store.read_runs(connection)
    never = set(TASKS) - {run.task for run in counted}
    runs = [*counted, *(runs_store.JobRuns(task, 0, 0, None) for task in sorted(never))]
    counts = list((await runs_store.count_by_status(connection)).items())
    last = dict.fromkeys(PERIODIC, 0.0) | {run.task: run.succeeded_at.timestamp() for run in runs if run.succeeded_at}
    due = [((queue,), seconds) for queue, seconds in (await runs_store.longest_due(connection)).items()]
    outcomes = [((run.task, outcome), getattr(run, outcome)) for outcome in ("succeeded", "failed") for run in runs]
    successes = [((task,), moment) for task, moment in last.items()]
    return [
        DatabaseMetric("tenantry_jobs", "Jobs that have not succeeded yet.", counts, ("queue", "status")),
        DatabaseMetric(
            "tenantry_jobs_longest_due_seconds", "How long the longest waiting job has been due.", due, ("queue",)
        ),
        DatabaseMetric(
            "tenantry_job_runs", "Finished runs of jobs, by outcome.", outcomes, ("task", "outcome"), counts=True
        ),
        DatabaseMetric(
            "tenantry_job_last_success_timestamp_seconds",
            "When a job last succeeded; 0 for a scheduled job that never has.",
            successes,
            ("task",),
        ),
    ]


def _gauge(name: str, text: str, value: float) -> DatabaseMetric:
    return DatabaseMetric(name, text, [((), value)])
