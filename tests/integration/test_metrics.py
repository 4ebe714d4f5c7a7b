"""The contents of `/metrics` and its documentation."""

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import yaml

from tenantry.common.clock import system_clock
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.job_names import DELIVER_MAIL, PERIODIC
from tenantry.jobs.database_metrics import DatabaseMetrics
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work, counted
from tests.support.billing import rows
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.checking_standbys import registered
from tests.support.counting import PLANS, counted_everything
from tests.support.emptying import SharedDatabase
from tests.support.logs import watched
from tests.support.metrics import Series, Shown, documented
from tests.support.patience import patient_database, patient_queue
from tests.support.postgres import as_url
from tests.support.service import KEYS, PROJECTS, TENANTS, Service, running_service

PROMETHEUS: Final = Path(__file__).parents[2] / "examples" / "monitoring"


KEPT: Final = {"tenantry_outbound_webhook_attempts_total"}
"""Counters that the database keeps, from the endpoint's first start on."""


def begun_at_0() -> list[Series]:
    """The counters of a process that begin at 0 in the tests of the alert rules."""
    return [
        (found[1], frozenset(re.findall(r'(\w+)="([^"]*)"', found[2])))
        for path in PROMETHEUS.glob("alerts*_test.yml")
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]
        for series in test["input_series"]
        if str(series["values"]).startswith("0")
        and (found := re.match(r"(tenantry_\w+_total)(.*)", series["series"]))
        and found[1] not in KEPT
    ]


async def shown(service: Service) -> Shown:
    return Shown((await service.anonymous.get("/metrics")).text)


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    address = as_url(shared_database.conninfo)
    settings = {
        "TENANTRY_PLANS": catalog_file(PLANS),
        "DATABASE_URL": address,
        "DATABASE_CHECKS_URL": address,  # no standby, so the primary answers
    }
    async with running_service(shared_database.conninfo, **settings) as service:
        yield service


@pytest.fixture
async def new_service(conninfo: str) -> AsyncIterator[Service]:
    """A service that has counted nothing."""
    async with running_service(conninfo, TENANTRY_PLANS=catalog_file(PLANS)) as service:
        yield service


async def test_metrics_and_their_documentation_agree(emptied_service: Service) -> None:
    await counted_everything(emptied_service)
    async with registered(emptied_service.conninfo, "gone"):
        await a_change(emptied_service)
    found = (await shown(emptied_service)).described()
    assert {
        name: told for name, told in found.items() if not name.startswith(("python_", "process_"))
    } == documented()


async def a_change(service: Service) -> None:
    answer = await service.operator.put(
        f"{TENANTS}/changed", {"name": "changed", "ownerEmail": "owner@x.example"}
    )
    assert answer.status_code == 201


async def test_wait_of_a_change_for_standbys_is_counted_by_its_outcome(service: Service) -> None:
    name, outcome = "tenantry_change_wait_seconds_count", "lease"
    before = (await shown(service)).value(name, outcome=outcome)
    org = await service.organization()
    async with registered(service.conninfo, "gone"):
        await service.key(org.owner, org.id, "projects:read")
    assert (await shown(service)).value(name, outcome=outcome) == before + 1


async def test_series_of_alert_rules_begin_at_0(new_service: Service) -> None:
    found = (await shown(new_service)).series(documented())
    expected = begun_at_0()
    assert expected
    assert {series: found.get(series) for series in expected} == dict.fromkeys(expected, 0.0)


async def test_no_count_adds_a_series_to_those_of_alert_rules(new_service: Service) -> None:
    rules = (PROMETHEUS / "alerts.yml").read_text("utf-8")
    names = set(re.findall(r"increase\((\w+)", rules)) - KEPT
    assert names
    before = (await shown(new_service)).series(names)
    await counted_everything(new_service)
    after = (await shown(new_service)).series(names)
    assert after.keys() == before.keys()
    assert {
        name for (name, labels), value in after.items() if value > before[name, labels]
    } == names


