"""Many keys and members are removed while eight clients use them at four processes: no later
request succeeds. The tests are those of `tests/e2e`, on another site.
"""

from collections.abc import AsyncIterator

import pytest

from tests.e2e.test_immediate_revocation import (
    Site,
    running_site,
    test_body_that_arrives_after_the_revocation_changes_nothing,
    test_removed_member_is_rejected_immediately,
    test_revoked_key_is_never_accepted_again,
    test_suspended_or_ended_tenant_is_rejected_immediately,
)
from tests.support.postgres import PostgresServer

__all__ = [
    "test_body_that_arrives_after_the_revocation_changes_nothing",
    "test_removed_member_is_rejected_immediately",
    "test_revoked_key_is_never_accepted_again",
    "test_suspended_or_ended_tenant_is_rejected_immediately",
]


@pytest.fixture(scope="module")
async def site(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    async with running_site(postgres, folder, "4", revocations=2000, others=200) as site:
        yield site
