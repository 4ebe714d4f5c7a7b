"""``tenantry usage``: which key sends how many requests."""

import json
from datetime import timedelta
from typing import Final

import pytest

from tenantry.domain.usage import ALL_USERS, RequestOutcome
from tests.cli.command_support import Workspace
from tests.support.issuer import NOW
from tests.support.service import Key
from tests.support.usage import write_usage

YESTERDAY: Final = ("--since", "2025-12-31", "--until", "2026-01-01")
"""The requests of a test itself, which are counted too, are of today."""


@pytest.fixture
async def busy(workspace: Workspace) -> Key:
    """A key of the organization, which sent most of its requests."""
    org = workspace.organization
    key = await workspace.served.service.key(org.owner, org.id, "projects:read", name="Nightly")
    numbers = {
        (key.id, RequestOutcome.ACCEPTED): 5,
        (key.id, RequestOutcome.FORBIDDEN): 2,
        (ALL_USERS, RequestOutcome.ACCEPTED): 3,
    }
    yesterday = NOW - timedelta(days=1)
    await write_usage(workspace.served.service.conninfo, yesterday, org.id, numbers)
    return key


def table_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_the_busiest_key_comes_first_with_its_name(workspace: Workspace, busy: Key) -> None:
    shown = await workspace.run("usage", "--by", "key", *YESTERDAY)
    heading, first, second = table_of(shown.out)
    assert heading == ["KEY", "NAME", "REQUESTS", "SHARE"]
    assert first == [busy.id, "Nightly", "7", "70.0%"]
    assert second == ["(all", "users)", "3", "30.0%"]
    assert shown.err.startswith("Complete until ")


async def test_requests_are_added_up_by_outcome_or_listed_by_time(
    workspace: Workspace, busy: Key
) -> None:
    outcomes = table_of(
        await workspace.done("usage", "--by", "outcome", "--key", busy.id, *YESTERDAY)
    )
    days = table_of(await workspace.done("usage", "--by", "time", "--interval", "day", *YESTERDAY))
    assert outcomes[1:] == [["accepted", "5", "71.4%"], ["forbidden", "2", "28.6%"]]
    assert days[1:] == [["2025-12-31", "00:00", "10", "100.0%"]]


async def test_json_is_the_answer_of_the_api(workspace: Workspace, busy: Key) -> None:
    report = json.loads(await workspace.done("usage", "--json", *YESTERDAY))
    assert {count["keyId"]: count["count"] for count in report["data"]} == {busy.id: 7, None: 3}
    assert "completeUntil" in report


async def test_keys_have_no_names_for_a_credential_that_may_not_list_them(
    workspace: Workspace, busy: Key
) -> None:
    _, secret = await workspace.key("usage:read")
    shown = table_of(await workspace.done("usage", *YESTERDAY, TENANTRY_API_KEY=secret))
    assert shown[:2] == [["KEY", "REQUESTS", "SHARE"], [busy.id, "7", "70.0%"]]


async def test_no_requests_are_said_so(workspace: Workspace) -> None:
    shown = await workspace.run("usage", "--key", "key_none")
    assert (shown.code, shown.out, shown.err) == (0, "", "No requests in that time.\n")


async def test_the_operator_sees_which_tenant_calls_most(workspace: Workspace, busy: Key) -> None:
    org = workspace.organization.id
    since = (*YESTERDAY, "--org", org)
    database = {"DATABASE_URL": workspace.served.service.conninfo}
    tenants = table_of(await workspace.done("admin", "usage", *since, **database))
    keys = table_of(await workspace.done("admin", "usage", "--by", "key", *since, **database))
    assert tenants[1:] == [[org, "10", "100.0%"]]
    assert keys[1][:3] == [org, busy.id, "7"]
