"""Many keys and members are removed while eight clients use them at four processes: no later
request succeeds.
"""

from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.e2e.test_immediate_revocation import (
    Site,
    check_keys,
    check_members,
    check_slow_bodies,
    check_tenants,
    running_site,
)
from tests.support.figures import RecordProperty
from tests.support.postgres import PostgresServer

PROCESSES: Final = "4"
REVOCATIONS: Final = 2000
OTHERS: Final = 200


@pytest.fixture(scope="module")
async def site(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    async with running_site(postgres, tmp_path_factory.mktemp("site"), PROCESSES) as site:
        yield site


async def test_revoked_key_is_never_accepted_again(
    site: Site, record_property: RecordProperty
) -> None:
    await check_keys(site, REVOCATIONS, record_property)


async def test_suspended_or_ended_tenant_is_rejected_immediately(
    site: Site, record_property: RecordProperty
) -> None:
    await check_tenants(site, OTHERS, record_property)


async def test_removed_member_is_rejected_immediately(
    site: Site, record_property: RecordProperty
) -> None:
    await check_members(site, OTHERS, record_property)


async def test_body_that_arrives_after_the_revocation_changes_nothing(
    site: Site, record_property: RecordProperty
) -> None:
    await check_slow_bodies(site, OTHERS, record_property)
