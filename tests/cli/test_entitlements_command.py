"""Features and quotas at the command line."""

import json
from collections.abc import AsyncIterator

import pytest

from tests.cli.command_support import Home, Workspace
from tests.sdk.sdk_support import Served, serving
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
async def selling(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service with features in its plan catalog."""
    with postgres.database() as conninfo:
        async with serving(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as running:
            yield running


@pytest.fixture
async def basic(selling: Served, home: Home) -> Workspace:
    """A tenant of the plan ``basic``."""
    return Workspace(selling, await tenant_of(selling.service, "basic"), home)


async def test_features_are_listed_with_their_use(basic: Workspace) -> None:
    await basic.done("entitlements", "consume", "exports", "4")
    table = [line.split() for line in (await basic.done("entitlements", "list")).splitlines()]
    assert table[0] == [
        *("FEATURE", "TYPE", "GRANTED", "LIMIT", "USED", "REMAINING"),
        *("RESETS", "(UTC)", "SOURCE"),
    ]
    assert table[1] == ["sso", "boolean", "false", "-", "-", "-", "-", "-"]
    assert table[2] == ["audit-log", "boolean", "true", "-", "-", "-", "-", "plan"]
    assert table[4][:6] == ["exports", "metered", "true", "10", "4", "6"]
    lines = (await basic.done("entitlements", "list", "--json")).splitlines()
    assert [json.loads(line)["feature"] for line in lines] == [
        *("sso", "audit-log", "seats", "exports"),
    ]


async def test_feature_is_shown(basic: Workspace, selling: Served) -> None:
    shown = dict(
        line.split(maxsplit=1)
        for line in (await basic.done("entitlements", "show", "exports")).splitlines()
    )
    expected = {"feature": "exports", "granted": "true", "limit": "10", "used": "0"}
    assert {name: shown[name] for name in expected} == expected
    document = json.loads(await basic.done("entitlements", "show", "exports", "--json"))
    assert (document["remaining"], document["source"]) == (10, "plan")
    pro = Workspace(selling, await tenant_of(selling.service, "pro"), basic.home)
    assert "no limit" in await pro.done("entitlements", "show", "exports")
    missing = await basic.run("entitlements", "show", "unknown")
    assert (missing.code, "no feature 'unknown'" in missing.err) == (5, True)


async def test_consume_prints_what_is_left_alone_on_stdout(basic: Workspace) -> None:
    consume = ("entitlements", "consume", "exports")
    first = await basic.run(*consume)
    assert first.out == "9\n"
    assert first.err.startswith("Counted 1 of exports: 1 used until ")
    assert json.loads(await basic.done(*consume, "3", "--json"))["used"] == 4
    for _ in range(2):
        again = await basic.done(*consume, "2", "--idempotency-key", "export-7")
        assert again == "4\n"


async def test_exceeded_quota_counts_nothing_and_ends_with_1(basic: Workspace) -> None:
    exceeded = await basic.run("entitlements", "consume", "exports", "11")
    assert (exceeded.code, exceeded.out) == (1, "")
    assert "larger plan" in exceeded.err
    document = json.loads((await basic.run("entitlements", "consume", "sso", "--json")).err)
    assert document["error"]["code"] == "feature_not_metered"
    assert await basic.done("entitlements", "consume", "exports", "10") == "0\n"


@cases("amount", ["0", "-1", "1000000001", "x", "1.5"])
async def test_invalid_amount_is_not_sent(basic: Workspace, amount: str) -> None:
    assert (await basic.run("entitlements", "consume", "exports", "--", amount)).code == 2
