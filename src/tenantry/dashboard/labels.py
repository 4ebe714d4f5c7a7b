"""The text of values, messages and events on pages."""

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from tenantry.billing.ledger_queries import BillingEventView, BillingFields
from tenantry.billing.replay import FieldComparison, Value
from tenantry.domain.access import ANYTHING, AccessLevel, Principal, Role, covers, is_scope, role_grants
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import Anomaly, Outcome
from tenantry.domain.billing.state import ENDED, NO_SUBSCRIPTION
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import Tenant


class FlashMessage(StrEnum):
    """Messages that a page shows once, at its top, about the form that led to it."""

    MEMBER_ADDED = "Member added."
    MEMBER_INVITED = "Invitation created. The user becomes a member when they accept it."
    INVITATION_WITHDRAWN = "Invitation withdrawn."
    INVITATION_DECLINED = "Invitation declined."
    INVITATION_ACCEPTED = "Invitation accepted. You are now a member of this organization."
    ORGANIZATION_LEFT = "You left the organization."
    MEMBER_CHANGED = "Role changed. It applies from the next request."
    MEMBER_REMOVED = "Member removed. Their next request is rejected."
    TRANSFERRED = "Ownership transferred."
    PROJECT_DELETED = "Project deleted."
    KEY_SAVED = "Key saved. The changes apply from its next request."
    OTHERS_SIGNED_OUT = "All other sessions are signed out."
    CONFIRMATION_SENT = "Confirmation sent to the owner's address."
    CONFIRMATION_LIMITED = "Not sent: this address was sent several confirmations already. Try again later."
    ADDRESS_VERIFIED = "The owner's address is already verified."
    CHECKED_OUT = "Checkout complete. The plan changes when the provider's event arrives, usually within seconds."
    CHECKOUT_LEFT = "Checkout canceled. Nothing was ordered."
    PORTAL_LEFT = "Changes made at the provider appear here when its event arrives, usually within seconds."

    @property
    def is_success(self) -> bool:
        """Whether the page shows the message in green."""
        return self not in (
            FlashMessage.CHECKED_OUT,
            FlashMessage.CHECKOUT_LEFT,
            FlashMessage.PORTAL_LEFT,
            FlashMessage.CONFIRMATION_LIMITED,
        )


FORM_FIELDS: Final = {
    "name": "Name",
    "description": "Description",
    "userId": "User id",
    "role": "Role",
    "ownerEmail": "Billing address",
    "word": "Name typed to confirm",
    "access": "Access",
    "scope": "Scope",
    "own": "Other scopes",
    "mode": "Mode",
    "expiry": "Expiry",
    "until": "Last day",
    "overlap": "Seconds that the old key keeps working",
    "plan": "Plan",
    "sure": "Confirmed",
    "leaving": "Confirmed",
    "force": "Confirmed",
}
"""Labels of the form fields that a page shows for resubmission; it shows no others."""

_INVISIBLE: Final = frozenset({"C", "Z"})  # the Unicode categories of control and format characters, and of separators


def shown_name(name: str, fallback: str) -> str:
    """Return the name, or ``fallback`` if it has only blanks and invisible characters."""
    return name if any(unicodedata.category(letter)[0] not in _INVISIBLE for letter in name) else fallback


# Roles and permissions

ROLES: Final = ((Role.MEMBER, "Member"), (Role.ADMIN, "Admin"), (Role.OWNER, "Owner"))
_ACTIONS: Final = {
    "api-keys:read": "see API keys",
    "api-keys:write": "create, change or revoke API keys",
    "audit:read": "see the audit trail",
    "billing:read": "see billing",
    "billing:write": "manage billing",
    "members:read": "see members",
    "members:write": "manage members",
    "projects:read": "see projects",
    "projects:write": "create, change or delete projects",
    "tenants:write": "change or transfer the organization",
}


def role_label(role: Role, principal: Principal) -> str:
    """Return the role's name, and whether the token's scopes restrict it."""
    scopes, level = role_grants(role, ())
    is_restricted = set(scopes) != set(principal.scopes) or level is not principal.access_level
    return dict(ROLES)[role] + (", restricted by your identity provider" if is_restricted else "")


def denial_text(role: Role, token_scopes: tuple[str, ...], scope: str, owner_only: str | None) -> str:
    """Say why a user may not do what needs ``scope``, and who may. ``owner_only`` as for `RoleTooLowError`."""
    action = owner_only or _ACTIONS.get(scope, f"use the scope {scope}")
    scopes, level = role_grants(role, ())
    restrictions = [one for one in token_scopes if is_scope(one)]
    if restrictions and covers(scopes, scope) and (owner_only is None or level is AccessLevel.OWNER):
        return f"Your identity provider restricted your sign-in to {', '.join(restrictions)}. You can't {action}."
    who = "an owner" if owner_only else "an owner or admin"
    return f"Your role, {role}, can't {action}. Ask {who} of the organization."


