"""Tenants: the organizations that use the API."""

import re
from datetime import datetime

import msgspec

_tenant_id = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class Tenant(msgspec.Struct, frozen=True, rename="camel"):
    """The tenant record as the API gives it."""

    id: str
    name: str
    plan: str
    subscription_status: str
    current_period_end: datetime | None
    cancel_at_period_end: bool
    stripe_customer_id: str | None
    owner_id: str
    created_at: datetime
    updated_at: datetime


def is_tenant_id(text: str) -> bool:
    """Whether ``text`` is 1 to 64 of ``A-Za-z0-9_-``."""
    return _tenant_id.fullmatch(text) is not None
