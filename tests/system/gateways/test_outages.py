"""A part behind the gateway is down, hangs or fails: the gateway accepts no request for that
reason, and says why.
"""

import pytest

from tests.support.gateways import Gateway, ServiceBehindGateway, refused, running_gateway
from tests.support.ports import free_port


async def test_unreachable_service_is_503_for_every_request(gateway: Gateway, owner: str) -> None:
    await gateway.line.cut()
    answers = [
        await gateway.send("GET", "/projects", credential=owner),
        await gateway.send("POST", "/me"),
    ]
    public = await gateway.send("GET", "/status")
    received = len(gateway.application.received)
    await gateway.line.restore()
    for answer in answers:
        refused(answer, 503, "auth_unavailable")
        assert answer.header("retry-after") == "1"
    assert (public.status, received) == (200, 1)
    assert (await gateway.send("GET", "/projects", credential=owner)).status == 200


async def test_unreachable_database_is_503_for_every_request(
    gateway: Gateway, behind: ServiceBehindGateway, owner: str
) -> None:
    await behind.database.cut()
    answer = await gateway.send("GET", "/projects", credential=owner)
    await behind.database.restore()
    refused(answer, 503, "auth_unavailable")
    assert answer.header("retry-after") == "1"
    assert gateway.application.received == []
    assert (await gateway.send("GET", "/projects", credential=owner)).status == 200


async def test_service_that_hangs_is_503(
    running: Gateway,
    behind: ServiceBehindGateway,
    owner: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, soon = tmp_path_factory.mktemp("hangs"), {"_timeout 8s": "_timeout 1s"}
    async with running_gateway(running.name, folder, behind.port, soon) as gateway:
        gateway.line.block()
        refused(await gateway.send("GET", "/projects", credential=owner), 503, "auth_unavailable")
        assert gateway.application.received == []


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 502, 503])
@pytest.mark.parametrize("target", ["/projects", "/status"])
async def test_applications_own_errors_pass_as_they_are(
    gateway: Gateway, owner: str, target: str, status: int
) -> None:
    answer = await gateway.send("GET", f"{target}?answer={status}", credential=owner)
    assert (answer.status, answer.body, answer.header("x-from")) == (
        status,
        b"the application",
        "application",
    )
    assert answer.header("www-authenticate") is answer.header("retry-after") is None


async def test_unreachable_application_is_502(
    running: Gateway,
    behind: ServiceBehindGateway,
    owner: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, nowhere = (
        tmp_path_factory.mktemp("away"),
        {"127.0.0.1:8000": f"127.0.0.1:{free_port()}"},
    )
    async with running_gateway(running.name, folder, behind.port, nowhere) as gateway:
        assert (await gateway.send("GET", "/projects", credential=owner)).status == 502
        assert (await gateway.send("GET", "/status")).status == 502
        refused(await gateway.send("GET", "/projects"), 401, "missing_credential")
