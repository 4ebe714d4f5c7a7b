"""Words for what the pages show."""

import unicodedata
from collections.abc import Iterable
from typing import Final

from tenantry.domain.access import ANYTHING, AccessLevel, Principal, Role, is_scope
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
_MAY: Final = {
    "api-keys:read": "see API keys",
    "api-keys:write": "create, change or end API keys",
    "audit:read": "see the audit trail",
    "billing:read": "see billing",
    "billing:write": "manage billing",
    "members:read": "see members",
    "members:write": "manage members",
    "projects:read": "see projects",
    "projects:write": "create, change or delete projects",
    "tenants:write": "change or hand over the organization",
}


def shown_name(name: str, otherwise: str) -> str:
    """A name; ``otherwise`` where it shows nothing, such as one of blanks or of characters without a width."""
    return name if any(unicodedata.category(letter)[0] not in _UNSEEN for letter in name) else otherwise


def status_in_words(tenant: Tenant) -> str:
    """What the subscription's status means."""
    return subscription_status(tenant.subscription_status)


def subscription_status(status: str) -> str:
    """What a status of the provider's means; itself, where we do not know it."""
    return _STATUSES.get(status, status)


_UNSEEN: Final = frozenset({"C", "Z"})  # the categories of control and format characters, and of separators
ROLES: Final = ((Role.MEMBER, "Member"), (Role.ADMIN, "Admin"), (Role.OWNER, "Owner"))
_NAMES: Final = dict(ROLES)


def role_in(principal: Principal) -> Role:
    """What a user is in the tenant, by what they may do there."""
    if principal.access_level is AccessLevel.OWNER:
        return Role.OWNER
    return Role.ADMIN if ANYTHING in principal.scopes else Role.MEMBER


def role_of(principal: Principal) -> str:
    """The name of `role_in`."""
    return _NAMES[role_in(principal)]


def refusal_of(principal: Principal, token_scopes: Iterable[str], scope: str) -> str:
    """Why a user may not do what takes ``scope``, and who may. Their token's own scopes can be why, too."""
    wanted = _MAY.get(scope, f"do what takes the scope {scope}")
    narrowing = [one for one in token_scopes if is_scope(one)]
    if narrowing:
        said = ", ".join(narrowing)
        return f"Your identity provider signed you in for {said} only. That does not let you {wanted}."
    return f"Your role, {role_in(principal)}, does not let you {wanted}. An owner or admin can."
