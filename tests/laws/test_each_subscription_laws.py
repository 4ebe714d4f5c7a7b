"""Laws of `SUBSCRIPTIONS=each`: every order of delivery leads to the state that an independent
oracle gives.

`tests/system` delivers every history in every order, and forty times as many random histories.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

import pytest
from hypothesis import settings

from tenantry.domain.billing.events import INVOICE_TYPES, BillingEvent
from tenantry.domain.billing.state import SubscriptionRule
from tests.support import figures
from tests.support.ledger import Ledger
from tests.support.random_subscription_histories import random_history
from tests.support.subscription_histories import (
    CATALOG,
    CATALOGS,
    HOUR,
    NAMED_HISTORIES,
    PERIOD,
    START,
    UPGRADES,
    NamedHistory,
    Script,
)
from tests.support.subscription_oracle import (
    DAY,
    LATE_DAYS,
    Expected,
    ExpectedAccess,
    ExpectedRecord,
    Rules,
)
from tests.support.subscription_orders import (
    access_in,
    batched,
    check_in_batches,
    check_one_at_a_time,
    check_random_histories,
    delivered,
    policy_of,
    random_orders,
    record_in,
)

SHORT: Final = [history for history in NAMED_HISTORIES if len(history.events) <= 5]
LONG: Final = [history for history in NAMED_HISTORIES if history not in SHORT]
SAMPLE: Final = settings().max_examples
"""Random orders of a long history."""
EVERY: Final = 10
"""One of so many orders of a short history is delivered in batches."""

_PERIODS: Final = [START + number * PERIOD for number in range(4)]
_BUSINESS: Final = ExpectedRecord("business", "active", _PERIODS[2], False, None, None, 1)
_PRO: Final = ExpectedRecord("pro", "active", _PERIODS[1], False, None, None, 1)
RECORDS: Final = {
    "upgrade_by_a_second_subscription": _BUSINESS._replace(seats=4),
    "upgrade_by_a_plan_change": _BUSINESS,
    "upgrade_with_immediate_cancel_of_the_old": _BUSINESS,
    "upgrade_with_the_old_canceled_at_period_end": _BUSINESS,
    "downgrade_by_a_second_subscription": _PRO._replace(current_period_end=_PERIODS[3]),
    "first_payment_of_the_new_fails": _PRO._replace(current_period_end=_PERIODS[2]),
}
"""What the record must say at the end of each upgrade and downgrade."""
_LEAVING: Final = ExpectedRecord("business", "active", _PERIODS[1], True, None, _PERIODS[1], 1)
RECORDS_ON_THE_WAY: Final = {
    "upgrade_by_a_second_subscription": [
        _PRO,
        _BUSINESS._replace(seats=3),
        _BUSINESS._replace(seats=3),
        *[_BUSINESS._replace(seats=4)] * 3,
    ],
    "upgrade_by_a_plan_change": [
        _BUSINESS._replace(current_period_end=_PERIODS[1]),
        ExpectedRecord("free", "canceled", None, False, None, START + 7, None),
        _PRO,
        _BUSINESS._replace(current_period_end=_PERIODS[1]),
        _BUSINESS,
        _BUSINESS,
    ],
    "upgrade_with_immediate_cancel_of_the_old": [
        _PRO,
        *[_BUSINESS._replace(current_period_end=_PERIODS[1])] * 4,
        _BUSINESS,
    ],
    "upgrade_with_the_old_canceled_at_period_end": [_PRO, *[_BUSINESS] * 4],
    "downgrade_by_a_second_subscription": [
        _BUSINESS._replace(current_period_end=_PERIODS[1]),
        _LEAVING,
        _LEAVING,
        _PRO._replace(current_period_end=_PERIODS[2]),
        *[_PRO._replace(current_period_end=_PERIODS[3])] * 2,
    ],
    "first_payment_of_the_new_fails": [*[_PRO] * 5, _PRO._replace(current_period_end=_PERIODS[2])],
}
"""What it must say after each event, as they happened."""


def by_name(history: NamedHistory) -> str:
    return history.name


@pytest.mark.parametrize("history", UPGRADES, ids=by_name)
def test_an_upgrade_in_any_order_ends_with_the_plan_that_is_paid(history: NamedHistory) -> None:
    ends = batched(history.events, history.rules, ([*order] for order in _sampled(history, SAMPLE)))
    assert (ends.states, ends.wrong) == (1, {})
    assert Expected(history.events, history.rules).record == RECORDS[history.name]


@pytest.mark.parametrize("history", UPGRADES, ids=by_name)
def test_an_upgrade_gives_the_better_plan_at_every_moment(history: NamedHistory) -> None:
    ledger, records = Ledger(policy_of(history.rules)), []
    for event in history.events:
        ledger.deliver([event])
        record = ledger.account.record
        records.append(record_in(record))
        plan = record.plan if record.subscription_status == "active" else "free"
        state = "none" if plan == "free" else "full"
        until = (
            None if record.ends_at is None or state == "none" else record.ends_at + LATE_DAYS * DAY
        )
        assert access_in(record, event.created, history.rules) == ExpectedAccess(
            state, plan, until, ()
        )
    assert records == RECORDS_ON_THE_WAY[history.name]


@pytest.mark.parametrize("history", SHORT, ids=by_name)
def test_every_order_ends_as_the_oracle_says_and_passes_through_nothing_else(
    history: NamedHistory, record_property: figures.RecordProperty
) -> None:
    check_one_at_a_time(history, record_property)


@pytest.mark.parametrize("history", SHORT, ids=by_name)
def test_orders_in_batches_end_as_the_oracle_says(
    history: NamedHistory, record_property: figures.RecordProperty
) -> None:
    check_in_batches(history, record_property, every=EVERY)


@pytest.mark.parametrize("history", LONG, ids=by_name)
def test_random_orders_of_a_long_history_end_as_the_oracle_says(history: NamedHistory) -> None:
    ends = batched(history.events, history.rules, _sampled(history, SAMPLE))
    assert (ends.orders, ends.states, ends.wrong) == (SAMPLE, 1, {})


def _sampled(history: NamedHistory, number: int) -> list[list[list[BillingEvent]]]:
    rng = random.Random(history.name)  # noqa: S311  # the same sample in every run
    return [
        [list(batch) for batch in batches] for batches in random_orders(history.events, rng, number)
    ]


def test_random_histories_end_as_the_oracle_says(record_property: figures.RecordProperty) -> None:
    seeds = range(15 * settings().max_examples)  # `tests/system` has 5,000
    check_random_histories(seeds, 3, record_property)


def test_one_subscription_in_mode_any_ends_as_the_oracle_says() -> None:
    compared = 0
    for seed in range(400):
        history, rng = random_history(seed), random.Random(seed)  # noqa: S311  # a sample that can be repeated
        events = _before_the_end(history.events)
        if len({event.subscription_id for event in events}) != 1:
            continue
        rules = history.rules._replace(subscriptions=SubscriptionRule.ANY)
        ends = batched(events, rules, random_orders(events, rng, 1), history.customers)
        assert (ends.states, ends.wrong) == (1, {}), seed
        compared += 1
    assert compared > 40


def _before_the_end(events: Sequence[BillingEvent]) -> list[BillingEvent]:
    """The events without invoices that name no subscription, or one that ends in that second or has
    ended.
    """
    over = ("canceled", "incomplete_expired")
    ends = {event.subscription_id: event.created for event in events if event.status in over}
    return [
        event
        for event in events
        if event.type not in INVOICE_TYPES
        or (event.subscription_id and event.created < ends.get(event.subscription_id, math.inf))
    ]


def _past_due(script: Script) -> None:
    """Past due since an hour after the start; the status says so an hour later."""
    script.appears("sub_1")
    script.later(HOUR)
    script.fails("in_1", "sub_1")
    script.later(HOUR)
    script.changes("sub_1", status="past_due")


def _past_due_again(script: Script) -> None:
    """The grace period begins anew after a payment."""
    _past_due(script)
    script.later(HOUR)
    script.pays("in_1", "sub_1")
    script.later(HOUR)
    script.fails("in_2", "sub_1")


def _unpaid_and_past_due(script: Script) -> None:
    """The grace period continues while the status changes to unpaid and back."""
    _past_due(script)
    script.later(HOUR)
    script.changes("sub_1", status="unpaid")
    script.later(HOUR)
    script.changes("sub_1", status="past_due")


def _unpaid(script: Script) -> None:
    _past_due(script)
    script.later(HOUR)
    script.changes("sub_1", status="unpaid")


def _never_past_due(script: Script) -> None:
    script.appears("sub_1", status="unpaid")


def _two_past_due(script: Script) -> None:
    """The higher plan is past due first, and its grace ends first."""
    script.appears("sub_1", items=(("price_business", 1), ("price_members", 1)))
    script.appears("sub_2", items=(("price_pro", 1), ("price_projects", 2)))
    script.later(HOUR)
    script.fails("in_1", "sub_1")
    script.later(HOUR)
    script.fails("in_2", "sub_2")


def _void(script: Script) -> None:
    script.appears("sub_1", pause="void")


def _void_beside_grace(script: Script) -> None:
    """Full access comes before the higher plan in grace, until the period ends."""
    script.appears("sub_1", items=(("price_pro", 1),), pause="void")
    script.appears("sub_2", items=(("price_business", 1),))
    script.later(HOUR)
    script.fails("in_2", "sub_2")


_GRACE: Final = 65 * DAY
_FIRST: Final = START + HOUR + _GRACE
_MEMBERS: Final = (("extra_members", 1), ("extra_projects", 2))
NONE: Final = ExpectedAccess("none", "free", None, ())
BOUNDARIES: Final[list[tuple[Callable[[Script], None], str, list[tuple[int, ExpectedAccess]]]]] = [
    (_past_due, "plain", [(START, ExpectedAccess("grace", "pro", _FIRST, ())), (_FIRST, NONE)]),
    (_past_due, "strict", [(START, NONE)]),
    (_past_due, "lenient", [(_FIRST, ExpectedAccess("full", "pro", None, ()))]),
    (
        _past_due_again,
        "plain",
        [
            (_FIRST, ExpectedAccess("grace", "pro", _FIRST + 3 * HOUR, ())),
            (_FIRST + 3 * HOUR, NONE),
        ],
    ),
    (
        _unpaid_and_past_due,
        "plain",
        [(START, ExpectedAccess("grace", "pro", _FIRST, ())), (_FIRST, NONE)],
    ),
    (_unpaid, "plain", [(START, NONE)]),
    (_unpaid, "lenient", [(START, ExpectedAccess("grace", "pro", _FIRST, ())), (_FIRST, NONE)]),
    (_never_past_due, "lenient", [(_FIRST, ExpectedAccess("grace", "pro", None, ()))]),
    (
        _two_past_due,
        "plain",
        [
            (START, ExpectedAccess("grace", "business", _FIRST, _MEMBERS)),
            (_FIRST, ExpectedAccess("grace", "pro", _FIRST + HOUR, _MEMBERS[1:])),
            (_FIRST + HOUR, NONE),
        ],
    ),
    (
        _void,
        "plain",
        [
            (START, ExpectedAccess("full", "pro", START + PERIOD, ())),
            (START + PERIOD, NONE),
        ],
    ),
    (_void, "grace", [(START + PERIOD, ExpectedAccess("grace", "pro", None, ()))]),
    (
        _void_beside_grace,
        "plain",
        [
            (START, ExpectedAccess("full", "pro", START + PERIOD, ())),
            (START + PERIOD, ExpectedAccess("grace", "business", _FIRST, ())),
            (_FIRST, NONE),
        ],
    ),
]
"""Histories with the access that they give from each moment on."""


@pytest.mark.parametrize(
    ("write", "catalog", "phases"),
    BOUNDARIES,
    ids=[f"{write.__name__[1:]}-{name}" for write, name, _ in BOUNDARIES],
)
def test_access_changes_in_the_second_in_which_the_documentation_says_so(
    write: Callable[[Script], None], catalog: str, phases: list[tuple[int, ExpectedAccess]]
) -> None:
    rules, script = Rules(CATALOGS[catalog]), Script()
    write(script)
    record = delivered(script.events, rules)
    expected = Expected(script.events, rules)
    for number, (moment, access) in enumerate(phases):
        last = phases[number + 1][0] - 1 if number + 1 < len(phases) else moment + 10 * _GRACE
        for each in (moment, last):
            assert access_in(record, each, rules) == access
            assert expected.access_at(each) == access


@pytest.mark.parametrize("days", [65, 1, 0])
def test_grace_lasts_the_days_of_the_setting(days: int) -> None:
    rules, script = Rules(CATALOG, grace_days=days), Script()
    _past_due(script)
    record, end = delivered(script.events, rules), START + HOUR + days * DAY
    assert access_in(record, end - 1, rules) == ExpectedAccess("grace", "pro", end, ())
    assert access_in(record, end, rules) == NONE
