"""Orders of delivery of histories of several subscriptions, compared with the oracle."""

import math
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, permutations
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.access import current_phase
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.state import BillingPolicy, BillingState
from tenantry.domain.billing.tenant_record import BillingRecord
from tests.support import figures
from tests.support.ledger import CUSTOMER, Ledger, ledger_of
from tests.support.orders import in_batches, shuffled
from tests.support.random_subscription_histories import random_history
from tests.support.subscription_histories import NamedHistory
from tests.support.subscription_oracle import DAY, Expected, ExpectedAccess, ExpectedRecord, Rules

_MOST_EXAMPLES: Final = 3

Batches = Sequence[Sequence[BillingEvent]]


def policy_of(rules: Rules) -> BillingPolicy:
    """The policy of a service that is set up like this."""
    return BillingPolicy(rules.catalog, rules.subscriptions, past_due_grace=rules.grace_days * DAY)


def record_in(record: BillingRecord) -> ExpectedRecord:
    """The fields of a record, without its access."""
    return ExpectedRecord(
        record.plan,
        record.subscription_status,
        record.current_period_end,
        record.cancel_at_period_end,
        record.cancel_at,
        record.ends_at,
        record.seats,
    )


def access_in(record: BillingRecord, moment: int, rules: Rules) -> ExpectedAccess:
    """The access of a record at a moment."""
    stored = msgspec.json.encode(record.access).decode() if record.access else None
    phase = current_phase(stored, record.plan, record.subscription_status, moment, rules.catalog)
    return ExpectedAccess(
        phase.state,
        phase.plan,
        phase.until,
        phase.addons,
        phase.features,
        phase.limits,
    )


def moments(record: BillingRecord, expected: Expected, now: int) -> list[int]:
    """Now, and each second around a change of access, by the record or the oracle."""
    turns = {*expected.turns, *(phase.until for phase in record.access if phase.until is not None)}
    return sorted({now, *(turn + around for turn in turns for around in (-1, 0, 1))})


def differences(record: BillingRecord, expected: Expected, rules: Rules, now: int) -> list[str]:
    """What a record says otherwise than the oracle."""
    found = []
    if record_in(record) != expected.record:
        found.append(f"the record is {record_in(record)}, not {expected.record}")
    for moment in moments(record, expected, now):
        access, right = access_in(record, moment, rules), expected.access_at(moment)
        if access != right:
            found.append(f"at {moment} the access is {access}, not {right}")
    return found


class Oracle:
    """What the oracle says of a history and of each part of it; answers are kept."""

    def __init__(self, happened: Sequence[BillingEvent], rules: Rules) -> None:
        self.happened = happened
        self.rules = rules
        self._found: dict[tuple[frozenset[str], BillingRecord], list[str]] = {}
        self._proven: dict[frozenset[str], bool] = {}

    def differences(self, record: BillingRecord, arrived: Iterable[BillingEvent]) -> list[str]:
        """What a record says otherwise than the oracle, after so many events."""
        ids = frozenset(event.id for event in arrived)
        if (ids, record) not in self._found:
            part = [event for event in self.happened if event.id in ids]
            now = max(event.created for event in part)
            self._found[ids, record] = differences(
                record, Expected(part, self.rules), self.rules, now
            )
        return self._found[ids, record]

    def is_proven(self, arrived: Collection[BillingEvent]) -> bool:
        """Whether the order of a part of the history is certain: no two events share subscription
        and second.
        """
        ids = frozenset(event.id for event in arrived)
        if ids not in self._proven:
            seconds = [(event.subscription_id, event.created) for event in arrived]
            self._proven[ids] = len(set(seconds)) == len(seconds)
        return self._proven[ids]


class Ends(NamedTuple):
    """Where the orders of a history ended: their number, that of the parts, the states, and what
    was wrong.
    """

    orders: int
    parts: int
    states: int
    wrong: dict[str, list[list[str]]]


class _Ending:
    def __init__(self, oracle: Oracle, policy: BillingPolicy) -> None:
        self.oracle = oracle
        self.policy = policy
        self.orders = 0
        self.parts = 0
        self._states: set[tuple[BillingRecord, tuple[tuple[str, BillingState], ...]]] = set()
        self._wrong: dict[str, list[list[str]]] = {}

    def look(self, ledger: Ledger, batches: Batches) -> None:
        """Compare a ledger with the oracle, in the middle of a history or at its end."""
        arrived = [event for batch in batches for event in batch]
        is_whole = len({event.id for event in arrived}) == len(self.oracle.happened)
        record = ledger.account.record
        if is_whole:
            self.orders += 1
            folds = ledger.account.folds
            self._states.add((record, tuple((key, folds[key].state) for key in sorted(folds))))
        elif not self.oracle.is_proven(arrived):
            return
        self.parts += 1
        for difference in self.oracle.differences(record, arrived):
            examples = self._wrong.setdefault(difference, [])
            if len(examples) < _MOST_EXAMPLES:
                examples.append([" ".join(event.id for event in batch) for batch in batches])

    @property
    def ends(self) -> Ends:
        """What was found."""
        return Ends(self.orders, self.parts, len(self._states), self._wrong)


