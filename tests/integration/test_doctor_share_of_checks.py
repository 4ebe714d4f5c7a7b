"""Doctor reads from the running server which part of its checks standbys have answered."""

from typing import Any

import pytest

from tenantry.cli.doctor.share_checks import check_share
from tenantry.domain.standby_checks import CheckSource
from tenantry.installation.findings import Finding, Level
from tenantry.server.asgi_types import AsgiApp
from tenantry.server.metrics import Metrics
from tests.support.findings import checked_settings, only
from tests.support.ports import free_port
from tests.support.serving import LOOPBACK, served

STANDBYS = "postgresql://db-eu.example/tenantry"


def showing(metrics: Metrics) -> AsgiApp:
    """An application whose every answer is these metrics."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": metrics.render()})

    return app


async def share_of(**checks: int) -> list[Finding]:
    metrics = Metrics(several_processes=False)
    for source, number in checks.items():
        metrics.checked(CheckSource(source), number)
    async with served(showing(metrics)) as address:
        port = address.rpartition(":")[2]
        return await check_share(share_settings(port))


def share_settings(port: str | int) -> Any:
    return checked_settings(
        DATABASE_URL="postgresql://db.example/tenantry",
        DATABASE_CHECKS_URL=STANDBYS,
        HOST="0.0.0.0",  # which is asked at the loopback address
        PORT=str(port),
    )


async def test_share_of_checks_at_standbys_is_shown() -> None:
    found = only(await share_of(standby=98, behind=2), Level.OK, remedied=False)
    assert found.message == "98.0% of 100 checks were answered by a standby"


async def test_reasons_are_shown_if_the_primary_answers_many_checks() -> None:
    found = only(await share_of(standby=80, behind=15, no_position=5), Level.WARNING)
    assert found.message == (
        "only 80.0% of 100 checks were answered by a standby (behind: 15, no_position: 5)"
    )


async def test_server_without_checks_has_no_share() -> None:
    assert only(await share_of(), Level.INFO, remedied=False).message == (
        "the server has had no checks yet"
    )


async def test_share_is_unknown_without_a_server() -> None:
    port = free_port()
    found = only(await check_share(share_settings(port)), Level.INFO, remedied=False)
    assert found.message.endswith(f"no `tenantry serve` answers at http://{LOOPBACK}:{port}")


@pytest.mark.parametrize("text", [b"<html>", b'tenantry_checks_total{source="standby'])
async def test_share_is_unknown_if_something_else_answers(text: bytes) -> None:
    class OtherMetrics(Metrics):
        def render(self) -> bytes:
            return text

    async with served(showing(OtherMetrics(several_processes=False))) as address:
        found = await check_share(share_settings(address.rpartition(":")[2]))
    assert "is not known" in only(found, Level.INFO, remedied=False).message
