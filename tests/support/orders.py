"""Orders of delivery of a history, and how they end."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.state import PAST_DUE, BillingPolicy
from tests.support import figures
from tests.support.baselines import BASELINES, BaselineRecord
from tests.support.events import Shape
from tests.support.facts import ANY
from tests.support.histories import History, Plot, Record, plot_history
from tests.support.ledger import Ledger

OURS: Final = "tenantry"
MOST_DUPLICATES: Final = 3
_MOST_EXAMPLES: Final = 5
_ENDS_WITH_ITS_NEWEST_EVENT: Final = frozenset({"dunning_that_ends", "resubscribe"})
"""Histories whose newest event alone says everything, so that the watermark is enough."""

T = TypeVar("T")


class Run:
    """A history under way to tenantry's ledger and to the baselines, in the same order."""

    def __init__(self, history: History, policy: BillingPolicy = ANY) -> None:
        self._history = history
        self._policy = policy
        self._failures = history.failures
        self._arrived: frozenset[str] = frozenset()
        self._owed: frozenset[str] = frozenset()
        self._forbidden: frozenset[str] = frozenset()
        self._baselines = dict.fromkeys(BASELINES, BaselineRecord())
        self.ledger = Ledger(policy, history.customers)

    def fork(self) -> "Run":
        """An independent copy of the run."""
        other = Run.__new__(Run)
        other.__dict__ = {
            **self.__dict__,
            "ledger": self.ledger.fork(),
            "_baselines": dict(self._baselines),
        }
        return other

    def deliver(self, batch: Sequence[BillingEvent]) -> None:
        """Deliver events in one transaction; to the baselines, which know none, one after the
        other.
        """
        self._expect_mails({event.id for event in batch})
        self.ledger.deliver(batch)
        for name, rule in BASELINES.items():
            for event in batch:
                self._baselines[name] = rule(self._baselines[name], event, self._policy)

    def _expect_mails(self, batch: set[str]) -> None:
        """Which failures of a batch must be told, or must not: CONTRACT 6."""
        linked = self.ledger.knows(self._history.customer)
        fresh = batch - self._arrived
        for failure in fresh & self._failures.keys():
            if self._failures[failure] & self._arrived:
                self._forbidden |= {failure}
            elif not self._failures[failure] & batch and (
                linked or self._is_expected_late(failure)
            ):
                self._owed |= {failure}
        self._arrived |= fresh

    def _is_expected_late(self, failure: str) -> bool:
        return not self._failures[failure] and self._history.truth.status == PAST_DUE

    def wrong(self) -> list[str]:
        """The kinds of handling whose final state is wrong; for tenantry also the customer and the
        mails count.
        """
        truth = self._history.truth
        wrong = [name for name, kept in self._baselines.items() if Record.of(kept.state) != truth]
        account = self.ledger.account
        ours = Record.of(account.record) == truth and account.customer_id == self._history.customer
        return wrong if ours and self._notifies_correctly() else [OURS, *wrong]

    def _notifies_correctly(self) -> bool:
        plot_history = set(self.ledger.notified)
        return (
            len(plot_history) == len(self.ledger.notified)
            and plot_history.isdisjoint(self._forbidden)
            and self._owed <= plot_history <= self._failures.keys()
        )


class Endings:
    """How many orders were run and ended wrong, by whom, with some of those in which we did."""

    def __init__(self) -> None:
        self.orders = 0
        self.wrong: Counter[str] = Counter(dict.fromkeys((OURS, *BASELINES), 0))
        self.examples: list[list[list[str]]] = []

    def add(self, run: Run, batches: Sequence[Sequence[BillingEvent]]) -> None:
        """Count an order that has been delivered."""
        wrong = run.wrong()
        self.orders += 1
        self.wrong.update(wrong)
        if OURS in wrong and len(self.examples) < _MOST_EXAMPLES:
            self.examples.append([[event.id for event in batch] for batch in batches])


def every_order(history: History) -> Endings:
    """Deliver the history in every order, one event at a time; orders that begin alike share their
    beginning.
    """
    endings = Endings()
    for run, order in _orders(Run(history), (), history.facts):
        endings.add(run, [[event] for event in order])
    return endings


def check_every_order(plot: Plot, shape: Shape, record_property: figures.RecordProperty) -> None:
    """Assert that a history ends in the truth in every order, and that the baselines do not."""
    endings = every_order(plot_history(plot, shape))
    figures.record(record_property, "Every order", {"orders": endings.orders}, endings.wrong)
    assert (endings.wrong[OURS], endings.examples) == (0, [])
    assert endings.wrong["last arrival wins"]
    assert bool(endings.wrong["created watermark"]) is (
        plot.name not in _ENDS_WITH_ITS_NEWEST_EVENT
    )


def _orders(
    run: Run, done: tuple[BillingEvent, ...], left: tuple[BillingEvent, ...]
) -> Iterator[tuple[Run, tuple[BillingEvent, ...]]]:
    if not left:
        yield run, done
    for place, event in enumerate(left):
        further = run.fork()
        further.deliver([event])
        yield from _orders(further, (*done, event), (*left[:place], *left[place + 1 :]))


def shuffled(rng: random.Random, endpoints: Sequence[Sequence[T]]) -> list[T]:
    """A history in a random order, each event from one of the endpoints, with up to three
    duplicates.
    """
    stream = [rng.choice(versions) for versions in zip(*endpoints, strict=True)]
    stream += [rng.choice(rng.choice(endpoints)) for _ in range(rng.randint(0, MOST_DUPLICATES))]
    rng.shuffle(stream)
    return stream


def in_batches(rng: random.Random, stream: Sequence[T]) -> list[Sequence[T]]:
    """The same, cut anywhere."""
    cuts = sorted(rng.sample(range(1, len(stream)), rng.randint(0, len(stream) - 1)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
