"""Subscriptions and customers that move between tenants: orders of arrival too slow for
`tests/integration`.
"""

import pytest

from tenantry.domain.billing.state import BillingPolicy
from tests.integration.test_events_without_metadata import (
    check_changes_of_links,
    check_orders_of_an_ended_tenant,
)
from tests.integration.test_moved_subscriptions import MOVES, check_orders, running
from tests.support.facts import ANY, EACH

SEEDS = range(100, 125)
MOST_ORDERS = 120
BOTH = pytest.mark.parametrize("policy", [ANY, EACH], ids=["any", "each"])


@pytest.mark.parametrize("name", MOVES)
async def test_every_order_of_a_move_ends_alike_and_mails_no_wrong_owner(
    conninfo: str, name: str
) -> None:
    async with running(conninfo) as scene:
        await check_orders(scene, MOVES[name], most=MOST_ORDERS)


@BOTH
async def test_a_customer_of_an_ended_tenant_brings_all_its_events_in_every_order(
    conninfo: str, policy: BillingPolicy
) -> None:
    await check_orders_of_an_ended_tenant(conninfo, policy, every=1)


@BOTH
async def test_events_and_final_links_alone_decide_the_state(
    conninfo: str, policy: BillingPolicy
) -> None:
    await check_changes_of_links(conninfo, policy, SEEDS)
