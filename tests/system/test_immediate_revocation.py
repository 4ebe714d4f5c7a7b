"""Much that is taken away while eight clients use it, at four processes: nobody is let in again."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from tests.e2e.test_immediate_revocation import check_keys, check_members, check_tenants, unlimited
from tests.support.deployment import Deployment, deployed
from tests.support.figures import RecordProperty
from tests.support.issuer import Issuer, running_issuer
from tests.support.postgres import PostgresServer

PROCESSES: Final = "4"
REVOCATIONS: Final = 2000
OTHERS: Final = 200


@pytest.fixture(scope="module")
def conninfo_here(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield conninfo


@pytest.fixture(scope="module")
async def issuer() -> AsyncIterator[Issuer]:
    async with running_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
async def deployment(
    conninfo_here: str, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    folder = tmp_path_factory.mktemp("deployment")
    values = unlimited(conninfo_here, issuer, folder, PROCESSES)
    async with deployed(values["DATABASE_URL"], folder, **values) as deployment:
        yield deployment


async def test_revoked_key_is_never_let_in_again(
    conninfo_here: str, deployment: Deployment, record_property: RecordProperty
) -> None:
    await check_keys(conninfo_here, deployment, REVOCATIONS, record_property)


async def test_tenant_that_is_suspended_or_has_ended_is_shut_out_at_once(
    conninfo_here: str, deployment: Deployment, record_property: RecordProperty
) -> None:
    await check_tenants(conninfo_here, deployment, OTHERS, record_property)


async def test_member_who_is_removed_is_shut_out_at_once(
    conninfo_here: str, issuer: Issuer, deployment: Deployment, record_property: RecordProperty
) -> None:
    await check_members(conninfo_here, issuer, deployment, OTHERS, record_property)
