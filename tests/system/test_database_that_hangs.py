"""A database that hangs, with the time limits of production: every request is answered within 5
s.
"""

import pytest

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tests.integration.test_webhook_failures import check_hanging, migrated_server


async def test_a_hanging_database_is_503(caplog: pytest.LogCaptureFixture) -> None:
    with migrated_server() as server:
        await check_hanging(server, caplog, DEFAULT_TIMEOUTS)
