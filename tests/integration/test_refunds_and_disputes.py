"""Refunds and disputes: each state of one is new once, in the tenant's ledger and in the feed. No
plan changes.
"""

import itertools
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from tests.support import events
from tests.support.billing import Provider, Subscriber
from tests.support.cases import cases
from tests.support.events import NOW, Shape
from tests.support.postgres import PostgresServer
from tests.support.replays import replay_one
from tests.support.reversals import (
    charge_refunded,
    disputed,
    paid_invoice,
    refund,
    refunded,
)
from tests.support.service import Service, running_service

FEED: Final = "/api/v1/operator/events"
_numbers = itertools.count(1)

Change = tuple[str | None, str, int]
"""The id, status and amount of a refund or dispute in the feed."""


@pytest.fixture
def provider(service: Service) -> Provider:
    return Provider(service)


class Payment:
    """A payment of a tenant's customer, with ids of its own."""

    def __init__(self, provider: Provider, subscriber: Subscriber) -> None:
        number = next(_numbers)
        self.provider = provider
        self.subscriber = subscriber
        self.names: dict[str, Any] = {"charge": f"ch_{number}", "intent": f"pi_{number}"}
        self._number = number

    def id(self, prefix: str) -> str:
        return f"{prefix}_{self._number}"

    def refund(self, name: str = "re", event_type: str = "refund.created", **fields: Any) -> Any:
        return refunded(event_type, refund_id=self.id(name), **{**self.names, **fields})

    def charge(self, total: int, before: int | None = 0, **fields: Any) -> Any:
        return charge_refunded(
            total, before, **{"customer": self.subscriber.customer, **self.names, **fields}
        )

    def dispute(self, event_type: str = "charge.dispute.created", **fields: Any) -> Any:
        return disputed(event_type, dispute_id=self.id("dp"), **{**self.names, **fields})

    async def send(self, *sent: dict[str, Any]) -> None:
        await self.provider.send(*sent)

    async def changes(self, kind: str = "billing.refunded") -> list[Change]:
        """The tenant's change events, with the ids as in the calls."""
        found = await self.feed(kind)
        ids = [each["id"] and each["id"].removesuffix(f"_{self._number}") for each in found]
        return [
            (name, each["status"], each["amount"]) for name, each in zip(ids, found, strict=True)
        ]

    async def feed(self, kind: str) -> list[dict[str, Any]]:
        answer = await self.provider.service.operator.get(
            FEED, orgId=self.subscriber.id, types=kind, limit=100
        )
        assert answer.status_code == 200, answer.text
        return [event["data"] for event in answer.json()["data"]]

    async def entry(self, event: dict[str, Any]) -> dict[str, Any]:
        return (await self.provider.ledger(self.subscriber))[event["id"]]

    async def outcomes(self, *sent: dict[str, Any]) -> list[str]:
        ledger = await self.provider.ledger(self.subscriber)
        return [ledger[event["id"]]["outcome"] for event in sent]


@pytest.fixture
async def payment(provider: Provider) -> Payment:
    """A payment of an invoice whose charge the ledger knows."""
    payment = Payment(provider, await provider.subscriber())
    names = payment.names
    await provider.send(
        paid_invoice(
            payment.subscriber.customer,
            invoice_id=payment.id("in"),
            charge=names["charge"],
            intent=names["intent"],
        )
    )
    return payment


# What is shown


async def test_a_refund_is_in_the_ledger_and_in_the_feed(payment: Payment) -> None:
    event = payment.refund(amount=1234)
    await payment.send(event)
    shown = {
        "id": payment.id("re"),
        "status": "succeeded",
        "amount": 1234,
        "currency": "eur",
        "reason": "requested_by_customer",
        "failureReason": None,
        "chargeId": payment.names["charge"],
        "paymentIntentId": payment.names["intent"],
        "eventId": event["id"],
    }
    assert await payment.feed("billing.refunded") == [shown]
    entry = await payment.entry(event)
    assert (entry["outcome"], entry["reversal"], entry["anomalies"]) == (
        "applied",
        shown,
        ["refunded"],
    )
    assert entry["reason"] == (
        f"Refund {payment.id('re')} of 12.34 EUR succeeded (requested_by_customer)."
    )


async def test_plan_and_status_stay(provider: Provider) -> None:
    subscriber = await provider.subscriber()
    await provider.send(events.updated(**subscriber.names))
    payment = Payment(provider, subscriber)
    before = await provider.tenant(subscriber)
    sent = [payment.charge(2900), payment.refund(amount=2900), payment.dispute(status="lost")]
    await provider.send(*sent)
    assert await provider.tenant(subscriber) == before
    entry = await payment.entry(sent[-1])
    assert entry["before"] == entry["after"]
    assert await provider.notifications(subscriber) == []