async def test_no_label_names_a_tenant_a_key_or_an_event(service: Service) -> None:
    names = await counted_everything(service)
    text = (await service.anonymous.get("/metrics")).text
    assert [name for name in names if name in text] == []


async def test_a_batch_is_counted_by_its_lane_with_its_size_and_its_wait(service: Service) -> None:
    org = await service.organization()
    before = await shown(service)
    answers = await asyncio.gather(*(org.owner.get(PROJECTS) for _ in range(40)))
    assert {answer.status_code for answer in answers} == {200}
    after = await shown(service)

    def increase(name: str) -> float:
        return after.value(name, lane="keys") - before.value(name, lane="keys")

    assert increase("tenantry_batch_items_sum") == 40
    assert 1 <= increase("tenantry_batch_items_count") < 40
    assert increase("tenantry_batch_wait_seconds_count") == increase("tenantry_batch_items_count")
    assert increase("tenantry_batch_seconds_count") == increase("tenantry_batch_items_count")


async def refused(service: Service, kind: str, reason: str) -> float:
    """Return how many credentials of a kind were rejected for a reason."""
    return (await shown(service)).value(
        "tenantry_credentials_refused_total", kind=kind, reason=reason
    )


@cases(
    ("header", "kind", "reason"),
    [
        ({}, "none", "missing_credential"),
        ({"Authorization": "Bearer svc_live_nothing"}, "api_key", "invalid_credential"),
        ({"Authorization": "Bearer a.b.c"}, "token", "invalid_credential"),
    ],
)
async def test_rejected_credential_is_counted_by_kind_and_reason(
    service: Service, header: dict[str, str], kind: str, reason: str
) -> None:
    before = await refused(service, kind, reason)
    for path in (PROJECTS, KEYS):
        assert (await service.anonymous.call("GET", path, headers=header)).status_code == 401
    assert await refused(service, kind, reason) == before + 2


async def test_rejected_operator_token_is_counted(service: Service) -> None:
    before = await refused(service, "operator_token", "invalid_credential")
    await service.caller("not-the-operators").put("/api/v1/tenants/acme", {})
    assert await refused(service, "operator_token", "invalid_credential") == before + 1


async def ended_keys(service: Service) -> Counter[str]:
    """Return how many keys were revoked for a reason."""
    found = await shown(service)
    reasons = ("revoked", "rotated", "leaked", "tenant_ended")
    return Counter(
        {
            reason: int(found.value("tenantry_api_keys_revoked_total", reason=reason))
            for reason in reasons
        }
    )


async def test_revoked_keys_are_counted_by_reason(service: Service) -> None:
    before = await ended_keys(service)
    org = await service.organization()
    revoked, rotated, left, leaked = [
        await service.key(org.owner, org.id, "projects:read") for _ in range(4)
    ]
    for _ in range(2):  # the second time nothing ends
        await org.owner.delete(revoked.path)
    await org.owner.post(f"{rotated.path}/rotate", {"overlapSeconds": 0})
    await org.owner.post(f"{left.path}/rotate", {"overlapSeconds": 60})
    for _ in range(2):
        await service.anonymous.post(f"{KEYS}/report-leak", {"secret": leaked.caller.credential})
    await service.operator.delete(org.path)
    assert await ended_keys(service) - before == {
        "revoked": 1,
        "rotated": 1,
        "leaked": 1,
        "tenant_ended": 4,
    }


