"""Which tenant a subscription named at each moment, by the events of all tenants that it has named.

An invoice belongs to the tenant that its subscription named at the invoice's second (CONTRACT 8.8). Of a second in
which it named several, the last one counts.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from operator import attrgetter
from typing import Final, NamedTuple

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.owner_mails import is_settled

NAMING_TYPES: Final = ev.FOLDED_TYPES - ev.INVOICE_TYPES
"""The types of events that say which tenant their subscription belongs to."""
_MOST_PERMUTED: Final = 6
"""How many events of one second are ordered by what they replaced. Of more, the order of arrival counts."""


class PlacedEvent(NamedTuple):
    """An event of a subscription, and the tenant whose ledger has it."""

    tenant_id: str
    event: BillingEvent


class _Naming(NamedTuple):
    """The tenant that a subscription names since a second."""

    since: int
    tenant_id: str


class SubscriptionHistory:
    """The tenants that one subscription has named; ``placed`` are its events, invoices' included, in any order."""

    def __init__(self, placed: Iterable[PlacedEvent]) -> None:
        self._placed = sorted(placed, key=lambda each: (each.event.created, each.event.arrival))
        naming = [each for each in self._placed if _names_tenant(each.event)]
        self._namings = list(_namings(naming))
        self._first_former = former_tenant(naming[0].event) if naming else None

    def tenant_at(self, second: int) -> str | None:
        """Return the tenant that the subscription named at the end of a second; None if it never named one.

        Before its first event that is the tenant that this event replaced, if any, else the one that it names.
        """
        if not self._namings:
            return None
        place = bisect_right(self._namings, second, key=attrgetter("since"))
        if place:
            return self._namings[place - 1].tenant_id
        return self._first_former or self._namings[0].tenant_id

    def moved_at(self, tenant_id: str) -> int | None:
        """Return the second since which the subscription names another tenant; None while it names this one."""
        if not self._namings or self._namings[-1].tenant_id == tenant_id:
            return None
        last = max((place for place, each in enumerate(self._namings) if each.tenant_id == tenant_id), default=-1)
        return self._namings[last + 1].since

    def misplaced(self) -> Iterator[PlacedEvent]:
        """Yield the invoice events that are in the ledger of another tenant than theirs, with their own tenant."""
        for each in self._placed:
            if each.event.type not in ev.INVOICE_TYPES:
                continue
            tenant_id = self.tenant_at(each.event.created)
            if tenant_id is not None and tenant_id != each.tenant_id:
                yield PlacedEvent(tenant_id, each.event)

    def settled_failures(self) -> set[str]:
        """Return the ids of failed payments whose invoice was paid later, whichever tenant has the payment."""
        events = [each.event for each in self._placed]
        return {
            event.id
            for place, event in enumerate(events)
            if event.type == ev.PAYMENT_FAILED and is_settled(event, events[place + 1 :])
        }


def _names_tenant(event: BillingEvent) -> bool:
    """Whether an event says which tenant its subscription belongs to; one that has moved away says only what it was."""
    return event.type in NAMING_TYPES and not event.details.has_moved


def _namings(placed: Sequence[PlacedEvent]) -> Iterator[_Naming]:
    """Yield each change of the tenant; ``placed`` are sorted by their second."""
    seconds = defaultdict[int, list[PlacedEvent]](list)
    for each in placed:
        seconds[each.event.created].append(each)
    present: str | None = None
    for second, events in seconds.items():
        for each in _in_order(events, present):
            if each.tenant_id != present:
                present = each.tenant_id
                yield _Naming(second, present)


def _in_order(events: Sequence[PlacedEvent], before: str | None) -> Sequence[PlacedEvent]:
    """Sort the events of one second: of the orders with the fewest unproven steps the nearest to that of arrival.

    ``before`` is the tenant that the subscription named before this second, if it is known.
    """
    if len({each.tenant_id for each in events}) == 1 or len(events) > _MOST_PERMUTED:
        return events
    return min(permutations(events), key=lambda order: _unproven_steps(order, before))


def _unproven_steps(order: Sequence[PlacedEvent], before: str | None) -> int:
    """Count the events of an order that replaced another tenant than the one before them."""
    unproven, present = 0, before
    for each in order:
        former = _replaced_tenant(each)
        unproven += None not in (former, present) and former != present
        present = each.tenant_id
    return unproven


def _replaced_tenant(placed: PlacedEvent) -> str | None:
    """Return the tenant that the subscription named before an event; None if its payload does not say."""
    if placed.event.previous is None:
        return None
    return former_tenant(placed.event) if "org_id" in placed.event.previous else placed.tenant_id


def former_tenant(event: BillingEvent) -> str | None:
    """Return the tenant that a subscription named before an event that has changed it, by ``previous_attributes``."""
    former = (event.previous or {}).get("org_id")
    return former if isinstance(former, str) else None