async def test_every_state_of_a_dispute_is_one_change(payment: Payment) -> None:
    states = ["needs_response", "under_review", "lost"]
    sent = [
        payment.dispute(),
        payment.dispute("charge.dispute.funds_withdrawn"),
        payment.dispute("charge.dispute.updated", status="under_review", at=NOW + 9),
        payment.dispute("charge.dispute.closed", status="lost", at=NOW + 99),
    ]
    await payment.send(*sent)
    assert await payment.changes("billing.disputed") == [("dp", each, 2900) for each in states]
    entry = await payment.entry(sent[0])
    assert (entry["anomalies"], entry["reversal"]["reason"]) == (["disputed"], "fraudulent")
    withdrawn = await payment.entry(sent[1])
    assert withdrawn["outcome"] == "no_change"
    assert withdrawn["reason"].endswith(
        "as an earlier event said. The provider withdrew the amount."
    )


async def test_a_failed_refund_takes_itself_back(payment: Payment) -> None:
    failure = payment.refund(
        "re", "refund.failed", status="failed", failure="lost_or_stolen_card", at=NOW + 9
    )
    await payment.send(payment.refund(), failure)
    assert await payment.changes() == [("re", "succeeded", 1000), ("re", "failed", 1000)]
    entry = await payment.entry(failure)
    assert entry["anomalies"] == ["refund_failed"]
    assert entry["reason"] == (
        f"Refund {payment.id('re')} of 10.00 EUR failed and does not count any more "
        "(lost_or_stolen_card)."
    )


async def test_a_failed_refund_leaves_room_for_another(payment: Payment) -> None:
    await payment.send(
        payment.refund(),
        payment.refund("re", "refund.failed", status="failed", at=NOW + 9),
        payment.charge(1000, None, at=NOW + 99),
    )
    assert await payment.changes() == [
        ("re", "succeeded", 1000),
        ("re", "failed", 1000),
        (None, "succeeded", 1000),
    ]


async def test_a_refund_fails_though_the_charge_reported_another_of_its_amount_before(
    payment: Payment,
) -> None:
    await payment.send(
        payment.charge(1000, at=NOW + 99),
        payment.refund(),
        payment.refund("re", "refund.failed", status="failed", at=NOW + 9),
        payment.charge(1000),
        payment.refund("rf", at=NOW + 99),
    )
    assert await payment.changes() == [
        (None, "succeeded", 1000),
        ("re", "failed", 1000),
        (None, "succeeded", 1000),
    ]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_refund_that_a_charge_may_have_reported_is_named_when_another_one_fails(
    payment: Payment, is_known: bool
) -> None:
    if not is_known:
        payment = Payment(payment.provider, payment.subscriber)  # of a charge without invoice
    sent = [payment.charge(1000), payment.refund("rf")]
    await payment.send(*(sent if is_known else reversed(sent)))
    await payment.send(
        payment.refund("re", "refund.failed", status="failed", at=NOW + 9),
        payment.charge(2000, 1000, at=NOW + 1),
        payment.refund("re"),
    )
    assert await payment.changes() == [
        (None, "succeeded", 1000),
        ("re", "failed", 1000),
        ("rf", "succeeded", 1000),
    ]


# Each once


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_events_of_one_refund_are_one_change(
    payment: Payment, order: tuple[int, ...]
) -> None:
    sent = [payment.charge(1000), payment.refund(), payment.refund("re", "refund.updated")]
    await payment.send(*(sent[each] for each in order))
    [(_, status, amount)] = await payment.changes()
    assert (status, amount) == ("succeeded", 1000)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("says_before", [True, False])
async def test_several_refunds_of_one_charge_are_one_change_each(
    payment: Payment, order: tuple[int, ...], says_before: bool
) -> None:
    sent = [
        payment.charge(1000, 0 if says_before else None),
        payment.refund("re"),
        payment.charge(2500, 1000 if says_before else None, at=NOW + 9),
        payment.refund("rf", amount=1500, at=NOW + 9),
    ]
    await payment.send(*(sent[each] for each in order))
    amounts = [amount for _, _, amount in await payment.changes()]
    assert sum(amounts) == 2500
    assert sorted(amounts) == [1000, 1500] or not says_before