async def test_pool_counts_connections_and_waiting_requests(emptied: str) -> None:
    database = patient_database(emptied, pool_size=1)
    await database.open()
    async with database.transaction(ACROSS_TENANTS) as connection:
        waiting = asyncio.create_task(DatabaseMetrics(database).read())
        async with asyncio.timeout(30):
            while not (stats := database.pool_stats())["requests_waiting"]:  # noqa: ASYNC110  # the pool gives no notice
                await asyncio.sleep(0)
        assert (stats["pool_size"], stats["pool_available"], stats["pool_max"]) == (1, 0, 1)
        # a wait is counted in whole milliseconds
        await connection.execute("SELECT pg_sleep(0.002)")
    assert await waiting is not None
    after = database.pool_stats()
    assert (after["pool_size"], after["pool_available"], after["requests_waiting"]) == (1, 1, 0)
    assert after["requests_wait_ms"] > 0
    await database.close()


async def test_pools_and_streams_are_shown(service: Service) -> None:
    found = await shown(service)
    assert found.value("tenantry_database_connections_max", pool="ordinary") == 5
    assert found.value("tenantry_database_connections_max", pool="jobs") == 2
    assert found.value("tenantry_streams_open") == 0


async def test_age_of_the_oldest_due_job_is_reported_by_queue(emptied_service: Service) -> None:
    now = datetime.now(UTC)
    for task, scheduled in (
        ("a", now - timedelta(seconds=90)),
        ("b", now + timedelta(hours=1)),
        ("c", None),
    ):
        await rows(
            emptied_service.conninfo,
            "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW(%s, 'x', 0, NULL, NULL, '{}', %s)"
            "::procrastinate_job_to_defer_v1])",
            f"queue_{task}",
            scheduled,
        )
    await rows(
        emptied_service.conninfo,
        "UPDATE procrastinate_events SET at = at - interval '5 minutes' WHERE job_id = "
        "(SELECT id FROM procrastinate_jobs WHERE queue_name = 'queue_c')",
    )
    found = await shown(emptied_service)
    ages = {
        sample.labels["queue"]: sample.value
        for family in found.families
        if family.name == "tenantry_jobs_longest_due_seconds"
        for sample in family.samples
    }
    assert set(ages) == {"queue_a", "queue_c"}
    assert 90 <= ages["queue_a"] < 300 <= ages["queue_c"]
    assert found.value("tenantry_jobs", queue="queue_b", status="todo") == 1


