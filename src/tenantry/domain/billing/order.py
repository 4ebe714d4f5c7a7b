"""The order in which a tenant's events count, whatever the order in which they arrived."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from tenantry.domain.billing.events import BillingEvent


def in_order(events: Iterable[BillingEvent]) -> list[BillingEvent]:
    """Sort events by ``created``, within one second by what ``previous`` proves, else by arrival."""
    by_time = sorted(events, key=attrgetter("created", "arrival"))
    ordered: list[BillingEvent] = []
    for _, second in groupby(by_time, key=attrgetter("created")):
        together = list(second)
        ordered += together if len(together) == 1 else _within_a_second(together)
    return ordered


def _within_a_second(events: Sequence[BillingEvent]) -> list[BillingEvent]:
    """A stable topological sort: the earliest arrival among those that nothing left must precede."""
    waiting = list(events)
    ordered = []
    while waiting:
        first = next(
            (event for event in waiting if not any(_is_proven_after(event, other) for other in waiting)),
            waiting[0],  # a circle of proofs proves nothing: arrival decides
        )
        waiting.remove(first)
        ordered.append(first)
    return ordered


def _is_proven_after(event: BillingEvent, other: BillingEvent) -> bool:
    """Whether ``event`` replaced just what ``other`` set, and not also the other way round."""
    return _replaced(event, other) and not _replaced(other, event)


def _replaced(event: BillingEvent, other: BillingEvent) -> bool:
    return (
        event is not other
        and bool(event.previous)
        and event.subscription_id == other.subscription_id
        and all(getattr(other, fact) == value for fact, value in (event.previous or {}).items())
    )
