"""Words for what the pages show."""

import unicodedata
from typing import Final

from tenantry.domain.access import AccessLevel, Principal, Role, covers, is_scope, role_grants
from tenantry.domain.billing.state import ENDED, NO_SUBSCRIPTION
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


def has_subscription(tenant: Tenant) -> bool:
    """Whether a subscription lives; what an ended one was to do at the end of its period says nothing any more."""
    return tenant.subscription_status not in (*ENDED, NO_SUBSCRIPTION)


def will_end(tenant: Tenant) -> bool:
    """Whether the subscription lives, and ends with its period."""
    return tenant.cancel_at_period_end and has_subscription(tenant)


_UNSEEN: Final = frozenset({"C", "Z"})  # the categories of control and format characters, and of separators
ROLES: Final = ((Role.MEMBER, "Member"), (Role.ADMIN, "Admin"), (Role.OWNER, "Owner"))
_NAMES: Final = dict(ROLES)


def role_in_words(role: Role, principal: Principal) -> str:
    """What a user with this role is called, and whether their token leaves them less than it grants."""
    scopes, level = role_grants(role, ())
    narrowed = set(scopes) != set(principal.scopes) or level is not principal.access_level
    return _NAMES[role] + (", narrowed by your identity provider" if narrowed else "")


def refusal_of(role: Role, token_scopes: tuple[str, ...], scope: str, owners_deed: str | None) -> str:
    """Why a user may not do what takes ``scope``, and who may. Their token's own scopes can be why, too.

    ``owners_deed`` says what it is, where it is for owners alone.
    """
    wanted = owners_deed or _MAY.get(scope, f"do what takes the scope {scope}")
    scopes, level = role_grants(role, ())
    narrowing = [one for one in token_scopes if is_scope(one)]
    if narrowing and covers(scopes, scope) and (owners_deed is None or level is AccessLevel.OWNER):
        said = ", ".join(narrowing)
        return f"Your identity provider signed you in for {said} only. That does not let you {wanted}."
    who = "Only an owner" if owners_deed else "An owner or admin"
    return f"Your role, {role}, does not let you {wanted}. {who} can."