async def test_two_refunds_of_one_amount_are_two_changes(payment: Payment) -> None:
    await payment.send(
        payment.charge(1000),
        payment.charge(2000, 1000, at=NOW + 9),
        payment.refund("re"),
        payment.refund("rf", at=NOW + 9),
    )
    assert await payment.changes() == [(None, "succeeded", 1000)] * 2


async def test_a_charge_that_lists_its_refunds_names_the_newest(payment: Payment) -> None:
    names = payment.names
    listed = [
        refund(payment.id("rf"), amount=500, created=NOW + 9, **names),
        refund(payment.id("re"), created=NOW, **names),
    ]
    await payment.send(
        payment.charge(1500, 1000, listed=listed, at=NOW + 9),
        payment.refund("rf", amount=500, at=NOW + 9),
    )
    assert await payment.changes() == [("rf", "succeeded", 500)]


async def test_a_pending_refund_becomes_a_paid_one(payment: Payment) -> None:
    await payment.send(
        payment.refund(status="pending"),
        payment.charge(1000),
        payment.refund("re", "refund.updated", status="succeeded", at=NOW + 9),
        payment.refund("re", "charge.refund.updated", status="succeeded", at=NOW + 9),
    )
    assert await payment.changes() == [("re", "pending", 1000), ("re", "succeeded", 1000)]


async def test_a_refund_that_its_charge_reported_does_not_become_pending(payment: Payment) -> None:
    pending = payment.refund(status="pending", at=NOW + 1)
    paid = payment.refund("re", "refund.updated", status="succeeded", at=NOW + 9)
    await payment.send(payment.charge(1000), pending, paid)
    assert await payment.changes() == [(None, "succeeded", 1000)]
    assert await payment.outcomes(pending, paid) == ["late", "no_change"]


async def test_an_older_state_that_arrives_late_is_no_change(payment: Payment) -> None:
    first, last = payment.refund(status="pending"), payment.refund(status="canceled", at=NOW + 9)
    await payment.send(last, first)
    assert await payment.changes() == [("re", "canceled", 1000)]
    assert await payment.outcomes(last, first) == ["applied", "late"]


async def test_states_of_one_second_have_an_order(payment: Payment) -> None:
    await payment.send(payment.dispute(status="won"), payment.dispute(status="under_review"))
    assert await payment.changes("billing.disputed") == [("dp", "won", 2900)]


async def test_an_inquiry_can_become_a_dispute(payment: Payment) -> None:
    states = ["warning_needs_response", "warning_closed", "needs_response", "won"]
    await payment.send(
        *(payment.dispute(status=each, at=NOW + number) for number, each in enumerate(states))
    )
    assert [state for _, state, _ in await payment.changes("billing.disputed")] == states


async def test_duplicate_deliveries_change_nothing(payment: Payment) -> None:
    event = payment.refund()
    await payment.send(event, event)
    assert len(await payment.changes()) == 1


async def test_deliveries_at_once_are_one_change(payment: Payment) -> None:
    sent = [payment.refund("re", each) for each in ("refund.created", "refund.updated")]
    await payment.provider.deliver_together([*sent, payment.charge(1000), *sent])
    assert [amount for _, _, amount in await payment.changes()] == [1000]


# Amounts and texts


@cases(
    ("currency", "amount", "shown"),
    [
        ("jpy", 500, "500 JPY"),
        ("kwd", 1234, "1.234 KWD"),
        ("usd", 0, "0.00 USD"),
        ("usd", 2**63 - 1, "92,233,720,368,547,758.07 USD"),
    ],
)
async def test_amounts_of_each_currency(
    provider: Provider, currency: str, amount: int, shown: str
) -> None:
    payment = Payment(provider, await provider.subscriber())
    await provider.send(payment.charge(1))
    event = payment.refund(amount=amount, currency=currency, reason="erfüllt (全額返金)")
    await payment.send(event)
    entry = await payment.entry(event)
    assert f" of {shown} succeeded (erfüllt (全額返金))." in entry["reason"]
    assert (entry["reversal"]["amount"], entry["reversal"]["currency"]) == (amount, currency)


@cases(
    ("fields", "outcome"),
    [
        ({"amount": 2**63}, "invalid"),
        ({"amount": "1000"}, "invalid"),
        ({"amount": -1}, "invalid"),
        ({"charge": ["ch_1"]}, "invalid"),
        ({"charge": None, "intent": None}, "ignored"),
        ({"charge": "a b", "intent": None}, "ignored"),
    ],
)
async def test_malformed_refunds_are_told_apart(
    provider: Provider, fields: dict[str, Any], outcome: str
) -> None:
    event = refunded(**fields)
    await provider.send(event)
    assert (await provider.stored(event["id"]) or {})["outcome"] == outcome


