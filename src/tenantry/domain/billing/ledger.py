"""The contents of the ledger and of the tenants' billing accounts."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.timeline import Folded


class ReplayNeed(NamedTuple):
    """From which second on an account's history is needed to place events.

    Unless they are ``late``, it is the second of the account's newest event. If they are, it is that of the oldest
    event to place, and the history before it is needed too, back to a full-state event. For an account with several
    subscriptions, or written by the previous release, no event is a full-state event; then the second is `FIRST`.
    """

    second: int
    late: bool


FIRST: Final = -1
"""A second before all events."""


class BillingAccount(msgspec.Struct, frozen=True):
    """The billing state of a tenant.

    ``tip_created`` is the second of its newest folded event, ``tip_state`` the state before that second. Without
    ``is_whole`` the previous release wrote the account: its facts of other subscriptions may be out of date.
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

    @property
    def beginning(self) -> BillingState:
        """The state before all events."""
        return BillingState(plan=self.base_plan)

    def checkpoint(self, need: ReplayNeed | None) -> BillingState:
        """Return the state before the events of a timeline with the needed history."""
        if need is None:
            return self.state
        return self.beginning if need.late or self.tip_state is None else self.tip_state

    def with_fold(self, folded: Folded) -> "BillingAccount":
        """Return the account with the result of a fold of its events."""
        return msgspec.structs.replace(
            self, state=folded.state, tip_created=folded.tip_created, tip_state=folded.tip_state, is_whole=True
        )


class ReceivedEvent(msgspec.Struct, frozen=True):
    """A verified event as it came in; ``belated`` if the service fetched it instead of receiving it.

    ``trace`` is the ``traceparent`` of its request (W3C Trace Context), if any.
    """

    event: BillingEvent
    received_at: datetime
    body: bytes | None = None
    belated: bool = False
    trace: str | None = None


class LedgerEntry(msgspec.Struct, frozen=True):
    """An event in the ledger: its tenant if known, the outcome and its reason, and anomalies."""

    received: ReceivedEvent
    tenant_id: str | None
    outcome: Outcome
    reason: str
    before: BillingState | None = None
    after: BillingState | None = None
    anomalies: tuple[Anomaly, ...] = ()


class CustomerLink(NamedTuple):
    """A customer of the provider, and the tenant that it belongs to."""

    customer_id: str
    tenant_id: str
    linked_by: str


class NameLock(NamedTuple):
    """The lock of a tenant's or customer's name, such as ``tenant acme``.

    Claim a name before adding it: this waits for transactions that park events for it. Lock it unclaimed before parking
    events for it, so that no transaction adds it meanwhile.
    """

    name: str
    claimed: bool


class FailedPayment(NamedTuple):
    """A failed payment of which the tenant's owner is notified, with the invoice's hosted page if the event had one."""

    tenant_id: str
    owner_id: str
    event_id: str
    invoice_url: str | None


class SnapshotRequest(NamedTuple):
    """A request to fetch a tenant's state; ``later`` if more of its events may be on their way."""

    tenant_id: str
    later: bool


class BatchContext(msgspec.Struct, frozen=True):
    """The state before a batch is applied; the accounts in it are locked.

    ``replaceable`` are the ids of entries that a valid event of the same id replaces.
    """

    accounts: Mapping[str, BillingAccount]
    tenant_of_customer: Mapping[str, str]
    seen: frozenset[str]
    first_arrival: int
    replaceable: frozenset[str] = frozenset()
