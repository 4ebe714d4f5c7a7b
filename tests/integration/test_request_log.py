"""The request log."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from tenantry.common.logs import ConsoleFormatter, JsonFormatter
from tests.support import events
from tests.support.billing import Provider
from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.rate_limits import CATALOG, tenant_of
from tests.support.service import PROJECTS, WHOAMI, Caller, Service, running_service

ID: Final = {"X-Request-Id": "asked-by-the-test"}


class Lines(logging.Handler):
    """The log of requests as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.written: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.written.append(json.loads(self.format(record)))

    def only(self) -> dict[str, Any]:
        """Return the one line, without its time and the request's duration."""
        [line] = self.written
        assert line.pop("time")
        assert line.pop("duration_ms") >= 0
        return line


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, lines = logging.getLogger("tenantry.requests"), Lines()
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(lines)


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(shared_database.conninfo, LOG_REQUESTS="true") as service:
        yield service


async def logged(lines: Lines, caller: Caller, path: str, method: str = "GET") -> dict[str, Any]:
    """The line of one request."""
    lines.written.clear()
    await caller.call(method, path, headers=ID)
    return lines.only()


def line(**told: object) -> dict[str, object]:
    route, status = told["route"], told["status"]
    method = told.get("method", "GET")
    return {
        "level": "info",
        "logger": "tenantry.requests",
        "message": f"{method} {route} {status}",
        "method": method,
        "request_id": "asked-by-the-test",
        **told,
    }


async def test_request_is_logged_with_caller_route_and_outcome(
    service: Service, lines: Lines
) -> None:
    org = await service.organization()
    key = {"tenant": org.id, "principal": "api_key"}
    user = service.user(org=org.id, role="owner")
    anonymous = {"principal": "none"}
    assert [
        await logged(lines, org.owner, PROJECTS),
        await logged(lines, org.owner, f"{PROJECTS}/proj_1"),
        await logged(lines, user, WHOAMI),
        await logged(lines, service.operator, f"{org.path}/export"),
        await logged(lines, service.anonymous, PROJECTS),
        await logged(lines, service.caller("svc_live_nonsense"), WHOAMI),
        await logged(lines, service.anonymous, "/nowhere/at/all"),
        await logged(lines, service.anonymous, "/nowhere", "MADEUP"),
    ] == [
        line(**key, route=PROJECTS, status=200, outcome="ok"),
        line(**key, route=f"{PROJECTS}/{{project_id}}", status=404, outcome="not_found"),
        line(tenant=org.id, principal="user", route=WHOAMI, status=200, outcome="ok"),
        line(
            principal="operator",
            route="/api/v1/tenants/{tenant_id}/export",
            status=200,
            outcome="ok",
        ),
        line(**anonymous, route=PROJECTS, status=401, outcome="missing_credential"),
        line(**anonymous, route=WHOAMI, status=401, outcome="invalid_credential"),
        line(**anonymous, route="unknown", status=404, outcome="not_found"),
        line(**anonymous, route="unknown", status=404, outcome="not_found", method="other"),
    ]


async def test_event_is_logged_with_id_type_tenant_and_outcome(
    service: Service, lines: Lines
) -> None:
    provider = Provider(service)
    subscriber = await provider.subscriber()
    event = events.updated(**subscriber.names)
    told = []
    for _ in range(2):
        lines.written.clear()
        await provider.send(event)
        told.append(lines.only())
    lines.written.clear()
    await provider.post(event, secret="whsec_of_somebody_else_0123456789")
    told.append(lines.only())
    verified = event["id"], event["type"]
    assert [
        (
            entry["outcome"],
            entry.get("tenant"),
            entry["status"],
            entry.get("event"),
            entry.get("event_type"),
        )
        for entry in told
    ] == [
        ("applied", subscriber.id, 200, *verified),
        ("duplicate", None, 200, *verified),
        ("no_match", None, 400, None, None),  # the content of a forgery is not logged
    ]


async def test_health_checks_and_metrics_are_not_logged(service: Service, lines: Lines) -> None:
    lines.written.clear()
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await service.anonymous.get(path)).status_code == 200
    assert lines.written == []


async def test_without_the_setting_no_request_is_logged(emptied: str, lines: Lines) -> None:
    async with running_service(emptied) as service:
        await service.anonymous.get(PROJECTS)
        await service.anonymous.get(WHOAMI)
    assert lines.written == []


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("tenantry.requests", logging.INFO, "", 0, "GET / 200", (), None)
    made.fields = fields
    return made


def test_for_people_the_fields_follow_the_message() -> None:
    text = ConsoleFormatter().format(record(tenant="acme", status=200))
    assert text.endswith("INFO    tenantry.requests  GET / 200 tenant=acme status=200")


@pytest.mark.parametrize("formatter", [ConsoleFormatter(), JsonFormatter()])
def test_no_field_shows_a_secret_or_makes_another_line(formatter: logging.Formatter) -> None:
    text = formatter.format(
        record(request_id="svc_live_0123456789abcdefghijklmnopqrstuv\nINFO all is well")
    )
    assert "0123456789abc" not in text
    assert "\n" not in text


async def test_rate_limited_caller_is_logged_by_name(conninfo: str, lines: Lines) -> None:
    async with running_service(
        conninfo, LOG_REQUESTS="true", TENANTRY_PLANS=catalog_file(CATALOG)
    ) as service:
        org = await tenant_of(service)
        for _ in range(5):
            await org.owner.get(WHOAMI)
        key = {"tenant": org.id, "principal": "api_key"}
        for path in (WHOAMI, PROJECTS):
            refused = line(**key, route=path, status=429, outcome="rate_limited")
            assert await logged(lines, org.owner, path) == refused
