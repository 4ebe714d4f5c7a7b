"""Thousands of deliveries in random orders to two processes, and chaos for one tenant at both of
them.
"""

import json
from pathlib import Path
from typing import Final

from tests.e2e.test_orders_over_http import check_orders
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import SECRETS, run
from tests.support.deployment import deployed
from tests.support.figures import RecordProperty
from tests.support.postgres import as_url

EACH: Final = 19
LEAST_DELIVERIES: Final = 2_000


async def test_random_orders_with_duplicates_to_two_processes_end_in_the_truth(
    conninfo: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    assert await check_orders(conninfo, tmp_path, record_property, EACH) >= LEAST_DELIVERIES


async def test_chaos_for_one_tenant_at_two_processes_converges(
    conninfo: str, tmp_path: Path
) -> None:
    async with deployed(as_url(conninfo), tmp_path, OPERATOR_TOKEN=OPERATOR_TOKEN) as deployment:
        values = {
            "TENANTRY_BASE_URL": deployment.base_url,
            "OPERATOR_TOKEN": OPERATOR_TOKEN,
            **SECRETS,
        }
        chaos = ("trigger", "--chaos", "all", "--times", "500", "--seed", "7", "--json")
        done = await run(*chaos, folder=tmp_path, **values)
    said = json.loads(done.out)
    assert (done.code, said["converged"], said["events"], said["wrong"]) == (0, True, 500, 0)