def one_at_a_time(happened: Sequence[BillingEvent], rules: Rules) -> Ends:
    """Deliver every order, one event at a time; orders that begin alike share their beginning.

    The oracle is asked after every event, wherever the order of what has arrived is certain.
    """
    ending = _Ending(Oracle(happened, rules), policy_of(rules))
    for ledger, batches in _steps(Ledger(ending.policy), (), tuple(happened)):
        ending.look(ledger, batches)
    return ending.ends


def _steps(
    ledger: Ledger, done: tuple[Sequence[BillingEvent], ...], left: tuple[BillingEvent, ...]
) -> Iterator[tuple[Ledger, Batches]]:
    for place, event in enumerate(left):
        further = ledger.fork()
        further.deliver([event])
        steps = (*done, [event])
        yield further, steps
        yield from _steps(further, steps, (*left[:place], *left[place + 1 :]))


def batched(
    happened: Sequence[BillingEvent],
    rules: Rules,
    orders: Iterable[Batches],
    customers: Sequence[str] = (CUSTOMER,),
) -> Ends:
    """Deliver these orders to a tenant with these customers, and ask the oracle at the end of
    each.
    """
    ending = _Ending(Oracle(happened, rules), policy_of(rules))
    for batches in orders:
        ledger = Ledger(ending.policy, customers)
        for batch in batches:
            ledger.deliver(batch)
        ending.look(ledger, batches)
    return ending.ends


def every_order_in_batches(happened: Sequence[BillingEvent], seed: str) -> Iterator[Batches]:
    """Every order cut at random, and in one batch or two of equal size."""
    rng = random.Random(seed)  # noqa: S311  # a sample that can be repeated
    for number, order in enumerate(permutations(happened)):
        half = len(order) // 2
        yield in_batches(rng, order)
        yield [order[:half], order[half:]] if number % 2 else [order]


def random_orders(
    happened: Sequence[BillingEvent], rng: random.Random, number: int
) -> Iterator[Batches]:
    """So many random orders with duplicates, in batches of random size."""
    for _ in range(number):
        stream = shuffled(rng, [happened])
        yield in_batches(rng, stream) if len(stream) > 1 else [stream]


def delivered(happened: Sequence[BillingEvent], rules: Rules) -> BillingRecord:
    """The record after a history in its true order."""
    return ledger_of(policy_of(rules), happened).account.record


def check_one_at_a_time(history: NamedHistory, record_property: figures.RecordProperty) -> None:
    """Assert that every order of a history ends, and goes, as the oracle says."""
    ends = one_at_a_time(history.events, history.rules)
    _record(record_property, "Every order of several subscriptions", ends)
    assert (ends.orders, ends.states, ends.wrong) == (math.factorial(len(history.events)), 1, {})


def check_in_batches(
    history: NamedHistory, record_property: figures.RecordProperty, *, every: int = 1
) -> None:
    """Assert that every order of a history, or each of so many, ends in batches as the oracle
    says.
    """
    orders = islice(every_order_in_batches(history.events, history.name), 0, None, every)
    ends = batched(history.events, history.rules, orders)
    _record(record_property, "Orders of several subscriptions in batches", ends)
    assert (ends.states, ends.wrong) == (1, {})


def _record(record_property: figures.RecordProperty, what: str, ends: Ends) -> None:
    wrong = sum(map(len, ends.wrong.values()))
    figures.record(
        record_property,
        what,
        {"orders": ends.orders, "comparisons": ends.parts},
        {"tenantry": wrong},
    )


def check_random_histories(
    seeds: Iterable[int], orders: int, record_property: figures.RecordProperty
) -> None:
    """Deliver random histories, each in its true order and so many random ones, and assert that the
    oracle is right.
    """
    histories = delivered = 0
    wrong: dict[int, object] = {}
    for seed in seeds:
        history, rng = random_history(seed), random.Random(seed)  # noqa: S311  # a sample that can be repeated
        true_order = [[event] for event in history.events]
        deliveries = [true_order, *random_orders(history.events, rng, orders)]
        ends = batched(history.events, history.rules, deliveries, history.customers)
        histories, delivered = histories + 1, delivered + ends.orders
        if ends.states != 1 or ends.wrong:
            wrong[seed] = (ends.states, ends.wrong)
    ran = {"histories": histories, "orders": delivered}
    figures.record(
        record_property, "Random histories of several subscriptions", ran, {"tenantry": len(wrong)}
    )
    assert not wrong, f"{len(wrong)} of the seeds: {dict(islice(wrong.items(), _MOST_EXAMPLES))}"