async def test_a_job_that_ran_elsewhere_is_counted_with_its_last_success(
    emptied_service: Service,
) -> None:
    database, queue = (
        patient_database(emptied_service.conninfo, pool_size=1),
        patient_queue(emptied_service.conninfo),
    )
    await database.open()
    await queue.open()
    before = await shown(emptied_service)
    assert all(
        before.value("tenantry_job_last_success_timestamp_seconds", task=task) == 0
        for task in PERIODIC
    )
    began = datetime.now(UTC).timestamp()
    work = Work(
        None, RetentionService(database, timedelta(days=90), system_clock), counted_in=database
    )
    [deferred] = await rows(
        emptied_service.conninfo,
        "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('maintenance', 'remove_old_data', 0, NULL, NULL, "
        "'{\"timestamp\": 0}', NULL)]::procrastinate_job_to_defer_v1[]) AS ids",
    )
    [number] = deferred["ids"]
    with watched("procrastinate") as log:
        worker = asyncio.create_task(queue.run_worker(work, polling_interval=0.02))
        await log.until(f"Job remove_old_data[{number}](timestamp=0) ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})
    after = await shown(emptied_service)
    assert after.value("tenantry_job_runs_total", task="remove_old_data", outcome="succeeded") >= 1
    assert after.value("tenantry_job_runs_total", task="remove_old_data", outcome="failed") == 0
    assert after.value(
        "tenantry_job_last_success_timestamp_seconds", task="remove_old_data"
    ) >= int(began)
    await queue.close()
    await database.close()


async def test_failed_run_is_counted_and_keeps_the_last_success(emptied_service: Service) -> None:
    database = patient_database(emptied_service.conninfo, pool_size=1)
    await database.open()
    async with counted(database, DELIVER_MAIL):
        pass
    before = await shown(emptied_service)
    with pytest.raises(ZeroDivisionError):
        async with counted(database, DELIVER_MAIL):
            raise ZeroDivisionError
    after = await shown(emptied_service)
    last = "tenantry_job_last_success_timestamp_seconds"
    assert after.value("tenantry_job_runs_total", task=DELIVER_MAIL, outcome="failed") == 1
    assert after.value(last, task=DELIVER_MAIL) == before.value(last, task=DELIVER_MAIL) > 0
    await database.close()


async def test_job_succeeds_if_its_run_cannot_be_counted(conninfo: str) -> None:
    await rows(conninfo, "DROP TABLE job_runs")
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    done = False
    async with counted(database, DELIVER_MAIL):
        done = True
    assert done
    await database.close()


@pytest.mark.parametrize(
    ("spoil", "mend", "fault"),
    [
        (
            "ALTER TABLE job_runs RENAME TO gone",
            "ALTER TABLE gone RENAME TO job_runs",
            "UndefinedTable",
        ),
        (
            "REVOKE ALL ON mails FROM tenantry_batch",
            "GRANT SELECT ON mails TO tenantry_batch",
            "InsufficientPrivilege",
        ),
    ],
)
async def test_unavailable_metrics_are_omitted_and_logged_once(
    fresh_service: Service, spoil: str, mend: str, fault: str
) -> None:
    known = {
        "tenantry_notifications_queued",
        "tenantry_jobs",
        "tenantry_job_last_success_timestamp_seconds",
    }
    await rows(fresh_service.conninfo, spoil)
    with watched("tenantry.jobs.database_metrics") as log:
        without = [await shown(fresh_service) for _ in range(2)]
        await rows(fresh_service.conninfo, mend)
        after = [await shown(fresh_service) for _ in range(2)]
    for found in without:
        assert found.value("tenantry_database_up") == 1
        assert found.value("tenantry_database_connections_max", pool="ordinary") == 5
        assert found.described().keys() & known == set()
    assert all(found.described().keys() >= known for found in after)
    assert log.lines == [
        f"WARNING tenantry.jobs.database_metrics metrics of the database are unavailable: {fault}",
        "INFO tenantry.jobs.database_metrics metrics of the database are available again",
    ]


PROCESS: Final = """
from tenantry.server.metrics import Metrics
metrics = Metrics(several_processes=True)
usage = {"pool_size": 3, "pool_available": 2, "pool_max": 5, "requests_waiting": 0}
metrics.set_pool("ordinary", {**usage, "requests_queued": 3, "requests_wait_ms": 500})
metrics.streams.set(7)
metrics.lane("keys")(4, 0.001, 0.002)
print(metrics.render().decode())
"""


def test_ended_process_keeps_its_counters_and_loses_its_gauges(tmp_path: Path) -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", PROCESS],
            env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    ]
    found = Shown(texts[1])
    assert found.value("tenantry_database_connections_max", pool="ordinary") == 5
    assert found.value("tenantry_streams_open") == 7
    assert found.value("tenantry_database_waits_total", pool="ordinary") == 6
    assert found.value("tenantry_batch_items_sum", lane="keys") == 8


OVERTAKEN: Final = """
import os, sys
from tenantry.server.metrics import Metrics

def get_ahead(event, arguments):
    if event == "os.remove":  # what another process does that starts at the same time, at the worst moment
        os.rename(arguments[0], f"{arguments[0]}.gone")

sys.addaudithook(get_ahead)
print(Metrics(several_processes=True).render().decode())
"""
UNUSED_PID: Final = 2**30
"""A process id above those of all processes."""


def test_process_starts_while_another_drops_metrics_of_dead_workers(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"gauge_livesum_{UNUSED_PID + number}.db").touch()
    done = subprocess.run(
        [sys.executable, "-c", OVERTAKEN],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Shown(done.stdout).value("tenantry_streams_open") == 0
    assert len(list(tmp_path.glob("gauge_livesum_*.db.gone"))) == 2