async def test_a_malformed_optional_field_is_left_out(payment: Payment) -> None:
    event = payment.refund(reason=["x"], currency=7)
    await payment.send(event)
    entry = await payment.entry(event)
    assert entry["reason"] == f"Refund {payment.id('re')} succeeded."
    assert entry["reversal"]["reason"] is None


# Whose it is


async def test_a_charge_belongs_to_its_customers_tenant(provider: Provider) -> None:
    payment = Payment(provider, await provider.subscriber())
    await payment.send(payment.charge(1000))
    assert await payment.changes() == [(None, "succeeded", 1000)]


async def test_a_payment_intent_alone_finds_the_invoice(payment: Payment) -> None:
    await payment.send(payment.refund(charge=None))
    assert await payment.changes() == [("re", "succeeded", 1000)]


async def test_a_refund_waits_for_a_charge_that_names_the_customer(provider: Provider) -> None:
    payment = Payment(provider, await provider.subscriber())
    first, dispute = payment.refund(), payment.dispute()
    await payment.send(first, dispute)
    stored = await provider.stored(first["id"]) or {}
    assert (stored["outcome"], stored["reason"]) == (
        "parked",
        f"Waits: payment {payment.names['charge']} is not known yet.",
    )
    await payment.send(payment.charge(1000))
    assert await payment.changes() == [(None, "succeeded", 1000)]
    assert await payment.outcomes(first) == ["no_change"]
    assert await payment.changes("billing.disputed") == [("dp", "needs_response", 2900)]


async def test_a_charge_waits_for_the_operators_link(provider: Provider) -> None:
    payment = Payment(provider, await provider.subscriber(linked=False))
    await payment.send(payment.charge(1000), payment.refund())
    await provider.arrives(payment.subscriber, stripeCustomerId=payment.subscriber.customer)
    [(_, status, amount)] = await payment.changes()
    assert (status, amount) == ("succeeded", 1000)


async def test_a_tenants_ledger_shows_no_refund_of_another(payment: Payment) -> None:
    other = Payment(payment.provider, await payment.provider.subscriber())
    await payment.send(payment.refund())
    assert await payment.provider.ledger(other.subscriber) == {}
    assert await other.changes() == []


async def test_an_ended_tenants_refund_is_no_change_event(payment: Payment) -> None:
    operator = payment.provider.service.operator
    path = f"/api/v1/tenants/{payment.subscriber.id}"
    assert (await operator.delete(path)).status_code == 204
    event = payment.refund()
    await payment.send(event)
    assert await payment.changes() == []
    assert await payment.outcomes(event) == ["applied"]


@pytest.fixture(scope="module")
async def each(postgres: PostgresServer) -> AsyncIterator[Provider]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, SUBSCRIPTIONS="each") as service:
            yield Provider(service)


async def test_the_invoice_decides_between_two_tenants_of_one_customer(each: Provider) -> None:
    first, second = await each.subscriber(), await each.subscriber(linked=False)
    payment = Payment(each, second)
    names = {**second.names, "customer": first.customer}
    invoice = events.succeeded(
        customer=first.customer,
        subscription_id=names["subscription_id"],
        invoice_id=payment.id("in"),
        shape=Shape.OLD,
    )
    charge = payment.charge(
        1000, customer=first.customer, invoice=payment.id("in"), shape=Shape.OLD
    )
    await each.send(events.updated(**names), invoice, charge, payment.refund())
    assert await payment.changes() == [(None, "succeeded", 1000)]
    assert await Payment(each, first).changes() == []


# Modes and accounts


@pytest.fixture(scope="module")
async def live_only(postgres: PostgresServer) -> AsyncIterator[Provider]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, PROVIDER_LIVEMODE="live") as service:
            yield Provider(service)


async def test_refunds_of_the_other_mode_are_ignored(live_only: Provider) -> None:
    payment = Payment(live_only, await live_only.subscriber())
    event = payment.charge(1000)
    await payment.send(event)
    assert await payment.changes() == []
    assert (await live_only.stored(event["id"]) or {})["outcome"] == "ignored"


async def test_a_replay_adds_no_change(payment: Payment) -> None:
    await payment.send(payment.refund(), payment.dispute())
    assert (await replay_one(payment.provider, payment.subscriber)).is_right
    assert len(await payment.changes()) == len(await payment.changes("billing.disputed")) == 1
