"""A path of a gateway that needs a feature of the plan."""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.support.gateways import (
    FEATURES,
    Gateway,
    ServiceBehindGateway,
    refused,
    running_gateway,
)

CHANGES: Final = {
    "nginx": ("set $tenantry_scope {}/mode/live;", "set $tenantry_scope {}/feature:{}/mode/live;"),
    "caddy": (
        "vars tenantry_scope {}/mode/live\n",
        "vars tenantry_scope {}/feature:{}/mode/live\n",
    ),
}


@pytest.fixture(scope="module", params=CHANGES)
async def asking(
    request: pytest.FixtureRequest,
    behind: ServiceBehindGateway,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Gateway]:
    """A gateway whose /reports needs the feature ``exports``, and whose /me needs ``sso``."""
    old, new = CHANGES[request.param]
    needed = {"reports:read": "exports", "-": "sso"}
    changes = {old.format(scope): new.format(scope, feature) for scope, feature in needed.items()}
    async with running_gateway(
        request.param, tmp_path_factory.mktemp(request.param), behind.port, changes
    ) as gateway:
        yield gateway


async def test_feature_of_the_plan_is_accepted_and_named(asking: Gateway, owner: str) -> None:
    asking.application.received.clear()
    asking.line.forget()
    spoofed = (FEATURES, "sso")
    answer = await asking.send("GET", "/reports/7", spoofed, credential=owner)
    assert answer.status == 200
    assert asking.application.only().values("x-features") == ["exports"]
    [asked] = asking.line.requests()
    assert asked.target == "/api/v1/auth/verify/reports:read/feature:exports/mode/live"


async def test_missing_feature_is_rejected_with_the_problem(asking: Gateway, owner: str) -> None:
    asking.application.received.clear()
    answer = await asking.send("GET", "/me", (FEATURES, "sso"), credential=owner)
    refused(answer, 403, "feature_not_granted")
    assert asking.application.received == []
