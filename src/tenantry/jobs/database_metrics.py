"""What only the database knows of the service's health, for the metrics."""

import logging
from collections.abc import Sequence

import msgspec
import psycopg

from tenantry.billing import ledger_store as billing
from tenantry.billing import reconcile_store as reconcile
from tenantry.billing.reconcile import SILENT_TENANTS
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.jobs import runs_store as jobs
from tenantry.notifications import notices_store as notices

logger = logging.getLogger(__name__)


class Known(msgspec.Struct, frozen=True):
    """A metric: its name and what it says, and its values by their labels. Of one that ``counts``, the total."""

    name: str
    text: str
    values: Sequence[tuple[tuple[str, ...], float]]
    labels: tuple[str, ...] = ()
    counts: bool = False


class DatabaseMetrics:
    """Reads what the database knows. ``periodic`` are the jobs that run by themselves, ``tasks`` all that there are."""

    def __init__(self, database: Database, periodic: Sequence[str] = (), tasks: Sequence[str] = ()) -> None:
        self._database = database
        self._periodic = periodic
        self._tasks = tasks
        self._fault = ""
        """What the database answered instead the last time, by its type."""

    async def read(self) -> list[Known] | None:
        """What the database knows: nothing while it answers with an error, None while it is out of reach."""
        try:
            async with self._database.transaction(ACROSS_TENANTS) as connection:
                known = [
                    *await _mails(connection),
                    *await _billing(connection),
                    *await _jobs(connection, self._periodic, self._tasks),
                ]
        except DatabaseUnavailableError:
            return None
        except psycopg.Error as error:  # a schema of before, or privileges that are missing
            self._note(type(error).__name__)
            return []
        self._note("")
        return known

    def _note(self, fault: str) -> None:
        """Log how it went, where it went otherwise the last time."""
        if fault and fault != self._fault:
            logger.warning("what the database knows is left out of the metrics: %s", fault)
        if self._fault and not fault:
            logger.info("what the database knows is in the metrics again")
        self._fault = fault


async def _mails(connection: Connection) -> list[Known]:
    counts = await notices.count_by_status(connection)
    oldest = await notices.oldest_queued_seconds(connection)
    return [
        _gauge("tenantry_notifications_queued", "Mails still to be delivered.", counts.get("queued", 0)),
        _gauge("tenantry_notifications_failed", "Mails that were given up.", counts.get("failed", 0)),
        _gauge("tenantry_notifications_oldest_queued_seconds", "Age of the oldest mail still to be delivered.", oldest),
    ]


async def _billing(connection: Connection) -> list[Known]:
    parked = await billing.count_parked(connection)
    drifted, ambiguous = await reconcile.count_drift_and_ambiguity(connection)
    silent = (await reconcile.read_findings(connection)).get(SILENT_TENANTS, 0)
    return [
        _gauge("tenantry_billing_events_parked", "Events that wait for their tenant or customer.", parked),
        _gauge("tenantry_silent_tenants", "Tenants whose period ended without news, at the hourly look.", silent),
        _gauge("tenantry_tenants_drifted", "Tenants that had drifted from the provider, in the last 24 h.", drifted),
        _gauge("tenantry_ties_undecided", "Events in an ambiguous order, in the last 24 h.", ambiguous),
    ]


async def _jobs(connection: Connection, periodic: Sequence[str], tasks: Sequence[str]) -> list[Known]:
    counted = await jobs.read_runs(connection)
    never = set(tasks) - {run.task for run in counted}
    runs = [*counted, *(jobs.JobRuns(task, 0, 0, None) for task in sorted(never))]
    last = dict.fromkeys(periodic, 0.0) | {run.task: run.succeeded_at.timestamp() for run in runs if run.succeeded_at}
    return [
        Known(
            "tenantry_jobs",
            "Jobs that have not gone well yet.",
            list((await jobs.count_by_status(connection)).items()),
            ("queue", "status"),
        ),
        Known(
            "tenantry_jobs_longest_due_seconds",
            "For how long the job has been due that waits longest.",
            [((queue,), seconds) for queue, seconds in (await jobs.longest_due(connection)).items()],
            ("queue",),
        ),
        Known(
            "tenantry_job_runs",
            "Runs of jobs that have ended, by how.",
            [
                ((run.task, outcome), number)
                for run in runs
                for outcome, number in (("succeeded", run.succeeded), ("failed", run.failed))
            ],
            ("task", "outcome"),
            counts=True,
        ),
        Known(
            "tenantry_job_last_success_timestamp_seconds",
            "When a job last went well; 0 for one that runs by itself and never has.",
            [((task,), moment) for task, moment in last.items()],
            ("task",),
        ),
    ]


def _gauge(name: str, text: str, value: float) -> Known:
    return Known(name, text, [((), value)])