SCOPE_GROUPS: Final = {
    "Projects": {"projects:read": "See projects", "projects:write": "Create, change and delete projects"},
    "API keys": {
        "api-keys:read": "See API keys, never their secrets",
        "api-keys:write": "Create, change, rotate and revoke API keys with no more scopes than this one",
    },
    "Organization": {
        "tenants:read": "See the organization's name, plan and subscription",
        "tenants:write": "Change the organization's name and billing address",
    },
    "Members": {
        "members:read": "See members and their roles",
        "members:write": "Add and remove members, and change their roles",
    },
    "Billing": {
        "billing:read": "See billing events",
        "billing:write": "Start a checkout, and open the customer portal",
    },
    "Audit trail": {"audit:read": "See and export the audit trail"},
}
"""The scopes that routes of the API need, with what each allows."""
KNOWN_SCOPES: Final = {scope: text for group in SCOPE_GROUPS.values() for scope, text in group.items()}


def scope_label(scope: str) -> str:
    """Say what a scope allows; empty for a scope of the tenant's own services."""
    if scope in KNOWN_SCOPES:
        return KNOWN_SCOPES[scope]
    if scope == ANYTHING:
        return "Everything that does not require an OWNER key"
    resource, _, action = scope.partition(":")
    if resource == "*":
        return {"read": "See everything", "write": "Change everything"}.get(action, f"{action} on everything")
    if action == "*" and any(known.startswith(f"{resource}:") for known in KNOWN_SCOPES):
        return f"Everything with {resource}"
    return ""


# Browsers: in this order, since most also name those that they descend from

_BROWSERS: Final = (
    (r"Edg(?:e|A|iOS)?/", "Edge"),
    (r"OPR/|Opera", "Opera"),
    (r"SamsungBrowser/", "Samsung Internet"),
    (r"Vivaldi/", "Vivaldi"),
    (r"Firefox/|FxiOS/", "Firefox"),
    (r"Chrome/|CriOS/|Chromium/", "Chrome"),
    (r"Version/.*Safari/", "Safari"),
)
_SYSTEMS: Final = (
    (r"iPhone", "an iPhone"),
    (r"iPad", "an iPad"),
    (r"Android", "Android"),
    (r"CrOS", "ChromeOS"),
    (r"Windows", "Windows"),
    (r"Macintosh|Mac OS X", "a Mac"),
    (r"Linux|X11", "Linux"),
)


def browser_label(agent: str | None) -> str:
    """Return the probable meaning of a ``User-Agent``, such as "Firefox on Linux"."""
    browser, system = _first_match(_BROWSERS, agent or ""), _first_match(_SYSTEMS, agent or "")
    if browser is None:
        return f"A browser on {system}" if system else "An unknown browser"
    return f"{browser} on {system}" if system else browser


def _first_match(patterns: tuple[tuple[str, str], ...], agent: str) -> str | None:
    return next((name for pattern, name in patterns if re.search(pattern, agent)), None)


# Subscriptions

_STATUSES: Final = {
    "none": "No subscription",
    "trialing": "Trial",
    "active": "Active",
    "past_due": "Past due: a payment failed",
    "unpaid": "Unpaid",
    "canceled": "Canceled",
    "incomplete": "First payment pending",
    "incomplete_expired": "First payment failed",
    "paused": "Paused",
}


def subscription_status_label(status: str) -> str:
    return _STATUSES.get(status, status)


def has_subscription(tenant: Tenant) -> bool:
    """Whether the tenant has a subscription that has not ended."""
    return tenant.subscription_status not in (*ENDED, NO_SUBSCRIPTION)


def will_end(tenant: Tenant) -> bool:
    """Whether the subscription ends with its current period."""
    return tenant.cancel_at_period_end and has_subscription(tenant)


# Billing events

TYPES: Final = {
    ev.SUBSCRIPTION_UPDATED: "Subscription updated",
    ev.SUBSCRIPTION_DELETED: "Subscription ended",
    ev.PAYMENT_FAILED: "Payment failed",
    ev.PAYMENT_SUCCEEDED: "Payment received",
    ev.CHECKOUT_COMPLETED: "Checkout completed",
    ev.SNAPSHOT: "Provider snapshot",
}


class Label(NamedTuple):
    """A short text, its explanation, and the color of its tag."""

    short: str
    long: str
    color: str = ""


