"""Hundreds of deliveries in random orders to two processes, and chaos for one tenant at both of
them.
"""

from pathlib import Path
from typing import Final

from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.integrations.http_client import new_http_client
from tenantry_devkit.local.endpoint import WEBHOOK_PATH, Endpoint, RetryPolicy
from tenantry_devkit.local.samples import EventSubject, customer_of
from tenantry_devkit.local.service_reader import ServiceReader
from tests.support.app import OPERATOR_TOKEN
from tests.support.chaos import SENDERS, ChaosKind, expected, judge, plan, send
from tests.support.commands import SECRETS
from tests.support.deployment import deployed
from tests.support.facts import ANY
from tests.support.figures import RecordProperty
from tests.support.long_histories import long_history
from tests.support.orders_over_http import check_orders
from tests.support.postgres import as_url

EACH: Final = 7
LEAST_DELIVERIES: Final = 700
PRICES: Final = {"price_pro": 2900, "price_business": 9900}


async def test_random_orders_with_duplicates_to_two_processes_end_in_the_truth(
    conninfo: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    assert await check_orders(conninfo, tmp_path, record_property, EACH) >= LEAST_DELIVERIES


async def test_chaos_for_one_tenant_at_two_processes_converges(
    conninfo: str, tmp_path: Path
) -> None:
    subject = EventSubject("acme", customer_of("acme"), "price_pro")
    start = int(system_clock().timestamp()) - 600
    events = await long_history(subject, PRICES, events=200, start=start, seed=7)
    requests = plan(events, list(ChaosKind), seed=7)
    secret = Secret(SECRETS["PROVIDER_WEBHOOK_SECRET"])
    async with (
        deployed(as_url(conninfo), tmp_path, OPERATOR_TOKEN=OPERATOR_TOKEN) as deployment,
        new_http_client(30) as client,
    ):
        base = deployment.base_url
        reader = ServiceReader(client, base, operator=Secret(OPERATOR_TOKEN))
        assert reader.operator is not None
        await reader.operator.tenants.put("acme", name="Acme", owner_email="o@acme.example")
        endpoint = Endpoint(client, base + WEBHOOK_PATH, secret)
        answers = await send(requests, endpoint, senders=SENDERS, policy=RetryPolicy())
        view = await reader.tenant_view("acme")
    assert view.tenant is not None
    verdict = judge(events, expected(events, ANY), view.tenant, view.ledger or ())
    assert (answers.wrong, verdict.converged) == (0, True)
    assert sum(verdict.outcomes.values()) == 200
