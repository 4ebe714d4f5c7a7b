"""Explain a tenant's state: its entries in the order of the fold, compared with the stored
state.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest

from tenantry.billing.ledger_queries import OperatorLedger
from tenantry.domain.billing.explanation import BillingExplanation
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import NotFoundError
from tests.support import events
from tests.support.billing import EVENTS, Provider, rows
from tests.support.catalogs import CATALOG
from tests.support.events import NOW
from tests.support.patience import patient_database
from tests.support.service import Service


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


Explaining = Callable[[str, int], Awaitable[BillingExplanation]]


@pytest.fixture
async def explaining(service: Service) -> AsyncIterator[Explaining]:
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    policy = BillingPolicy(catalog=CATALOG)
    now = service.clock.now
    yield OperatorLedger(database, policy, lambda: now).explain
    await database.close()


async def test_entries_are_those_of_the_api_oldest_first(
    provider: Provider, explaining: Explaining
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.deleted(**subscriber.names, created=NOW + 10),
        events.updated(**subscriber.names),
        events.completed(org=subscriber.id, customer=subscriber.customer, created=NOW + 5),
    )
    assert subscriber.organization is not None
    listed = (await subscriber.organization.owner.get(EVENTS)).json()["data"]
    explanation = await explaining(subscriber.id, 10)
    assert [entry.id for entry in explanation.entries] == [
        entry["id"] for entry in reversed(listed)
    ]
    assert [entry.outcome for entry in explanation.entries] == ["late", "no_change", "applied"]
    assert (
        explanation.events,
        explanation.earlier,
        explanation.differences,
        explanation.parked,
    ) == (2, 0, (), 0)


async def test_events_of_one_second_are_in_the_proven_order(
    provider: Provider, explaining: Explaining
) -> None:
    subscriber = await provider.subscriber()
    last = events.updated(**subscriber.names, status="past_due", previous={"status": "active"})
    checkout = events.completed(org=subscriber.id, customer=subscriber.customer)
    first = events.updated(**subscriber.names, status="active", previous={"status": "trialing"})
    await provider.send(last, checkout, first)
    explanation = await explaining(subscriber.id, 10)
    assert [entry.id for entry in explanation.entries] == [first["id"], checkout["id"], last["id"]]
    assert explanation.state.subscription_status == "past_due"


async def test_the_newest_entries_are_kept_and_all_are_folded(
    provider: Provider, explaining: Explaining
) -> None:
    subscriber = await provider.subscriber()
    sent = [events.updated(**subscriber.names, created=NOW + number) for number in range(5)]
    await provider.send(*sent)
    explanation = await explaining(subscriber.id, 2)
    assert [entry.id for entry in explanation.entries] == [event["id"] for event in sent[-2:]]
    assert (explanation.earlier, explanation.events) == (3, 5)


async def test_the_whole_state_is_shown(provider: Provider, explaining: Explaining) -> None:
    subscriber = await provider.subscriber()
    await provider.send(
        events.updated(**subscriber.names, status="trialing"),
        events.failed(customer=subscriber.customer, created=NOW + 1),
    )
    explanation = await explaining(subscriber.id, 10)
    state = explanation.state
    assert (state.plan, state.subscription_status, state.provider_status) == (
        "pro",
        "past_due",
        "trialing",
    )
    assert (state.subscription_id, state.subscription_created) == (
        f"sub_{subscriber.id}",
        datetime.fromtimestamp(NOW - events.MONTH, UTC),
    )
    assert explanation.customers == (subscriber.customer,)


async def test_a_state_that_is_not_that_of_the_events_shows(
    provider: Provider, explaining: Explaining
) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names))
    await rows(
        provider.service.conninfo, "UPDATE tenants SET plan = 'gold' WHERE id = %s", subscriber.id
    )
    [difference] = (await explaining(subscriber.id, 10)).differences
    assert (difference.field, difference.stored, difference.folded) == ("plan", "gold", "pro")


async def test_grants_are_explained(provider: Provider, explaining: Explaining) -> None:
    subscriber = await provider.subscriber()
    path = f"/api/v1/tenants/{subscriber.id}/grants"
    await provider.service.operator.put(f"{path}/gone", {"plan": "pro", "reason": "a trial"})
    await provider.service.operator.delete(f"{path}/gone")
    await provider.send(events.updated(**subscriber.names))
    contract = {"plan": "business", "reason": "Contract 2027-014"}
    await provider.service.operator.put(f"{path}/contract", contract)
    explanation = await explaining(subscriber.id, 10)
    assert [(grant.name, grant.plan) for grant in explanation.grants] == [("contract", "business")]
    reasons = [entry.reason for entry in explanation.entries if "grant" in entry.type]
    assert reasons == [
        "Grant gone gives plan pro. By contract: a trial.",
        "The operator ended grant gone.",
        "Grant contract gives plan business. By contract: Contract 2027-014.",
    ]
    assert explanation.tenant.access.plan == "business"
    assert explanation.differences == ()


async def test_a_tenant_without_events_is_explained(
    provider: Provider, explaining: Explaining
) -> None:
    subscriber = await provider.subscriber(linked=False)
    explanation = await explaining(subscriber.id, 10)
    assert (explanation.entries, explanation.customers, explanation.events) == ((), (), 0)


async def test_an_ended_tenant_is_explained(provider: Provider, explaining: Explaining) -> None:
    subscriber = await provider.subscriber()
    await provider.service.operator.delete(f"/api/v1/tenants/{subscriber.id}")
    assert (await explaining(subscriber.id, 10)).ended


@pytest.mark.parametrize("name", ["missing", "nul\0"])
async def test_a_tenant_that_does_not_exist_is_named(explaining: Explaining, name: str) -> None:
    with pytest.raises(NotFoundError, match=name):
        await explaining(name, 10)
