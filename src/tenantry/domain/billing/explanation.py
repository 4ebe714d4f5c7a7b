"""Why a tenant has its plan and status: its state, and the events that led to it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, Self

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.common.encoding import doc
from tenantry.domain.access import AccessEnding
from tenantry.domain.billing.events import Outcome
from tenantry.domain.billing.reversals import PaymentReversal
from tenantry.domain.billing.state import BillingState
from tenantry.domain.grants import Grant
from tenantry.domain.tenants import (
    EndsWithPeriod,
    PeriodEnd,
    PlanId,
    SubscriptionStatus,
    Tenant,
)

CHECKPOINT: Final = "tipState."
"""The prefix of fields of the state before the newest second."""


class FieldComparison(msgspec.Struct, frozen=True, rename="camel"):
    """One field of a tenant's billing state: as stored, and as folded from its events."""

    field: Annotated[str, doc("The field.", "plan")]
    stored: Annotated[Any, doc("Its value in the database.")]
    folded: Annotated[Any, doc("What the events give.")]

    @property
    def differs(self) -> bool:
        return bool(self.stored != self.folded)

    @property
    def is_of_checkpoint(self) -> bool:
        """Whether it belongs to the state before the newest second."""
        return CHECKPOINT in self.field


class BillingFields(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a tenant that events write."""

    plan: PlanId
    subscription_status: SubscriptionStatus
    current_period_end: PeriodEnd
    cancel_at_period_end: EndsWithPeriod


class BillingEventView(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the tenant's ledger: its outcome and reason, the tenant before and after, and
    anomalies.
    """

    id: Annotated[
        str,
        doc("The provider's event id; tenantry's own for its own types.", "evt_1SQk7xLm3Rk2pXw7"),
    ]
    type: Annotated[
        str,
        doc(
            "The provider's event type, `tenantry.subscription.snapshot` for a snapshot of the provider's API, "
            "`tenantry.access.ended` for access that ended by time, or `tenantry.grant.set` and "
            "`tenantry.grant.ended` for the operator's grants.",
            "customer.subscription.updated",
        ),
    ]
    created: Annotated[
        datetime,
        doc(
            "When the provider created the event; events are ordered by it.", "2026-11-01T00:00:02Z"
        ),
    ]
    received_at: Annotated[datetime, doc("When tenantry received it.", "2026-11-01T00:00:04Z")]
    livemode: Annotated[
        bool | None,
        doc(
            "Whether the event is of the provider's live mode; null if the event does not say.",
            example=True,
        ),
    ]
    outcome: Annotated[Outcome, doc("The effect of the event on arrival.", "applied")]
    reason: Annotated[
        str,
        doc(
            "The reason for the outcome.",
            "The subscription is active: price price_pro means plan pro.",
        ),
    ]
    before: Annotated[
        BillingFields | None,
        doc("The tenant's billing fields before the event; null if it is not part of the order."),
    ]
    after: Annotated[BillingFields | None, doc("The tenant's billing fields after the event.")]
    anomalies: Annotated[
        list[str],
        doc("Unexpected facts about the event, such as `unknown_price`; usually empty.", []),
    ]
    reversal: Annotated[
        PaymentReversal | None,
        doc("The refund or dispute of the event."),
    ]


class StateView(BillingFields, frozen=True):
    """A tenant's whole billing state: the fields of the API, and those that only the fold needs."""

    provider_status: Annotated[
        str | None, doc("The status of the subscription at the provider.", "active")
    ]
    subscription_id: Annotated[str | None, doc("The subscription.", "sub_1SQk7x")]
    subscription_created: Annotated[datetime | None, doc("When it was created.")]


class SubscriptionView(msgspec.Struct, frozen=True, rename="camel"):
    """One subscription of a tenant."""

    id: Annotated[str, doc("The provider's id of it.", "sub_1SQk7x")]
    plan: PlanId
    status: SubscriptionStatus
    seats: Annotated[int | None, doc("The quantity of the plan's item.", 5)]
    current_period_end: PeriodEnd
    cancel_at_period_end: EndsWithPeriod
    cancel_at: Annotated[datetime | None, doc("When the provider will cancel it.")]
    past_due_since: Annotated[datetime | None, doc("Since when it is past due.")]
    ended_at: Annotated[datetime | None, doc("When it ended.")]
    reason: Annotated[str, doc("Why it counts for the tenant, or does not.")]

    @classmethod
    def of(cls, state: BillingState, reason: str) -> Self:
        """Show the state of a subscription."""
        details = state.details
        return cls(
            state.subscription_id or "",
            state.plan,
            state.subscription_status,
            state.seats,
            from_epoch(state.current_period_end),
            state.cancel_at_period_end,
            from_epoch(details.cancel_at),
            from_epoch(state.past_due_since),
            from_epoch(details.ended_at),
            reason,
        )


class EndingView(msgspec.Struct, frozen=True, rename="camel"):
    """What ends by time of a tenant's access."""

    at: Annotated[datetime, doc("When it ends.", "2026-12-01T00:00:00Z")]
    ends: Annotated[str, doc("What ends, in words.")]
    grants: Annotated[tuple[str, ...], doc("The names of the grants that end then.", ["plan"])]
    plan: Annotated[str, doc("The plan whose limits count afterwards.", "free")]
    reason: Annotated[str, doc("Why that plan counts.")]

    @classmethod
    def of(cls, ending: AccessEnding, grants: Iterable[Grant]) -> Self:
        """Show an ending of a tenant with these grants."""
        names = tuple(grant.name for grant in grants if grant.until == ending.at)
        return cls(ending.at, ending.words, names, ending.after.plan, ending.after.reason)


class BillingExplanation(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant's billing state, and the events that led to it."""

    tenant: Annotated[Tenant, doc("The tenant.")]
    grants: Annotated[tuple[Grant, ...], doc("The grants that count now.")]
    endings: Annotated[tuple[EndingView, ...], doc("What ends by time, in order.")]
    customers: Annotated[
        tuple[str, ...], doc("The payment provider's customers of the tenant.", ["cus_Rk2pXw7Lm3"])
    ]
    suspended: Annotated[bool, doc("Whether the tenant's credentials are refused.", example=False)]
    ended: Annotated[bool, doc("Whether the tenant has ended.", example=False)]
    earlier: Annotated[int, doc("The number of older events that are left out.", 0)]
    entries: Annotated[tuple[BillingEventView, ...], doc("The newest events, oldest first.")]
    state: Annotated[StateView, doc("The state now.")]
    subscriptions: Annotated[
        tuple[SubscriptionView, ...],
        doc("The subscriptions, the one that counts first; empty unless `SUBSCRIPTIONS=each`."),
    ]
    events: Annotated[int, doc("The number of events that decide the state.", 3)]
    differences: Annotated[
        tuple[FieldComparison, ...],
        doc("The stored fields that differ from what the events give; usually none.", []),
    ]
    parked: Annotated[int, doc("The number of parked events that can be applied.", 0)]
