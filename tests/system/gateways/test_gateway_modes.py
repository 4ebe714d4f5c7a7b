"""Which modes a path accepts is written in the configuration; the client has no say in it."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.support.gateways import Gateway, ServiceBehindGateway, refused, running_gateway
from tests.support.service import Organization

CHANGES: Final = {
    "nginx": {
        "set $tenantry_scope reports:read/mode/live;": "set $tenantry_scope reports:read/mode/{};"
    },
    "caddy": {
        "vars tenantry_scope reports:read/mode/live\n": "vars tenantry_scope reports:read/mode/{}\n"
    },
}


@pytest.fixture(scope="session")
async def test_key(behind: ServiceBehindGateway, org: Organization) -> str:
    """A key in test mode that may do everything."""
    return str(
        (
            await behind.service.key(org.owner, org.id, accessLevel="OWNER", mode="test")
        ).caller.credential
    )


@pytest.fixture(
    scope="module", params=[(name, mode) for name in CHANGES for mode in ("test", "any")]
)
async def asking(
    request: pytest.FixtureRequest,
    behind: ServiceBehindGateway,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that asks for a mode where reports are read, and that mode."""
    name, mode = request.param
    changes = {old: new.format(mode) for old, new in CHANGES[name].items()}
    async with running_gateway(
        name, tmp_path_factory.mktemp(name), behind.port, changes
    ) as gateway:
        yield gateway, mode


@pytest.mark.parametrize(
    "target",
    [
        "/projects",
        "/projects/mode/test",
        "/reports/mode/any",
        "/projects?mode=test",
        "/projects%2Fmode%2Ftest",
        "/projects/mode/any?",
        "/me/mode/any",
    ],
)
async def test_test_key_is_rejected_by_the_unchanged_example(
    gateway: Gateway, test_key: str, target: str
) -> None:
    answer = await gateway.send("GET", target, ("X-Mode", "live"), credential=test_key)
    if "%2F" in target:
        assert answer.status == 400
    else:
        refused(answer, 403, "mode_mismatch")
    assert gateway.application.received == []


async def test_clients_path_adds_nothing_to_the_check(gateway: Gateway, owner: str) -> None:
    for target in ("/reports/mode/any", "/reports/feature:x", "/reports/mode/live/FEATURE:x"):
        gateway.line.forget()
        assert (await gateway.send("GET", target, credential=owner)).status == 200
        [asked] = gateway.line.requests()
        assert asked.target == "/api/v1/auth/verify/reports:read/mode/live"


async def test_test_key_is_accepted_if_configured(
    asking: tuple[Gateway, str], test_key: str, owner: str
) -> None:
    gateway, mode = asking
    gateway.application.received.clear()
    gateway.line.forget()
    assert (
        await gateway.send("GET", "/reports/7?a=b", ("X-Mode", "live"), credential=test_key)
    ).status == 200
    assert gateway.application.only().values("x-mode") == ["test"]
    assert [asked.target for asked in gateway.line.requests()] == [
        f"/api/v1/auth/verify/reports:read/mode/{mode}"
    ]
    gateway.application.received.clear()
    live = await gateway.send("GET", "/reports", ("X-Mode", "test"), credential=owner)
    if mode == "any":
        assert gateway.application.only().values("x-mode") == ["live"]
    else:
        refused(live, 403, "mode_mismatch")
    refused(await gateway.send("GET", "/projects", credential=test_key), 403, "mode_mismatch")
