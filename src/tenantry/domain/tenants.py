"""Tenants, the organizations that use the API, and their projects."""

import re
from datetime import datetime
from typing import Annotated

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.permissions import Mode

_tenant_id = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

PlanId = Annotated[str, doc("The plan's id; `free` is the fallback and downgrade plan.", "pro")]
SubscriptionStatus = Annotated[
    str,
    doc("The provider's subscription status, such as `active`, `past_due` or `canceled`; `none` before any.", "active"),
]
PeriodEnd = Annotated[
    datetime | None, doc("End of the current billing period; null when there is none.", "2026-12-01T00:00:00Z")
]
EndsWithPeriod = Annotated[bool, doc("Whether the subscription ends with the period.", example=False)]


class Tenant(msgspec.Struct, frozen=True, rename="camel"):
    """The tenant record of the API."""

    id: Annotated[str, doc("The tenant's id, as in the subscription's `metadata.orgId`.", "acme")]
    name: Annotated[str, doc("The display name.", "Acme")]
    plan: PlanId
    subscription_status: SubscriptionStatus
    current_period_end: PeriodEnd
    cancel_at_period_end: EndsWithPeriod
    stripe_customer_id: Annotated[
        str | None,
        doc("The payment provider's customer id; of several customers, the one linked last.", "cus_Rk2pXw7Lm3"),
    ]
    owner_id: Annotated[str, doc("The user who owns the tenant.", "user_ada")]
    created_at: Annotated[datetime, doc("When it was created.", "2026-10-01T08:00:00Z")]
    updated_at: Annotated[datetime, doc("When it was last changed.", "2026-11-01T00:00:04Z")]


class Project(msgspec.Struct, frozen=True, rename="camel"):
    """A project of a tenant, in live or test mode."""

    id: Annotated[str, doc("The project's id.", "proj_01975c3a4f10b7e2d4a6c8f01e3b5d7f")]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    name: Annotated[str, doc("The display name.", "Storefront")]
    description: Annotated[str | None, doc("What it is for.", "The public shop")]
    mode: Annotated[Mode, doc("Live or test. Objects of one mode are invisible to the other.", "live")]
    created_at: Annotated[datetime, doc("When it was created.", "2026-11-02T09:30:00Z")]
    updated_at: Annotated[datetime, doc("When it was last changed.", "2026-11-02T09:30:00Z")]


def is_tenant_id(text: str) -> bool:
    """Whether ``text`` is 1 to 64 of ``A-Za-z0-9_-``."""
    return _tenant_id.fullmatch(text) is not None
