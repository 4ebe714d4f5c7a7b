"""Seeded histories in mode `any`, and a digest of the states that they lead to.

``python -m tests.support.recorded_states`` prints the digests that
`tests/laws/recorded_states.json` holds. They change only if mode `any` does.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, Fact
from tests.support.facts import ANY
from tests.support.ledger import CUSTOMER, TENANT, Ledger

RECORDS: Final = Path(__file__).parents[1] / "laws" / "recorded_states.json"
HISTORIES: Final = 4000
IN_ONE_DIGEST: Final = 100

_MOST_EVENTS: Final = 9
_LIVE_STATUSES: Final = ("trialing", "active", "past_due", "unpaid", "paused")
_STATUSES: Final = (*_LIVE_STATUSES, "incomplete", "incomplete_expired", "canceled")
_PRICES: Final = ("price_free", "price_pro", "price_business", "price_unknown", None)
_INVOICES: Final = ("in_1", "in_2", "in_3")


def check(subscriptions: str, most: int | None = None) -> None:
    """Compare the histories of ``one`` or ``two`` subscriptions with their first ``most`` records,
    or all.
    """
    recorded = json.loads(RECORDS.read_text(encoding="utf-8"))[subscriptions][:most]
    assert digests(subscriptions, len(recorded)) == recorded


def digests(subscriptions: str, number: int = HISTORIES // IN_ONE_DIGEST) -> list[str]:
    """The first digests, each of `IN_ONE_DIGEST` histories of ``one`` or ``two`` subscriptions."""
    firsts = range(0, number * IN_ONE_DIGEST, IN_ONE_DIGEST)
    return [
        _digest(range(first, first + IN_ONE_DIGEST), ["one", "two"].index(subscriptions) + 1)
        for first in firsts
    ]


def _digest(seeds: Sequence[int], subscriptions: int) -> str:
    hashed = hashlib.sha256()
    for seed in seeds:
        for state in states(seed, subscriptions):
            hashed.update(json.dumps(state).encode())
        hashed.update(b"\n")
    return hashed.hexdigest()[:16]


def states(seed: int, subscriptions: int) -> Iterator[list[Fact]]:
    """Plan, status, end of the period and cancellation after each batch of a history."""
    rng = random.Random(seed)  # noqa: S311  # a sample that can be repeated
    ledger = Ledger(ANY)
    for batch in deliveries(rng, subscriptions):
        ledger.deliver(batch)
        state = ledger.account.state
        yield [
            state.plan,
            state.subscription_status,
            state.current_period_end,
            state.cancel_at_period_end,
        ]


def deliveries(rng: random.Random, subscriptions: int) -> list[list[BillingEvent]]:
    """The events of a history, shuffled, some twice, in batches. Many share a second, and few prove
    their order.
    """
    names = [f"sub_{number}" for number in range(1, subscriptions + 1)]
    author = _ProvenHistory(names) if rng.random() < 0.5 else _LooseHistory(names)
    events = author.events(rng, rng.randint(1, _MOST_EVENTS))
    events += [rng.choice(events) for _ in range(rng.randint(0, 2))]
    if rng.random() < 0.8:
        rng.shuffle(events)
    batches: list[list[BillingEvent]] = [[]]
    for event in events:
        if batches[-1] and rng.random() < 0.6:
            batches.append([])
        batches[-1].append(event)
    return batches


class _LooseHistory:
    """Events with random facts and random statements of what they replaced."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def events(self, rng: random.Random, number: int) -> list[BillingEvent]:
        """So many events, in no order."""
        return [self._event(rng, place) for place in range(number)]

    def _event(self, rng: random.Random, place: int) -> BillingEvent:
        types = (
            *[ev.SUBSCRIPTION_UPDATED] * 4,
            *sorted(ev.REQUIRED_TYPES - {ev.CHECKOUT_COMPLETED}),
            ev.SNAPSHOT,
        )
        event_type = rng.choice(types)
        event_id, created = f"evt_{place}", rng.randint(1, 6)
        if event_type in {ev.PAYMENT_FAILED, ev.PAYMENT_SUCCEEDED}:
            named = rng.choice([*self._names, *self._names, None])
            return _invoice(
                event_type, event_id, created, named, rng.choice(_INVOICES), rng.randint(1, 3)
            )
        facts: dict[str, Fact] = {
            "status": rng.choice(_STATUSES),
            "price_id": rng.choice(_PRICES),
            "current_period_end": rng.choice((None, 5000, 6000)),
            "cancel_at_period_end": rng.random() < 0.5,
        }
        previous: dict[str, Fact] = {}
        if rng.random() < 0.3:
            previous["status"] = rng.choice(_STATUSES)
        if rng.random() < 0.3:
            previous["price_id"] = rng.choice(_PRICES)
        told = previous if event_type == ev.SUBSCRIPTION_UPDATED and rng.random() < 0.7 else None
        return _of_subscription(event_type, event_id, created, rng.choice(self._names), facts, told)