_OUTCOMES: Final = {
    Outcome.APPLIED: Label("Applied", "It changed the plan or the subscription.", "green"),
    Outcome.NO_CHANGE: Label("No change", "It counts, but it changed nothing."),
    Outcome.LATE: Label("Late", "It arrived after newer events and changed nothing.", "amber"),
    Outcome.IGNORED: Label("Ignored", "It does not concern the plan or the subscription."),
    Outcome.PARKED: Label("Parked", "Its organization or customer is not known yet.", "amber"),
    Outcome.INVALID: Label("Invalid", "It lacks data that its type requires, so it changed nothing.", "red"),
}
_LINKED: Final = "It linked a customer to the organization. The plan and the subscription did not change."
_INTERNAL_CHANGE: Final = "It changed how later events are judged. The plan and the subscription did not change."
_ANOMALIES: Final[dict[str, Label]] = {
    Anomaly.UNUSABLE_OBJECT: Label("Invalid", "The event lacks data that its type requires. See the payload below."),
    Anomaly.MISSING_ORG_ID: Label("No organization", "Add orgId to the subscription's metadata at the provider."),
    Anomaly.MISSING_PRICE: Label("No price", "The subscription has no item with a price, so the plan is the free one."),
    Anomaly.UNKNOWN_PRICE: Label(
        "Unknown price", "The plan is the free one until the price is added to the plan catalog."
    ),
    Anomaly.WRONG_LIVEMODE: Label("Wrong mode", "A test event arrived where live events are expected, or vice versa."),
    Anomaly.IGNORED_LIVEMODE: Label("Other mode", "This service ignores events of this mode (PROVIDER_LIVEMODE)."),
    Anomaly.CONNECTED_ACCOUNT: Label(
        "Connected account", "Events of this account are ignored until PROVIDER_ACCOUNTS lists it."
    ),
    Anomaly.FUTURE_DATED: Label(
        "Future date", "It is dated more than an hour after its arrival. Until then, it overrides earlier events."
    ),
    Anomaly.CUSTOMER_TAKEN: Label("Customer taken", "The customer is already linked to another organization."),
    Anomaly.AMBIGUOUS_ORDER: Label(
        "Ambiguous order",
        "Nothing proves the order of several events of one second. They count in order of arrival, until the provider "
        "answers which state is current.",
    ),
    Anomaly.DRIFT: Label("Drift", "The provider's state differed from its events. Its state now counts."),
}
_FOLDED_FIELDS: Final = {
    "plan": "Plan",
    "subscriptionStatus": "Subscription",
    "currentPeriodEnd": "Period ends",
    "cancelAtPeriodEnd": "Ends with the period",
    "providerStatus": "Last status from the provider",
    "subscriptionId": "Subscription id",
    "subscriptionCreated": "Subscription created",
    "otherSubscriptions": "Other subscriptions",
    "tipCreated": "Newest event",
}

Displayed = str | datetime
"""Text, or a moment that a template filter formats."""


class Difference(NamedTuple):
    """Two values of a field; None is an empty one."""

    label: str
    before: Displayed | None
    after: Displayed | None

    @property
    def by_the_second(self) -> bool:
        """Whether the values are moments of the same minute, so that only seconds tell them apart."""
        one, other = self.before, self.after
        if not isinstance(one, datetime) or not isinstance(other, datetime):
            return False
        return one.replace(second=0, microsecond=0) == other.replace(second=0, microsecond=0)


class EventLabels:
    """The texts of ledger entries, for templates."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def of_type(self, event_type: str) -> str:
        return TYPES.get(event_type, event_type)

    def of_outcome(self, outcome: Outcome) -> Label:
        return _OUTCOMES[outcome]

    def of_effect(self, event: BillingEventView) -> str:
        """Explain the outcome of an event."""
        if event.outcome is not Outcome.APPLIED or self.of_changes(event):
            return _OUTCOMES[event.outcome].long
        return _LINKED if event.type == ev.CHECKOUT_COMPLETED else _INTERNAL_CHANGE

    def of_no_changes(self, event: BillingEventView) -> str:
        """Say what an event changed that changed neither the plan nor the subscription as pages show them."""
        if event.outcome is not Outcome.APPLIED:
            return "Neither the plan nor the subscription."
        if event.type == ev.CHECKOUT_COMPLETED:
            return "The organization's customers at the payment provider."
        return "Which subscription counts, or the last status from the provider."

    def of_anomalies(self, names: Sequence[str]) -> list[Label]:
        return [_ANOMALIES.get(name, Label(name, "")) for name in names]

    def of_changes(self, event: BillingEventView) -> list[Difference]:
        """Return the fields that an event changed."""
        if event.before is None or event.after is None:
            return []
        fields = zip(self._fields(event.before), self._fields(event.after), strict=True)
        return [Difference(label, before, after) for (label, before), (_, after) in fields if before != after]

    def _fields(self, state: BillingFields) -> list[tuple[str, Displayed]]:
        return [
            ("Plan", self._catalog.name(state.plan)),
            ("Subscription", subscription_status_label(state.subscription_status)),
            ("Period ends", state.current_period_end or "no date"),
            ("Ends with the period", "yes" if state.cancel_at_period_end else "no"),
        ]


def folded_difference(field: FieldComparison, catalog: Catalog) -> Difference:
    """Return the stored value of a field, and the value that the events give."""
    name = field.field.removeprefix("tipState.")
    label = _FOLDED_FIELDS.get(name, name) + (", before the newest second" if field.is_of_checkpoint else "")
    return Difference(label, _folded_value(name, field.stored, catalog), _folded_value(name, field.folded, catalog))


def _folded_value(name: str, value: Value, catalog: Catalog) -> Displayed:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "plan":
        return catalog.name(str(value))
    if name in ("subscriptionStatus", "providerStatus"):
        return subscription_status_label(str(value))
    return value if isinstance(value, datetime) else str(value)
