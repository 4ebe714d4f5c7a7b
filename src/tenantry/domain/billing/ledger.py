"""What the ledger and the tenants' billing accounts hold."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.timeline import ReplayDepth


class Account(msgspec.Struct, frozen=True):
    """A tenant as billing sees it.

    ``tip_created`` is the second of its newest folded event, ``tip_state`` the state before that second. Without
    ``is_whole`` the release before wrote the account: what it says of other subscriptions may be out of date.
    """

    tenant_id: str
    owner_id: str
    deleted: bool
    customer_id: str | None
    base_plan: str
    state: BillingState
    tip_created: int | None = None
    tip_state: BillingState | None = None
    is_whole: bool = True

    def checkpoint(self, reach: ReplayDepth) -> BillingState:
        """The state before the events that a timeline of this reach holds."""
        if reach is ReplayDepth.TIP:
            return self.state
        if reach is ReplayDepth.TIP_SECOND and self.tip_state is not None:
            return self.tip_state
        return BillingState(plan=self.base_plan)


class Arrival(msgspec.Struct, frozen=True):
    """A verified event as it came in; ``belated`` if it was not delivered but asked for afterwards.

    ``trace`` is the trace that its request belongs to, if any, as a ``traceparent`` (W3C Trace Context).
    """

    event: BillingEvent
    received_at: datetime
    body: bytes | None = None
    belated: bool = False
    trace: str | None = None


class Entry(msgspec.Struct, frozen=True):
    """An event in the ledger: its tenant if known, what became of it and why, and what is unexpected about it."""

    arrival: Arrival
    tenant_id: str | None
    outcome: Outcome
    reason: str
    before: BillingState | None = None
    after: BillingState | None = None
    anomalies: tuple[Anomaly, ...] = ()


class Link(NamedTuple):
    """That a provider's customer belongs to a tenant."""

    customer_id: str
    tenant_id: str
    linked_by: str


class FailedPayment(NamedTuple):
    """A failed payment that the tenant's owner is to be told of."""

    tenant_id: str
    owner_id: str
    event_id: str
    invoice_url: str | None


class Question(NamedTuple):
    """That the provider is to be asked about a tenant; ``later``, where more of its events may be on their way."""

    tenant_id: str
    later: bool


class BatchContext(msgspec.Struct, frozen=True):
    """What is known before a batch is applied; the accounts in it are locked."""

    accounts: Mapping[str, Account]
    tenant_of_customer: Mapping[str, str]
    seen: frozenset[str]
    first_arrival: int
    replaceable: frozenset[str] = frozenset()
    """Ids of entries that give way to a valid event of the same id."""
