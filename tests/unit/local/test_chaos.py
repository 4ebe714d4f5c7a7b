"""Long histories, their delivery plans, and the states that they lead to."""

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tenantry.domain.billing.events import KNOWN_TYPES, REQUIRED_TYPES
from tenantry.integrations.stripe.decode import decode_event
from tenantry_devkit.local.samples import EventSubject
from tenantry_devkit.simulator import NEW_VERSION, OLD_VERSION, render_event
from tenantry_sdk import BillingEvent, Tenant, TenantAccess
from tests.support.cases import cases
from tests.support.chaos import ChaosKind, RequestKind, expected, judge, plan
from tests.support.facts import ANY, EACH
from tests.support.long_histories import SHORTEST_HISTORY, long_history

ACME: Final = EventSubject("acme", "cus_acme", "price_pro")
PRICES: Final = {"price_pro": 2900, "price_business": 9900}
START: Final = 1_767_268_800
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def life(
    events: int = 120, seed: int = 0, api_version: str = NEW_VERSION
) -> list[dict[str, Any]]:
    return await long_history(
        ACME, PRICES, events=events, start=START, seed=seed, api_version=api_version
    )


@cases("seed", range(12))
async def test_long_history_has_all_types_the_wanted_length_and_proves_its_order(seed: int) -> None:
    events = await life(150, seed, (NEW_VERSION, OLD_VERSION)[seed % 2])
    assert len(events) == 150
    assert REQUIRED_TYPES < {event["type"] for event in events} <= KNOWN_TYPES
    moments = [event["created"] for event in events]
    assert moments == sorted(moments)
    assert START <= moments[0] <= moments[-1] < START + 150
    wanted = expected(events, ANY)
    assert wanted.ambiguous == 0
    shuffled = random.Random(seed).sample(events, len(events))  # noqa: S311
    assert expected(shuffled, ANY) == wanted


@cases("types", [REQUIRED_TYPES, KNOWN_TYPES], ids=["required", "known"])
@cases("seed", range(6))
async def test_history_of_several_subscriptions_proves_its_order(
    seed: int, types: frozenset[str]
) -> None:
    events = await long_history(
        ACME, PRICES, events=150, start=START, seed=seed, types=types, is_each=True
    )
    assert len(events) == 150
    assert {event["type"] for event in events} <= types
    things = [event["data"]["object"] for event in events]
    assert len({thing["id"] for thing in things if thing["object"] == "subscription"}) > 3
    wanted = expected(events, EACH)
    assert wanted.ambiguous == 0
    shuffled = random.Random(seed).sample(events, len(events))  # noqa: S311
    assert expected(shuffled, EACH) == wanted


async def test_history_of_several_subscriptions_has_seats_pauses_and_moments_of_cancellation() -> (
    None
):
    events = await long_history(ACME, PRICES, events=300, start=START, seed=1, is_each=True)
    facts = [
        decode_event(msgspec.json.encode(event), arrived=0, make_up_id=str) for event in events
    ]
    assert any(fact.details.pause for fact in facts)
    assert any(fact.details.cancel_at and not fact.cancel_at_period_end for fact in facts)
    assert any(item.quantity > 1 for fact in facts for item in fact.details.items)


async def test_history_of_the_required_types_proves_its_order() -> None:
    for seed in range(6):
        events = await long_history(
            ACME, PRICES, events=100, start=START, seed=seed, types=REQUIRED_TYPES
        )
        assert expected(events, ANY).ambiguous == 0


async def test_shortest_history_and_repeatable_history() -> None:
    def said(events: list[dict[str, Any]]) -> list[tuple[str, int, str | None]]:
        return [
            (event["type"], event["created"], event["data"]["object"].get("status"))
            for event in events
        ]

    for seed in range(20):
        assert len(await life(SHORTEST_HISTORY, seed)) == SHORTEST_HISTORY
    assert said(await life(seed=5)) == said(await life(seed=5))
    assert said(await life(seed=5)) != said(await life(seed=6))


async def test_plan_without_chaos_is_the_history() -> None:
    events = await life()
    assert [(each.kind, each.event_id) for each in plan(events, (), 1)] == [
        (RequestKind.EVENT, event["id"]) for event in events
    ]


