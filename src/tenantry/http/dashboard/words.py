"""Words for what the pages show."""

from typing import Final

from tenantry.domain.access import ANYTHING, AccessLevel, Principal
from tenantry.domain.tenants import Tenant

_STATUSES: Final = {
    "none": "No subscription",
    "trialing": "Trial",
    "active": "Active",
    "past_due": "Past due: a payment failed",
    "unpaid": "Unpaid",
    "canceled": "Cancelled",
    "incomplete": "Waiting for the first payment",
    "incomplete_expired": "The first payment never came",
    "paused": "Paused",
}


def status_in_words(tenant: Tenant) -> str:
    """What the subscription's status means."""
    return subscription_status(tenant.subscription_status)


def subscription_status(status: str) -> str:
    """What a status of the provider's means; itself, where we do not know it."""
    return _STATUSES.get(status, status)


def role_of(principal: Principal) -> str:
    """What a user is in the tenant, by what they may do there."""
    if principal.access_level is AccessLevel.OWNER:
        return "Owner"
    return "Admin" if ANYTHING in principal.scopes else "Member"


ROLES: Final = (("member", "Member"), ("admin", "Admin"), ("owner", "Owner"))
