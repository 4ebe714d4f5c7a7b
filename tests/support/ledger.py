"""One tenant's ledger in memory, kept as the service keeps it in the database."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from tenantry.domain.billing.batch_application import BatchApplication, Need, reaches, tenant_of, useless, wants_link
from tenantry.domain.billing.events import FOLDED_TYPES, INVOICE_TYPES, Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import Account, Arrival, BatchContext
from tenantry.domain.billing.state import BillingPolicy, BillingState, apply, full_state_types
from tenantry.domain.billing.timeline import ReplayDepth
from tests.support.facts import account

TENANT: Final = "acme"
CUSTOMER: Final = "cus_1"
NOW: Final = datetime.fromtimestamp(10**6, UTC)


class Ledger:
    """A tenant, its customers and its events.

    ``told`` are the failures that its owner was mailed, in order; ``ambiguous`` the events where arrival decided.
    """

    def __init__(self, policy: BillingPolicy, customers: Sequence[str] = (CUSTOMER,)) -> None:
        self._policy = policy
        self._tenant_of: dict[str, str] = dict.fromkeys(customers, TENANT)
        self._arrivals = 0
        self._seen: set[str] = set()
        self._events: dict[str, BillingEvent] = {}
        self._parked: dict[str, Arrival] = {}
        self.account: Account = account(TENANT, customer_id=customers[-1] if customers else None)
        self.told: tuple[str, ...] = ()
        self.ambiguous: tuple[str, ...] = ()

    def fork(self) -> "Ledger":
        """An independent copy of the ledger."""
        other = Ledger.__new__(Ledger)
        other.__dict__ = {
            **self.__dict__,
            "_tenant_of": dict(self._tenant_of),
            "_seen": set(self._seen),
            "_events": dict(self._events),
            "_parked": dict(self._parked),
        }
        return other

    def knows(self, customer_id: str | None) -> bool:
        """Whether the customer is linked."""
        return customer_id in self._tenant_of

    def deliver(self, batch: Sequence[BillingEvent]) -> None:
        """Settle a batch and keep it, as the service does."""
        self._write(self.settled(batch))

    def settled(self, batch: Sequence[BillingEvent]) -> BatchApplication:
        """The effect of a batch."""
        arrivals = self._numbered(batch)
        standing = BatchContext({TENANT: self.account}, dict(self._tenant_of), frozenset(), 0)
        usable = [arrival.event for arrival in arrivals if not useless(arrival.event, self._policy)]
        links = {event.customer_id for event in usable if wants_link(event, standing)}
        waiting = [arrival for arrival in self._parked.values() if arrival.event.customer_id in links]
        waiting.sort(key=lambda arrival: (arrival.event.created, arrival.event.arrival))
        placed = [(tenant_of(event, standing.tenant_of_customer), event) for event in usable]
        invoices = [arrival.event for arrival in waiting]
        invoices += [event for event in usable if event.type in INVOICE_TYPES]
        placed += [(TENANT, event) for event in invoices if event.customer_id in links]
        settlement = self._settlement(standing, placed, waiting)
        for arrival in arrivals:
            settlement.receive(arrival)
        return settlement

    def _numbered(self, batch: Sequence[BillingEvent]) -> list[Arrival]:
        """The events that are not in the ledger yet, each once, with their arrival numbers."""
        numbered = []
        for event in batch:
            if event.id not in self._seen:
                self._seen.add(event.id)
                numbered.append(Arrival(msgspec.structs.replace(event, arrival=self._arrivals), NOW))
                self._arrivals += 1
        return numbered

    def _settlement(
        self, standing: BatchContext, placed: Sequence[tuple[str | None, BillingEvent]], waiting: Sequence[Arrival]
    ) -> BatchApplication:
        needed = reaches(standing, placed)
        histories = {tenant: self._history(need) for tenant, need in needed.items()}
        parked: dict[str, list[Arrival]] = {}
        for arrival in waiting:
            parked.setdefault(arrival.event.customer_id or "", []).append(arrival)
        return BatchApplication(standing, self._policy, NOW, reaches=needed, histories=histories, parked=parked)

    def _history(self, need: Need) -> list[BillingEvent]:
        """The events that are needed, as the store reads them."""
        since = need.second
        if need.reach is ReplayDepth.BEGINNING:
            seconds = Counter(event.created for event in self._events.values())
            telling = full_state_types(self._policy)
            since = max(
                (
                    event.created
                    for event in self._events.values()
                    if event.created < need.second
                    and event.type in telling
                    and event.subscription_id is not None
                    and seconds[event.created] == 1
                ),
                default=-1,
            )
        return [event for event in self._events.values() if event.created >= since]

    def _write(self, settlement: BatchApplication) -> None:
        for entry in (*settlement.entries, *settlement.unparked):
            event = entry.arrival.event
            if Anomaly.AMBIGUOUS_ORDER in entry.anomalies:
                self.ambiguous += (event.id,)
            if entry.outcome is Outcome.PARKED:
                self._parked[event.id] = entry.arrival
            elif entry.tenant_id is not None and event.type in FOLDED_TYPES:
                self._parked.pop(event.id, None)
                self._events[event.id] = event
        for event_id in settlement.superseded:
            self._events.pop(event_id, None)
        for link in settlement.links:
            self._tenant_of[link.customer_id] = link.tenant_id
        for changed, _ in settlement.changed_accounts():
            self.account = changed
        self.told += tuple(failure.event_id for failure in settlement.failed_payments())


def folded(history: Sequence[BillingEvent], policy: BillingPolicy) -> BillingState:
    """The state that a history leads to, event by event."""
    state = BillingState()
    for event in history:
        state = apply(state, event, policy).state
    return state
