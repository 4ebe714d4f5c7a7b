"""Sample events and chaos, sent to the whole service."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import httpx2
import msgspec
import pytest

from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import KNOWN_TYPES
from tenantry.domain.billing.state import BillingPolicy
from tenantry.integrations.http_client import new_http_client
from tenantry_cli.output import CommandError
from tenantry_devkit.local.endpoint import WEBHOOK_PATH, Endpoint
from tenantry_devkit.local.samples import (
    EventSubject,
    Json,
    customer_of,
    sample_event,
)
from tenantry_devkit.local.service_reader import ServiceReader
from tenantry_sdk.errors import AuthenticationError, ConnectionFailedError
from tests.support.app import OPERATOR_TOKEN
from tests.support.chaos import SENDERS, ChaosKind, RequestKind, expected, judge, plan, send
from tests.support.facts import ANY, EACH
from tests.support.local import QUICK, SECRET, served_service
from tests.support.long_histories import long_history
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer

PRICES: Final = {"price_pro": 2900, "price_business": 9900}
STATUSES: Final = {
    ev.SUBSCRIPTION_DELETED: "canceled",
    ev.SUBSCRIPTION_PAUSED: "paused",
    ev.PAYMENT_FAILED: "past_due",
}
"""The status of a paying tenant after an event, if it is not active."""


class Bench(NamedTuple):
    """The running service, and clients to send events and read tenants."""

    base: str
    client: httpx2.AsyncClient
    endpoint: Endpoint
    reader: ServiceReader

    async def tenant(self, tenant_id: str, *, customer: str | None = None) -> EventSubject:
        """Create a tenant; without a customer it is not linked to one yet."""
        assert self.reader.operator is not None
        await self.reader.operator.tenants.put(
            tenant_id,
            name=tenant_id,
            owner_email=f"owner@{tenant_id}.example",
            stripe_customer_id=customer,
        )
        return EventSubject(tenant_id, customer or customer_of(tenant_id), "price_pro")


@pytest.fixture(scope="module")
async def bench(postgres: PostgresServer) -> AsyncIterator[Bench]:
    async with running_bench(postgres) as bench:
        yield bench


@pytest.fixture(scope="module")
async def each_bench(postgres: PostgresServer) -> AsyncIterator[Bench]:
    """A service in which each subscription has its own state."""
    async with running_bench(postgres, SUBSCRIPTIONS="each") as bench:
        yield bench


@asynccontextmanager
async def running_bench(postgres: PostgresServer, **values: str) -> AsyncIterator[Bench]:
    with postgres.database() as conninfo:
        async with served_service(conninfo, **values) as base, new_http_client(30) as client:
            endpoint = Endpoint(client, base + WEBHOOK_PATH, Secret(SECRET))
            yield Bench(
                base, client, endpoint, ServiceReader(client, base, operator=Secret(OPERATOR_TOKEN))
            )


def now() -> int:
    return int(system_clock().timestamp())


async def test_every_known_type_is_handled(bench: Bench, each_bench: Bench) -> None:
    for event_type in sorted(KNOWN_TYPES):
        await check_sample(bench, event_type)
        await check_sample(each_bench, event_type)


async def check_sample(bench: Bench, event_type: str) -> None:
    """Send a sample event after an update, and check its effect and both outcomes."""
    subject = await bench.tenant(f"sample-{event_type.replace('.', '-')}")
    start = now() - 10
    for place, each in enumerate((ev.SUBSCRIPTION_UPDATED, event_type)):
        event = sample_event(each, subject, created=start + place)
        answer = await bench.endpoint.post(msgspec.json.encode(event))
        assert (answer.status, answer.text) == (200, "OK")
    view = await bench.reader.tenant_view(subject.tenant)
    assert view.tenant is not None
    assert view.tenant.subscription_status == STATUSES.get(event_type, "active"), event_type
    outcomes = [entry.outcome for entry in view.ledger or ()]
    assert len(outcomes) == 2, event_type
    assert set(outcomes) <= {"applied", "no_change"}, event_type


async def test_state_converges(bench: Bench) -> None:
    subject = await bench.tenant("chaos")
    events = await long_history(subject, PRICES, events=40, start=now() - 100, seed=1)
    await check_chaos(bench, subject, events, ANY)


async def test_several_subscriptions_converge(each_bench: Bench) -> None:
    subject = await each_bench.tenant("chaos-each")
    events = await long_history(
        subject, PRICES, events=120, start=now() - 150, seed=1, is_each=True
    )
    await check_chaos(each_bench, subject, events, EACH)


async def check_chaos(
    bench: Bench,
    subject: EventSubject,
    events: Sequence[Json],
    policy: BillingPolicy,
) -> None:
    """Deliver a history badly, and check the state, the ledger and every answer."""
    requests = plan(events, tuple(ChaosKind), 1)
    answers = await send(requests, bench.endpoint, senders=SENDERS, policy=QUICK)
    view = await bench.reader.tenant_view(subject.tenant)
    assert view.tenant is not None
    verdict = judge(events, expected(events, policy), view.tenant, view.ledger or ())
    assert (answers.wrong, answers.examples) == (0, [])
    assert verdict.expected == verdict.actual
    assert verdict.converged
    assert sum(verdict.outcomes.values()) == len(events)
    assert {(kind, status) for kind, status in answers.counts} <= {
        (RequestKind.EVENT, 200),
        (RequestKind.DUPLICATE, 200),
        (RequestKind.STALE, 400),
        (RequestKind.FORGED, 400),
    }


async def test_service_that_accepts_forgeries_is_detected(bench: Bench) -> None:
    subject = await bench.tenant("forged")
    events = await long_history(subject, PRICES, events=40, start=now() - 100, seed=1)
    gullible = [
        sending._replace(forgery=None) for sending in plan(events, {ChaosKind.BAD_SIGNATURE}, 1)
    ]  # as if the service did not check
    answers = await send(gullible, bench.endpoint, senders=1, policy=QUICK)
    view = await bench.reader.tenant_view(subject.tenant)
    assert view.tenant is not None
    verdict = judge(events, expected(events, ANY), view.tenant, view.ledger or ())
    assert answers.wrong == verdict.forged
    assert answers.wrong > 0
    assert not verdict.converged


async def test_key_reads_its_own_tenant_only(bench: Bench) -> None:
    subject = await bench.tenant("own-key")
    made = await bench.client.put(
        f"{bench.base}/api/v1/tenants/own-key",
        json={"name": "own-key", "ownerEmail": "o@x.example"},
        headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
    )
    assert made.status_code == 200
    anonymous = ServiceReader(bench.client, bench.base)
    view = await anonymous.tenant_view(subject.tenant)
    assert "TENANTRY_API_KEY is not a key of this tenant" in view.problem
    assert view.ledger is None
    assert await anonymous.own_tenant() is None
    missing = await bench.reader.tenant_view("missing")
    assert missing.problem.startswith("There is no tenant missing.")


async def test_rejected_credential_and_unreachable_service_have_own_errors(bench: Bench) -> None:
    unknown_key = Secret("svc_live_nothing")
    with pytest.raises(AuthenticationError):
        await ServiceReader(bench.client, bench.base, api_key=unknown_key).own_tenant()
    with pytest.raises(AuthenticationError):
        await ServiceReader(bench.client, bench.base, operator=Secret("op_nothing")).tenant_view(
            "acme"
        )
    away = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionFailedError):
        await ServiceReader(bench.client, away, api_key=unknown_key).own_tenant()
    endpoint = Endpoint(bench.client, away, Secret(SECRET))
    with pytest.raises(CommandError, match="does not answer"):
        await endpoint.deliver(b"{}")