class _ProvenHistory:
    """Events as a provider sends them: each change says what it replaced."""

    def __init__(self, names: Sequence[str]) -> None:
        initial: dict[str, Fact] = {
            "status": "incomplete",
            "price_id": "price_pro",
            "current_period_end": 5000,
        }
        initial["cancel_at_period_end"] = False
        self._facts = {name: dict(initial) for name in names}

    def events(self, rng: random.Random, number: int) -> list[BillingEvent]:
        """So many events, in the order in which they happened, or fewer if all subscriptions
        end.
        """
        now, events = 1, []
        for place in range(number):
            if not self._facts:
                break
            now += rng.choice((0, 0, 1, 5))
            events.append(self._event(rng, f"evt_{place}", now))
        return events

    def _event(self, rng: random.Random, event_id: str, now: int) -> BillingEvent:
        name, chance = rng.choice(sorted(self._facts)), rng.random()
        facts = self._facts[name]
        if chance < 0.1:
            del self._facts[name]
            return _of_subscription(
                ev.SUBSCRIPTION_DELETED, event_id, now, name, facts | {"status": "canceled"}, None
            )
        if chance < 0.4:
            event_type = rng.choice((ev.PAYMENT_FAILED, ev.PAYMENT_SUCCEEDED))
            return _invoice(
                event_type, event_id, now, name, rng.choice(_INVOICES), rng.randint(1, 3)
            )
        changes: dict[str, Fact] = {}
        if rng.random() < 0.6:
            changes["status"] = rng.choice(_LIVE_STATUSES)
        if rng.random() < 0.4:
            changes["price_id"] = rng.choice(_PRICES)
        if rng.random() < 0.3:
            changes["cancel_at_period_end"] = not facts["cancel_at_period_end"]
        previous = {fact: facts[fact] for fact, value in changes.items() if value != facts[fact]}
        facts |= changes
        return _of_subscription(ev.SUBSCRIPTION_UPDATED, event_id, now, name, facts, previous)


def _of_subscription(
    event_type: str,
    event_id: str,
    created: int,
    name: str,
    facts: dict[str, Fact],
    previous: dict[str, Fact] | None,
) -> BillingEvent:
    began = int(name.removeprefix("sub_"))
    subscription = {
        "org_id": TENANT,
        "customer_id": CUSTOMER,
        "subscription_id": name,
        "subscription_created": began,
    }
    event = {"id": event_id, "type": event_type, "created": created, "previous": previous}
    details = {"ended_at": created} if event_type == ev.SUBSCRIPTION_DELETED else {}
    return msgspec.convert({**subscription, **facts, **event, "details": details}, BillingEvent)


def _invoice(
    event_type: str, event_id: str, created: int, name: str | None, invoice: str, attempt: int
) -> BillingEvent:
    return BillingEvent(
        id=event_id,
        type=event_type,
        created=created,
        customer_id=CUSTOMER,
        subscription_id=name,
        invoice_id=invoice,
        attempt_count=attempt,
        status="paid" if event_type == ev.PAYMENT_SUCCEEDED else "open",
    )


if __name__ == "__main__":
    print(json.dumps({name: digests(name) for name in ("one", "two")}, indent=0))  # noqa: T201
