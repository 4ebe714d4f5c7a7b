"""Subscriptions that move from one tenant to another, with `SUBSCRIPTIONS=each`: every order of
arrival ends alike.

An invoice belongs to the tenant that its subscription named at the invoice's second.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from itertools import permutations
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent
from tests.support.billing import rows
from tests.support.billing_scene import Scene, running_scene
from tests.support.facts import EACH, deleted, failed, succeeded, updated

NOW: Final = datetime.fromtimestamp(100_000, UTC)
HOUR: Final = 3600
MOST_ORDERS: Final = 6
"""How many orders of a history are delivered; `tests/system` delivers more."""
FORMER: Final = ("free", "canceled")


class Move(NamedTuple):
    """A history of one subscription, and the plan and status of each tenant after it."""

    events: Sequence[BillingEvent]
    ends: Mapping[str, tuple[str, str]]


def named(
    hour: int, tenant: str, event_id: str, former: str | None = None, **facts: Any
) -> BillingEvent:
    """The subscription names a tenant, so many hours after the start; ``former`` is the one that it
    named before.
    """
    known = {
        "customer_id": "cus",
        "org_id": tenant,
        "previous": {"org_id": former} if former else None,
    }
    return updated(hour * HOUR, event_id, **{**known, **facts})


def fails(hour: int, event_id: str, **facts: Any) -> BillingEvent:
    return failed(
        hour * HOUR, event_id, **{"customer_id": "cus", "subscription_id": "sub_1", **facts}
    )


def pays(hour: int, event_id: str, **facts: Any) -> BillingEvent:
    return succeeded(
        hour * HOUR, event_id, **{"customer_id": "cus", "subscription_id": "sub_1", **facts}
    )


def first_named(hour: int, tenant: str, event_id: str) -> BillingEvent:
    """The first event of the subscription."""
    return msgspec.structs.replace(named(hour, tenant, event_id), type=ev.SUBSCRIPTION_CREATED)


PAID: Final = ("pro", "active")
PAST_DUE: Final = ("pro", "past_due")
MOVES: Final = {
    "paid_after_the_move": Move(
        [named(1, "a", "u1"), named(5, "b", "u2", "a"), fails(6, "f"), pays(7, "p")],
        {"a": FORMER, "b": PAID},
    ),
    "unpaid_after_the_move": Move(
        [named(1, "a", "u1"), named(5, "b", "u2", "a"), fails(6, "f")], {"a": FORMER, "b": PAST_DUE}
    ),
    "unpaid_before_the_move": Move(
        [named(1, "a", "u1"), fails(2, "f"), named(5, "b", "u2", "a")], {"a": FORMER, "b": PAID}
    ),
    "failed_before_and_paid_after_the_move": Move(
        [named(1, "a", "u1"), fails(2, "f"), named(5, "b", "u2", "a"), pays(7, "p")],
        {"a": FORMER, "b": PAID},
    ),
    "there_and_back": Move(
        [
            named(1, "a", "u1"),
            named(3, "b", "u2", "a"),
            fails(4, "f"),
            named(5, "a", "u3", "b"),
            fails(6, "g", invoice_id="in_2"),
        ],
        {"a": PAST_DUE, "b": FORMER},
    ),
    "three_tenants": Move(
        [
            named(1, "a", "u1"),
            named(3, "b", "u2", "a"),
            fails(4, "f"),
            named(5, "c", "u3", "b"),
            fails(6, "g", invoice_id="in_2"),
            pays(7, "p", invoice_id="in_2"),
        ],
        {"a": FORMER, "b": FORMER, "c": PAID},
    ),
    "ended_after_the_move": Move(
        [
            named(1, "a", "u1"),
            named(5, "b", "u2", "a"),
            fails(6, "f"),
            deleted(8 * HOUR, "d", org_id="b", customer_id="cus"),
        ],
        {"a": FORMER, "b": FORMER},
    ),
    "invoices_on_both_sides": Move(
        [
            named(1, "a", "u1"),
            fails(2, "f"),
            pays(3, "p"),
            named(5, "b", "u2", "a"),
            fails(6, "g", invoice_id="in_2"),
        ],
        {"a": FORMER, "b": PAST_DUE},
    ),
    "within_one_second": Move(
        [named(1, "c", "u1"), named(5, "b", "u2", "c"), named(5, "a", "u3", "b"), fails(6, "f")],
        {"a": PAST_DUE, "b": FORMER, "c": FORMER},
    ),
    "and_back_within_one_second": Move(
        [
            named(1, "b", "u1"),
            named(5, "a", "u2", "b"),
            named(5, "b", "u3", "a"),
            fails(5, "f"),
            fails(6, "g", invoice_id="in_2"),
        ],
        {"a": FORMER, "b": PAST_DUE},
    ),
    "begun_and_moved_within_one_second": Move(
        [first_named(1, "b", "u1"), named(1, "a", "u2", "b"), fails(2, "f")],
        {"a": PAST_DUE, "b": FORMER},
    ),
    "begun_and_moved_within_one_second_without_proof": Move(
        [first_named(1, "b", "u1"), named(1, "a", "u2"), fails(2, "f")],
        {"a": PAST_DUE, "b": FORMER},
    ),
    "ended_within_the_second_of_the_move": Move(
        [
            named(1, "a", "u1"),
            named(5, "b", "u2"),
            msgspec.structs.replace(
                deleted(5 * HOUR, "d", org_id="b", customer_id="cus", previous={}),
                details=msgspec.structs.replace(deleted().details, ended_at=5 * HOUR),
            ),
        ],
        {"a": FORMER, "b": FORMER},
    ),
    "of_a_lost_first_event": Move(
        [
            fails(2, "f"),
            named(5, "b", "u2", "a"),
            named(7, "b", "u3"),
            pays(8, "p", invoice_id="in_2"),
        ],
        {"a": FORMER, "b": PAID},
    ),
    "of_a_second_customer": Move(
        [
            named(0, "a", "u1", customer_id="cus_2", subscription_id="sub_2", status="canceled"),
            named(1, "a", "u2"),
            fails(2, "f"),
        ],
        {"a": PAST_DUE},
    ),
    "of_two_tenants_with_one_customer": Move(
        [
            named(1, "a", "u1"),
            named(1, "b", "u2", subscription_id="sub_2"),
            fails(2, "f", subscription_id="sub_2"),
        ],
        {"a": PAID, "b": PAST_DUE},
    ),
    "without_the_first_event": Move(
        [named(5, "b", "u2", "a"), fails(6, "f"), named(7, "b", "u3")], {"b": PAID}
    ),
}


class _Copy(NamedTuple):
    """One order of a history's events, with tenants, customer, subscription and ids of events of
    its own.
    """

    number: int
    events: Sequence[BillingEvent]

    def tenant(self, name: str) -> str:
        return f"{name}{self.number}"


def _copy(number: int, events: Sequence[BillingEvent]) -> _Copy:
    def renamed(event: BillingEvent) -> BillingEvent:
        names = {
            name: f"{value}{number}"
            for name in ("id", "org_id", "customer_id", "subscription_id", "invoice_id")
            if (value := getattr(event, name)) is not None
        }
        previous = event.previous
        if previous is not None and "org_id" in previous:
            previous = {**previous, "org_id": f"{previous['org_id']}{number}"}
        return msgspec.structs.replace(event, previous=previous, **names)

    return _Copy(number, [renamed(event) for event in events])


@pytest.fixture
async def scene(emptied: str) -> AsyncIterator[Scene]:
    async with running(emptied) as scene:
        yield scene


def running(conninfo: str) -> AbstractAsyncContextManager[Scene]:
    """A scene on this database."""
    return running_scene(conninfo, EACH, NOW)


def _wrong_mails(events: Sequence[BillingEvent], mailed: Mapping[str, str]) -> Iterator[str]:
    """The failed payments that are mailed to another owner than these events name, in the order in
    which they happened.

    Without the first event, the order of two moves within one second may be unknown.
    """
    names = [event for event in events if event.type not in ev.INVOICE_TYPES]
    if len({event.created for event in names}) < len(names) and names[0].previous is not None:
        return
    for event in events:
        before = [each.org_id for each in names if each.created <= event.created] or [
            _former(names)
        ]
        if event.id in mailed and before[-1] not in (None, mailed[event.id]):
            known = [each.id for each in events]
            yield f"{event.id} went to {mailed[event.id]} of {before[-1]}, knowing {known}"


def _former(names: Sequence[BillingEvent]) -> str | None:
    """The tenant that a subscription named before the first of its events."""
    if not names:
        return None
    former = (names[0].previous or {}).get("org_id", names[0].org_id)
    return str(former)


def _paid(events: Sequence[BillingEvent], failure: BillingEvent) -> bool:
    return any(
        event.type == ev.PAYMENT_SUCCEEDED and event.invoice_id == failure.invoice_id
        for event in events
    )


def _orders(events: Sequence[BillingEvent], most: int) -> list[tuple[int, ...]]:
    every = list(permutations(range(len(events))))
    return every[:: max(1, len(every) // most)]


async def test_every_order_of_a_move_ends_alike_and_mails_no_wrong_owner(scene: Scene) -> None:
    await check_orders(scene, *MOVES.values(), most=MOST_ORDERS)


class _Case(NamedTuple):
    """A history, one of its orders, and the copy that is delivered in it."""

    move: Move
    order: tuple[int, ...]
    copy: _Copy


def _cases(moves: Sequence[Move], most: int) -> list[_Case]:
    orders = [(move, order) for move in moves for order in _orders(move.events, most)]
    return [
        _Case(move, order, _copy(number, move.events))
        for number, (move, order) in enumerate(orders)
    ]


async def check_orders(scene: Scene, *moves: Move, most: int) -> None:
    """Assert that histories end alike in so many of their orders, and what is mailed meanwhile."""
    cases = _cases(moves, most)
    await scene.create(*(case.copy.tenant(name) for case in cases for name in case.move.ends))
    wrong: list[str] = []
    for step in range(max(len(move.events) for move in moves)):
        before = await scene.mailed()
        going_on = [case for case in cases if step < len(case.order)]
        batch = [case.copy.events[case.order[step]] for case in going_on]
        await scene.deliver(*batch)
        mailed = await scene.mailed()
        for (_, order, copy), arrived in zip(going_on, batch, strict=True):
            known = [event for place, event in enumerate(copy.events) if place in order[: step + 1]]
            wrong += _wrong_mails(known, mailed)
            if arrived.id in mailed.keys() - before.keys() and _paid(known, arrived):
                wrong.append(
                    f"{arrived.id} is mailed though it is paid, knowing {[each.id for each in known]}"
                )
    states = await scene.states()
    for move, order, copy in cases:
        found = {tenant: states[copy.tenant(tenant)] for tenant in move.ends}
        if found != move.ends:
            wrong.append(f"order {order} of {[each.id for each in copy.events]}: {found}")
    assert not wrong, wrong[:5]
    assert await scene.rebuild(dry_run=True) == []
    await scene.rebuild(dry_run=False)
    assert await scene.states() == states


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 1, 0)])
async def test_the_ledger_says_where_only_arrival_decides_between_two_tenants(
    scene: Scene, order: tuple[int, ...]
) -> None:
    """And which events they are; the provider is asked then."""
    await scene.create("a", "b", "c")
    history = [named(1, "c", "u0"), named(5, "a", "u1"), named(5, "b", "u2")]
    for place in order:
        await scene.deliver(history[place])
    last = "b" if order.index(2) > order.index(1) else "a"
    states = await scene.states()
    assert states == {tenant: PAID if tenant == last else FORMER for tenant in "abc"}
    found = await rows(
        scene.conninfo,
        "SELECT id, document->>'reason' AS reason FROM billing_events WHERE anomalies @> '{ambiguous_order}'",
    )
    assert found
    assert all("u1" in entry["reason"] and "u2" in entry["reason"] for entry in found)


LINK: Final = BillingEvent(
    id="c",
    type=ev.CHECKOUT_COMPLETED,
    created=HOUR,
    org_id="b",
    customer_id="cus_b",
    checkout_mode="subscription",
)
NAMELESS: Final = named(1, "b", "u", org_id=None, customer_id="cus_b")


@pytest.mark.parametrize("together", [True, False])
async def test_an_invoice_by_its_customer_goes_to_the_tenant_that_a_link_gives_its_subscription(
    scene: Scene, together: bool
) -> None:
    """The invoice's customer belongs to another tenant, and the subscription's first event names
    none.
    """
    other = msgspec.structs.replace(LINK, id="other", org_id="a", customer_id="cus_a")
    before = [
        other,
        fails(2, "f", customer_id="cus_a"),
        fails(3, "g", customer_id="cus_b", invoice_id="in_2"),
    ]
    batch = [LINK, NAMELESS, fails(4, "h", customer_id="cus_a", invoice_id="in_3")]
    for number, order in enumerate(permutations(range(3))):
        a, b = f"a{number}", f"b{number}"
        await scene.create(a, b)
        await scene.deliver(*_copy(number, before).events)
        arrivals = _copy(number, [batch[place] for place in order]).events
        for events in [arrivals] if together else [[event] for event in arrivals]:
            await scene.deliver(*events)
        states, mailed = await scene.states(), await scene.mailed()
        assert (states[a], states[b]) == (("free", "none"), PAST_DUE), order
        assert {tenant for tenant in (a, b) if tenant in mailed.values()} == {b}, order
    assert await scene.rebuild(dry_run=True) == []


async def test_a_mail_that_is_not_sent_leaves_with_its_invoice(scene: Scene) -> None:
    await scene.create("a", "b")
    await scene.deliver(named(1, "a", "u1"), fails(4, "f"))
    assert await scene.mailed() == {"f": "a"}
    await scene.deliver(named(2, "b", "u2", "a"))
    assert await scene.mailed() == {"f": "b"}
    await scene.deliver(named(3, "a", "u3", "b"), pays(5, "p"))
    assert await scene.mailed() == {}


async def test_a_mail_that_a_worker_is_sending_is_the_only_one(scene: Scene) -> None:
    await scene.create("a", "b")
    await scene.deliver(named(1, "a", "u1"), fails(4, "f"))
    begin_job = (
        "SELECT procrastinate_fetch_job_v2(ARRAY['mail'], procrastinate_register_worker_v1())"
    )
    await rows(scene.conninfo, begin_job)
    await scene.deliver(named(2, "b", "u2", "a"))
    assert await scene.mailed() == {"f": "a"}
    assert await scene.states() == {"a": FORMER, "b": PAST_DUE}


async def test_a_failure_that_turns_out_to_be_of_a_former_tenant_is_not_mailed(
    scene: Scene,
) -> None:
    """The subscription has ended for that tenant since, so it does not end past due."""
    await scene.create("a", "b")
    for event in (
        named(1, "a", "u1"),
        named(5, "a", "u3", "b"),
        fails(4, "f"),
        named(2, "b", "u2", "a"),
    ):
        await scene.deliver(event)
    assert (await scene.states())["b"] == FORMER
    assert await scene.mailed() == {}


async def test_a_mail_that_is_sent_is_the_only_one(scene: Scene) -> None:
    await scene.create("a", "b")
    await scene.deliver(named(1, "a", "u1"), fails(4, "f"))
    await rows(scene.conninfo, "UPDATE notifications SET status = 'sent' RETURNING id")
    await scene.deliver(named(2, "b", "u2", "a"))
    assert await scene.mailed() == {"f": "a"}
    assert await scene.states() == {"a": FORMER, "b": PAST_DUE}
