"""Scopes of the operator's API on the pages of keys."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.dashboard.keys import KEYS, NEW, add_key, create, record
from tests.support.dashboard import Dashboard, dashboard_of_file
from tests.support.postgres import PostgresServer

CATALOG: Final = """
[[plans]]
id = "free"
[[scopes]]
id = "reports:read"
name = "Read <b>reports</b>"
about = "See every report & chart."
group = "Reports"
[[scopes]]
id = "exports:run"
name = "Run exports"
"""


@pytest.fixture(scope="module")
async def shared_dashboard(postgres: PostgresServer, people: Path) -> AsyncIterator[Dashboard]:
    async with dashboard_of_file(postgres, people, CATALOG) as dashboard:
        yield dashboard


async def test_form_offers_them_before_those_of_the_service(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    page = await olivia.open(NEW)
    offered = re.findall(r'name="scope" value="([^"]+)"', page.html)
    assert offered[:3] == ["reports:read", "exports:run", "projects:read"]
    assert "Read <b>reports</b> reports:read See every report & chart." in page.text
    assert "<b>reports" not in page.html


async def test_key_gets_them_by_a_check_box_and_keeps_them(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    key_id, _ = await create(olivia, scope=["reports:read", "projects:read"], own="others:read")
    assert (await record(dashboard, key_id))["scopes"] == [
        "reports:read",
        "projects:read",
        "others:read",
    ]
    form = (await olivia.open(f"{KEYS}/{key_id}/edit")).form()
    assert form.fields["scope"] == ["reports:read", "projects:read"]
    assert form.fields["own"] == ["others:read"]
    page = await olivia.open(f"{KEYS}/{key_id}")
    assert "Read <b>reports</b>" in page.text


async def test_scope_that_left_the_catalog_is_one_of_the_others(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in()
    key_id, _ = await add_key(dashboard, scopes=["former:read"])
    form = (await olivia.open(f"{KEYS}/{key_id}/edit")).form()
    assert form.fields["own"] == ["former:read"]