@cases("kind", list(ChaosKind))
async def test_each_chaos_kind_has_its_own_effect_and_omits_no_event(kind: ChaosKind) -> None:
    events = await life()
    ids = [event["id"] for event in events]
    sendings = plan(events, {kind}, 1)
    assert plan(events, {kind}, 1) == sendings
    assert plan(events, {kind}, 2) != sendings
    parts = Counter(sending.kind for sending in sendings)
    genuine = [sending.event_id for sending in sendings if sending.kind is RequestKind.EVENT]
    assert sorted(genuine) == sorted(ids)
    assert (genuine == ids) is (kind not in {ChaosKind.REORDER, ChaosKind.DELAY})
    extra = {
        ChaosKind.DUPLICATE: RequestKind.DUPLICATE,
        ChaosKind.STALE: RequestKind.STALE,
        ChaosKind.BAD_SIGNATURE: RequestKind.FORGED,
    }
    assert set(parts) - {RequestKind.EVENT} == ({extra[kind]} if kind in extra else set())
    if kind is ChaosKind.DELAY:
        late = next(place for place, event_id in enumerate(genuine) if ids.index(event_id) != place)
        assert genuine[:late] == ids[:late]


async def test_forgery_is_a_different_event() -> None:
    events = await life()
    forged = [
        each
        for each in plan(events, {ChaosKind.BAD_SIGNATURE}, 1)
        if each.kind is RequestKind.FORGED
    ]
    assert len({each.forgery for each in forged}) == 4
    ids = {event["id"] for event in events}
    for each in forged:
        assert msgspec.json.decode(each.body)["id"] == each.event_id
        assert each.event_id not in ids
        assert each.original != each.body


def tenant(**fields: Any) -> Tenant:
    known = {
        "id": "acme",
        "name": "Acme",
        "plan": "free",
        "subscription_status": "none",
        "current_period_end": None,
        "cancel_at_period_end": False,
        "stripe_customer_id": None,
        "owner_id": "o",
        "created_at": NOON,
        "updated_at": NOON,
        "cancel_at": None,
        "ends_at": None,
        "seats": None,
        "access": TenantAccess(state="none", plan="free", until=None, reason=""),
    }
    return Tenant(**{**known, **fields})


def entry(event_id: str) -> BillingEvent:
    at = datetime.fromtimestamp(START, UTC)
    return BillingEvent(
        id=event_id,
        type="t",
        created=at,
        received_at=at,
        livemode=None,
        outcome="applied",
        reason="",
        before=None,
        after=None,
        anomalies=[],
        reversal=None,
    )


async def test_verdict_names_what_is_wrong() -> None:
    events = await life(SHORTEST_HISTORY)
    wanted = expected(events, ANY)
    state = wanted.record
    assert state.current_period_end is not None
    right = tenant(
        plan=state.plan,
        subscription_status=state.subscription_status,
        current_period_end=datetime.fromtimestamp(state.current_period_end, UTC),
        cancel_at_period_end=state.cancel_at_period_end,
        seats=state.seats,
    )
    ledger = [entry(event["id"]) for event in events]
    assert judge(events, wanted, right, ledger).converged
    assert not judge(events, wanted, tenant(), ledger).converged
    for field in ({"seats": 7}, {"cancel_at": NOON}, {"ends_at": NOON}):
        assert not judge(events, wanted, msgspec.structs.replace(right, **field), ledger).converged
    short = judge(events, wanted, right, ledger[1:])
    assert (short.missing, short.converged) == (1, False)
    forged = judge(events, wanted, right, [*ledger, entry("evt_1_forged")])
    assert (forged.forged, forged.converged) == (1, False)


@cases("kind", sorted(set(ChaosKind) - {ChaosKind.REORDER}))
@cases("number", [2, 5])
async def test_each_chaos_kind_affects_a_short_history(kind: ChaosKind, number: int) -> None:
    events = (await life(SHORTEST_HISTORY))[:number]
    plain = [(RequestKind.EVENT, event["id"]) for event in events]
    for seed in range(100):
        assert [(each.kind, each.event_id) for each in plan(events, {kind}, seed)] != plain


async def test_seconds_whose_order_nothing_proves_are_counted() -> None:
    simulator = ACME.simulator(START, prices=PRICES)
    session = simulator.checkout("price_pro", metadata=ACME.metadata, customer=ACME.customer)
    simulator.complete(session)
    await simulator.advance(seconds=1)
    simulator.card_declines(ACME.customer)
    [subscription] = simulator.subscriptions.values()
    simulator.price("price_pro", 2900, interval="year")
    simulator.change_plan(subscription, "price_pro")
    simulator.cancel(subscription)
    events = [render_event(event, NEW_VERSION) for event in simulator.events(*REQUIRED_TYPES)]
    [failure] = [event for event in events if event["type"] == "invoice.payment_failed"]
    failure["data"]["object"]["parent"] = None  # without a subscription its order is ambiguous
    assert expected(events, ANY).ambiguous == 1
