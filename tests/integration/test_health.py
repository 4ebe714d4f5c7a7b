"""Liveness, readiness, metrics."""

import re

import psycopg

from tests.support.postgres import PostgresServer
from tests.support.service import PROJECTS, Service, running_service


async def test_service_is_alive_and_ready(service: Service) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await service.nobody.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "waitingFor": []})


async def test_without_its_schema_it_is_alive_but_not_ready(postgres: PostgresServer) -> None:
    with postgres.database(migrated=False) as conninfo:
        async with running_service(conninfo) as service:
            answer = await service.nobody.get("/readyz")
            assert (answer.status_code, answer.json()) == (503, {"status": "not ready", "waitingFor": ["schema"]})
            assert answer.headers["retry-after"] == "1"
            assert (await service.nobody.get("/healthz")).status_code == 200


async def test_schema_of_an_older_release_is_not_ready(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = '0000'")
    async with running_service(conninfo) as service:
        assert (await service.nobody.get("/readyz")).json()["waitingFor"] == ["schema"]


async def test_schema_of_a_newer_release_is_ready(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = '9999'")
    async with running_service(conninfo) as service:
        assert (await service.nobody.get("/readyz")).status_code == 200


async def test_metrics_count_requests_by_route_method_and_status(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        org = await service.organization()
        for _ in range(3):
            await org.owner.get(PROJECTS)
        await org.owner.get(f"{PROJECTS}/proj_1")
        await org.owner.get(f"{PROJECTS}/proj_2")
        await service.nobody.get("/nowhere")
        answer = await service.nobody.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    counted = {
        (found["route"], found["method"], found["status"]): float(found["count"])
        for found in re.finditer(
            r'^tenantry_http_requests_total\{method="(?P<method>\w+)",route="(?P<route>[^"]+)",'
            r'status="(?P<status>\d+)"\} '
            r"(?P<count>\S+)$",
            answer.text,
            re.MULTILINE,
        )
    }
    assert counted["/api/v1/projects", "GET", "200"] == 3
    assert counted["/api/v1/projects/{project_id}", "GET", "404"] == 2
    assert counted["unknown", "GET", "404"] == 1
    assert "\ntenantry_database_up 1\n" in answer.text
    assert "\ntenantry_notifications_queued 0\n" in answer.text
    assert str(org.owner.credential) not in answer.text


async def test_made_up_methods_and_paths_make_no_new_series(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        for number in range(5):
            await service.nobody.call(f"MADE{number}", f"/made/up/{number}")
        text = (await service.nobody.get("/metrics")).text
    assert 'method="other",route="unknown"' in text
    assert "MADE" not in text
    assert "/made/up" not in text
