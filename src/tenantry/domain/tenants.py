"""Tenants, the organizations that use the API, and their projects."""

import re
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.common.clock import from_epoch
from tenantry.common.encoding import doc
from tenantry.domain.access import AccessPhase, TenantAccess, current_phase, plan_at, to_access
from tenantry.domain.permissions import Mode
from tenantry.domain.plans import Catalog

_tenant_id = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

PlanId = Annotated[str, doc("The plan's id; `free` is the fallback and downgrade plan.", "pro")]
SubscriptionStatus = Annotated[
    str,
    doc(
        "The provider's subscription status, such as `active`, `past_due` or `canceled`; `none` before any.",
        "active",
    ),
]
PeriodEnd = Annotated[
    datetime | None,
    doc("End of the current billing period; null when there is none.", "2026-12-01T00:00:00Z"),
]
TimeZone = Annotated[str, doc("A name of the IANA time zone database.", "Europe/Berlin")]
EndsWithPeriod = Annotated[
    bool, doc("Whether the subscription ends with the period.", example=False)
]


class Tenant(msgspec.Struct, frozen=True, rename="camel"):
    """The tenant record of the API."""

    id: Annotated[str, doc("The tenant's id, as in the subscription's `metadata.orgId`.", "acme")]
    name: Annotated[str, doc("The display name.", "Acme")]
    plan: PlanId
    subscription_status: SubscriptionStatus
    current_period_end: PeriodEnd
    cancel_at_period_end: EndsWithPeriod
    cancel_at: Annotated[
        datetime | None,
        doc(
            "When the provider will cancel the subscription, if that is scheduled.",
            "2026-12-01T00:00:00Z",
        ),
    ]
    ends_at: Annotated[
        datetime | None,
        doc("When the subscription ended or will end; null if it renews.", "2026-12-01T00:00:00Z"),
    ]
    seats: Annotated[
        int | None,
        doc(
            "The quantity of the subscription's plan item; null without one, and after the end.", 5
        ),
    ]
    access: Annotated[
        TenantAccess,
        doc("What subscriptions and grants give now, and the plan whose limits count."),
    ]
    stripe_customer_id: Annotated[
        str | None,
        doc(
            "The payment provider's customer id; of several customers, the one linked last.",
            "cus_Rk2pXw7Lm3",
        ),
    ]
    owner_id: Annotated[str, doc("The user who owns the tenant.", "user_ada")]
    created_at: Annotated[datetime, doc("When it was created.", "2026-10-01T08:00:00Z")]
    updated_at: Annotated[datetime, doc("When it was last changed.", "2026-11-01T00:00:04Z")]
    time_zone: Annotated[
        TimeZone | UnsetType,
        doc("The time zone in which its pages show times; absent: that of each reader."),
    ] = UNSET


class ManagedTenant(Tenant, frozen=True, rename="camel", kw_only=True):
    """A tenant's record with what only the operator sees."""

    owner_email: Annotated[str, doc("The address that receives billing mail.", "ada@acme.example")]
    suspended: Annotated[bool, doc("Whether the tenant's credentials are refused.", example=False)]
    suspension_reason: Annotated[
        str | UnsetType,
        doc("Why it is suspended; absent without a reason.", "Invoice 2026-114 is unpaid"),
    ] = UNSET


class TenantRecord(msgspec.Struct, frozen=True):
    """The stored record of a tenant. Times of billing are seconds since the Unix epoch.

    ``access`` is the JSON of its phases; None where plan and status say everything.
    """

    id: str
    name: str
    plan: str
    subscription_status: str
    current_period_end: int | None
    cancel_at_period_end: bool
    cancel_at: int | None
    ends_at: int | None
    seats: int | None
    access: str | None
    stripe_customer_id: str | None
    owner_id: str
    created_at: datetime
    updated_at: datetime
    time_zone: str | None


def access_of(record: TenantRecord, catalog: Catalog, now: datetime) -> AccessPhase:
    """Return a tenant's access at ``now``."""
    return current_phase(
        record.access, record.plan, record.subscription_status, now.timestamp(), catalog
    )


def to_tenant(record: TenantRecord, catalog: Catalog, now: datetime) -> Tenant:
    """Return a tenant's record as the API shows it at ``now``."""
    phase = access_of(record, catalog, now)
    return Tenant(
        record.id,
        record.name,
        plan_at(record.plan, record.subscription_status, phase),
        record.subscription_status,
        from_epoch(record.current_period_end),
        record.cancel_at_period_end,
        from_epoch(record.cancel_at),
        from_epoch(record.ends_at),
        record.seats,
        to_access(phase),
        record.stripe_customer_id,
        record.owner_id,
        record.created_at,
        record.updated_at,
        record.time_zone or UNSET,
    )


def to_managed_tenant(
    record: TenantRecord,
    owner_email: str,
    catalog: Catalog,
    now: datetime,
    *,
    suspension: str | None,
) -> ManagedTenant:
    """Return a tenant's record as the operator sees it at ``now``. ``suspension`` is the reason,
    which may be empty; None while it is not suspended.
    """
    shown = msgspec.structs.asdict(to_tenant(record, catalog, now))
    return ManagedTenant(
        **shown,
        owner_email=owner_email,
        suspended=suspension is not None,
        suspension_reason=suspension or UNSET,
    )


def suspension_after(
    current: str | None, reason: str | None, *, suspended: bool | None
) -> str | None:
    """Return the reason of a tenant's suspension after a change that sets ``suspended``, for a
    ``reason``; None of both leaves the ``current`` one.
    """
    if suspended is None:
        return current
    if not suspended:
        return None
    return current or "" if reason is None else reason


class Project(msgspec.Struct, frozen=True, rename="camel"):
    """A project of a tenant, in live or test mode."""

    id: Annotated[str, doc("The project's id.", "proj_01975c3a4f10b7e2d4a6c8f01e3b5d7f")]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    name: Annotated[str, doc("The display name.", "Storefront")]
    description: Annotated[str | None, doc("What it is for.", "The public shop")]
    mode: Annotated[
        Mode, doc("Live or test. Objects of one mode are invisible to the other.", "live")
    ]
    created_at: Annotated[datetime, doc("When it was created.", "2026-11-02T09:30:00Z")]
    updated_at: Annotated[datetime, doc("When it was last changed.", "2026-11-02T09:30:00Z")]


def is_tenant_id(text: str) -> bool:
    """Whether ``text`` is 1 to 64 of ``A-Za-z0-9_-``."""
    return _tenant_id.fullmatch(text) is not None


class TenantInput(msgspec.Struct, frozen=True):
    """The fields that an operator sets; None leaves a field unchanged, or at its default for a new
    tenant.

    For ``stripe_customer_id`` None removes all links of the tenant's customers, and UNSET leaves
    them.
    """

    name: str
    owner_email: str
    owner_id: str | None = None
    stripe_customer_id: str | UnsetType | None = UNSET
    suspended: bool | None = None
    plan: str | None = None
    email_verified: bool = True
    """Whether the address counts as verified, as one from the operator does."""
