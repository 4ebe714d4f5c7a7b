"""Rows that were created in the same moment are listed once each, page by page."""

from typing import Final

import pytest

from tests.integration.test_pagination import pages_of
from tests.support.billing import rows
from tests.support.service import KEYS, PROJECTS, Service

ONE_MOMENT: Final = {
    PROJECTS: "UPDATE projects SET created_at = '2026-03-01Z' WHERE org_id = %s",
    KEYS: "UPDATE api_keys SET created_at = '2026-03-01Z' WHERE org_id = %s",
}


@pytest.mark.parametrize("path", ONE_MOMENT)
async def test_no_row_is_lost_or_repeated_between_two_pages(service: Service, path: str) -> None:
    org = await service.organization()
    for name in "abc":
        assert (await org.owner.post(PROJECTS, {"name": name})).status_code == 201
        await service.key(org.owner, org.id, "a:b")
    await rows(service.conninfo, ONE_MOMENT[path], org.id)
    [everything] = await pages_of(org.owner, path, 100)
    assert len(everything) >= 3
    assert await pages_of(org.owner, path, 1) == [[row_id] for row_id in everything]
