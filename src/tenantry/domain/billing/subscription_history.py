"""Which tenant a subscription named at each moment, by the events of all tenants that it has named.

An invoice belongs to the tenant that its subscription named at the invoice's second (CONTRACT 8.8).
Of a second in which it named several, the last one counts, in the order that the payloads prove
(`order`), then in that of arrival.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, groupby, pairwise, permutations
from operator import attrgetter
from typing import Final, NamedTuple

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent, is_settled
from tenantry.domain.billing.order import phase, precedes, replaces, reports_previous

NAMING_TYPES: Final = ev.FOLDED_TYPES - ev.INVOICE_TYPES
"""The types of events that say which tenant their subscription belongs to."""
_MOST_PERMUTED: Final = 6
"""How many events of one second, of several tenants, are ordered by what they replaced. Of more,
arrival decides.
"""


class PlacedEvent(NamedTuple):
    """An event of a subscription, and the tenant whose ledger has it."""

    tenant_id: str
    event: BillingEvent


class _Naming(NamedTuple):
    """The tenant that a subscription names since a second."""

    since: int
    tenant_id: str


class _Second(NamedTuple):
    """The events of one second that name a tenant, in their order; ``is_decided`` if that proves
    the last tenant.
    """

    events: Sequence[PlacedEvent]
    is_decided: bool = True

    def has(self, event: BillingEvent) -> bool:
        return any(each.event.id == event.id for each in self.events)


def _created(second: _Second) -> int:
    return second.events[0].event.created


class SubscriptionHistory:
    """The tenants that one subscription has named; ``placed`` are its events, invoices' included,
    in any order.
    """

    def __init__(self, placed: Iterable[PlacedEvent]) -> None:
        self._placed = sorted(placed, key=lambda each: (each.event.created, each.event.arrival))
        self._seconds = list(_seconds(each for each in self._placed if _names_tenant(each.event)))
        self._namings = list(_namings(self._seconds))
        self._first_former = (
            former_tenant(self._seconds[0].events[0].event) if self._seconds else None
        )

    def tenant_at(self, second: int) -> str | None:
        """Return the tenant that the subscription named at the end of a second; None if it never
        named one.

        Before its first event that is the tenant that this event replaced, if any, else the one
        that it names.
        """
        if not self._namings:
            return None
        place = bisect_right(self._namings, second, key=attrgetter("since"))
        if place:
            return self._namings[place - 1].tenant_id
        return self._first_former or self._namings[0].tenant_id

    def moved_at(self, tenant_id: str) -> int | None:
        """Return the second since which the subscription names another tenant; None while it names
        this one.
        """
        if not self._namings or self._namings[-1].tenant_id == tenant_id:
            return None
        last = max(
            (place for place, each in enumerate(self._namings) if each.tenant_id == tenant_id),
            default=-1,
        )
        return self._namings[last + 1].since

    def undecided_with(self, event: BillingEvent) -> Sequence[PlacedEvent]:
        """Return the events among which only arrival says which tenant is the last, if this event
        matters.

        They are of its second, or of the next one that names a tenant, which is ordered by what
        preceded it.
        """
        place = bisect_left(self._seconds, event.created, key=_created)
        own, following = self._seconds[place : place + 1], self._seconds[place : place + 2]
        if not any(second.has(event) for second in own):
            return ()
        undecided = [second for second in following if not second.is_decided]
        return undecided[0].events if undecided else ()

    def misplaced(self) -> Iterator[PlacedEvent]:
        """Yield the invoice events that are in the ledger of another tenant than theirs, with their
        own tenant.
        """
        for each in self._placed:
            if each.event.type not in ev.INVOICE_TYPES:
                continue
            tenant_id = self.tenant_at(each.event.created)
            if tenant_id is not None and tenant_id != each.tenant_id:
                yield PlacedEvent(tenant_id, each.event)

    def settled_failures(self) -> set[str]:
        """Return the ids of failed payments whose invoice was paid later, whichever tenant has the
        payment.
        """
        events = [each.event for each in self._placed]
        return {
            event.id
            for place, event in enumerate(events)
            if event.type == ev.PAYMENT_FAILED and is_settled(event, events[place + 1 :])
        }


def owners_of_misplaced(histories: Iterable[SubscriptionHistory]) -> dict[str, str]:
    """Return the tenants of invoices that are in another tenant's ledger, by event."""
    return {each.event.id: each.tenant_id for history in histories for each in history.misplaced()}


def _names_tenant(event: BillingEvent) -> bool:
    """Whether an event says which tenant its subscription belongs to; one that has moved away says
    only what it was.
    """
    return event.type in NAMING_TYPES and not event.details.has_moved


def _seconds(placed: Iterable[PlacedEvent]) -> Iterator[_Second]:
    """Yield the events of each second in their order; ``placed`` are sorted by their second, then
    by arrival.
    """
    before: PlacedEvent | None = None
    for _, events in groupby(placed, key=lambda each: each.event.created):
        second = _in_order(list(events), before)
        before = second.events[-1]
        yield second


def _namings(seconds: Iterable[_Second]) -> Iterator[_Naming]:
    """Yield each change of the tenant."""
    present: str | None = None
    for second in seconds:
        for each in second.events:
            if each.tenant_id != present:
                present = each.tenant_id
                yield _Naming(each.event.created, present)


def _in_order(events: Sequence[PlacedEvent], before: PlacedEvent | None) -> _Second:
    """Sort the events of one second: of the possible orders with the fewest unproven steps the
    nearest to arrival.

    ``before`` is the last event before this second, if one is known.
    """
    if len({each.tenant_id for each in events}) == 1:
        return _Second(events)
    if len(events) > _MOST_PERMUTED:
        return _Second(sorted(events, key=lambda each: phase(each.event)), is_decided=False)
    possible = [order for order in permutations(events) if _is_possible(order)]
    unproven = partial(_unproven_steps, before=before)
    _, best = next(groupby(sorted(possible, key=unproven), unproven))
    nearest, *others = best
    is_decided = all(order[-1].tenant_id == nearest[-1].tenant_id for order in others)
    return _Second(nearest, is_decided)


def _is_possible(order: Sequence[PlacedEvent]) -> bool:
    return not any(precedes(later.event, each.event) for each, later in combinations(order, 2))


def _unproven_steps(order: Sequence[PlacedEvent], before: PlacedEvent | None) -> int:
    """Count the events of an order that replaced a state that the one before them had not set.

    The tenant counts like any other fact: an order that agrees with it alone is not proven.
    """
    steps = pairwise((before, *order))
    return sum(each is not None and _is_unproven(each, last) for last, each in steps)


def _is_unproven(placed: PlacedEvent, last: PlacedEvent | None) -> bool:
    if not reports_previous(placed.event):
        return False
    if last is None or _replaced_tenant(placed) not in (None, last.tenant_id):
        return True
    return not replaces(placed.event, last.event)


def _replaced_tenant(placed: PlacedEvent) -> str | None:
    """Return the tenant that the subscription named before an event; None if its payload does not
    say.
    """
    previous = placed.event.previous or {}
    return former_tenant(placed.event) if "org_id" in previous else placed.tenant_id


def former_tenant(event: BillingEvent) -> str | None:
    """Return the tenant that a subscription named before an event that has changed it, by
    ``previous_attributes``.
    """
    former = (event.previous or {}).get("org_id")
    return former if isinstance(former, str) else None
