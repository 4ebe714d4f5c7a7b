"""How pages write values: scopes, browsers, plans, subscriptions and events."""

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tenantry.billing.ledger_queries import BillingEventView, BillingFields
from tenantry.billing.replay import FieldComparison, Value
from tenantry.domain.access import AccessLevel, Principal, Role, covers, is_scope, role_grants
from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import Anomaly, Outcome
from tenantry.domain.billing.state import ENDED, NO_SUBSCRIPTION
from tenantry.domain.plans import Catalog
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


def refusal_of(role: Role, token_scopes: tuple[str, ...], scope: str, owner_only: str | None) -> str:
    """Why a user may not do what takes ``scope``, and who may. Their token's own scopes can be why, too.

    ``owner_only`` says what it is, where it is for owners alone.
    """
    wanted = owner_only or _MAY.get(scope, f"do what takes the scope {scope}")
    scopes, level = role_grants(role, ())
    narrowing = [one for one in token_scopes if is_scope(one)]
    if narrowing and covers(scopes, scope) and (owner_only is None or level is AccessLevel.OWNER):
        said = ", ".join(narrowing)
        return f"Your identity provider signed you in for {said} only. That does not let you {wanted}."
    who = "Only an owner" if owner_only else "An owner or admin"
    return f"Your role, {role}, does not let you {wanted}. {who} can."


# In this order: most browsers also name those that they descend from.
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


def browser_in_words(agent: str | None) -> str:
    """What a ``User-Agent`` probably is, such as "Firefox on Linux"."""
    browser, system = _first(_BROWSERS, agent or ""), _first(_SYSTEMS, agent or "")
    if browser is None:
        return f"A browser on {system}" if system else "An unknown browser"
    return f"{browser} on {system}" if system else browser


def _first(patterns: tuple[tuple[str, str], ...], agent: str) -> str | None:
    return next((name for pattern, name in patterns if re.search(pattern, agent)), None)


TYPES: Final = {
    ev.SUBSCRIPTION_UPDATED: "Subscription updated",
    ev.SUBSCRIPTION_DELETED: "Subscription ended",
    ev.PAYMENT_FAILED: "Payment failed",
    ev.PAYMENT_SUCCEEDED: "Payment received",
    ev.CHECKOUT_COMPLETED: "Checkout completed",
    ev.SNAPSHOT: "The provider was asked",
}


class Words(NamedTuple):
    """A word or two, what they mean, and the colour that says the same."""

    short: str
    long: str
    colour: str = ""


OUTCOMES: Final = {
    Outcome.APPLIED: Words("Applied", "It changed the plan or the subscription.", "green"),
    Outcome.NO_CHANGE: Words("No change", "It counts, but everything was as it says already."),
    Outcome.LATE: Words(
        "Late", "It came after newer events, took its place before them, and changed nothing.", "amber"
    ),
    Outcome.IGNORED: Words("Ignored", "It says nothing about the plan or the subscription."),
    Outcome.PARKED: Words("Waiting", "It waits until the organization or customer that it names is known.", "amber"),
    Outcome.INVALID: Words("Unusable", "It lacks what an event of its type has to say, so it changed nothing.", "red"),
}
_LINKED: Final = "It linked a customer to the organization. The plan and the subscription stayed as they were."
_UNSEEN_CHANGE: Final = "It changed what later events are judged by. The plan and the subscription stayed as they were."
ANOMALIES: Final = {
    Anomaly.UNUSABLE_OBJECT: Words("Unusable", "The event lacks what its type needs. Compare the payload below."),
    Anomaly.MISSING_ORG_ID: Words("Names no organization", "The subscription's metadata at the provider has no orgId."),
    Anomaly.MISSING_PRICE: Words("No price", "The subscription has no item with a price, so the plan is the free one."),
    Anomaly.UNKNOWN_PRICE: Words(
        "Unknown price", "The price is not in the plan catalog, so the plan is the free one until it is added there."
    ),
    Anomaly.WRONG_LIVEMODE: Words("Wrong mode", "A test event came where live ones are expected, or the reverse."),
    Anomaly.IGNORED_LIVEMODE: Words("Other mode", "Events of this mode are ignored here (PROVIDER_LIVEMODE)."),
    Anomaly.CONNECTED_ACCOUNT: Words(
        "Connected account", "Events of this connected account are ignored until PROVIDER_ACCOUNTS lists it."
    ),
    Anomaly.FUTURE_DATED: Words(
        "Dated ahead", "Its date is over an hour after it came in, so it counts as newer than what comes until then."
    ),
    Anomaly.CUSTOMER_TAKEN: Words("Customer taken", "The customer belongs to another organization, and stays there."),
    Anomaly.AMBIGUOUS_ORDER: Words(
        "Ambiguous order",
        "Nothing proves which of several events of one second came last. The order of arrival counts; where its API "
        "key is set, the provider is asked.",
    ),
    Anomaly.DRIFT: Words("Drift", "The provider says otherwise than its events did. Its word counts now."),
}
_ANOMALIES_BY_NAME: Final = {anomaly.value: words for anomaly, words in ANOMALIES.items()}
_FIELDS: Final = {
    "plan": "Plan",
    "subscription_status": "Subscription",
    "current_period_end": "Period ends",
    "cancel_at_period_end": "Ends with the period",
}
_FOLDED_FIELDS: Final = {
    "plan": "Plan",
    "subscriptionStatus": "Subscription",
    "currentPeriodEnd": "Period ends",
    "cancelAtPeriodEnd": "Ends with the period",
    "providerStatus": "Status that the provider last gave",
    "subscriptionId": "Subscription id",
    "subscriptionCreated": "Subscription created",
    "otherSubscriptions": "Other subscriptions",
    "tipCreated": "Newest event",
}
_CHECKPOINT: Final = "tipState."

Shown = str | datetime
"""What a template shows: a moment by its filter, and words as they are."""


class Change(NamedTuple):
    """A field of the tenant before and after."""

    label: str
    before: Shown
    after: Shown

    @property
    def by_the_second(self) -> bool:
        """Whether the two are moments of one minute, which only their seconds tell apart."""
        one, other = self.before, self.after
        return isinstance(one, datetime) and isinstance(other, datetime) and _minute(one) == _minute(other)


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


class LedgerWords:
    """What templates say of the ledger's entries."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def of_type(self, event_type: str) -> str:
        """What an event of this type tells of; the type itself where we do not know it."""
        return TYPES.get(event_type, event_type)

    def of_outcome(self, outcome: Outcome) -> Words:
        """What became of an event."""
        return OUTCOMES[outcome]

    def of_effect(self, event: BillingEventView) -> str:
        """What the outcome of this event means; one that is applied need not change what is shown of a tenant."""
        if event.outcome is not Outcome.APPLIED or changes(event, self._catalog):
            return OUTCOMES[event.outcome].long
        return _LINKED if event.type == ev.CHECKOUT_COMPLETED else _UNSEEN_CHANGE

    def of_no_changes(self, event: BillingEventView) -> str:
        """What an event changed that changed neither the plan nor the subscription as they are shown."""
        if event.outcome is not Outcome.APPLIED:
            return "Neither the plan nor the subscription."
        if event.type == ev.CHECKOUT_COMPLETED:
            return "The organization's customers at the payment provider."
        return "Which subscription counts, or the status that the provider last gave it."

    def of_anomalies(self, names: Sequence[str]) -> list[Words]:
        """What is unexpected about an event."""
        return [_ANOMALIES_BY_NAME.get(name, Words(name, "")) for name in names]

    def of_changes(self, event: BillingEventView) -> list[Change]:
        """What an event changed."""
        return changes(event, self._catalog)


def changes(event: BillingEventView, catalog: Catalog) -> list[Change]:
    """What an event changed, and nothing else."""
    before, after = event.before, event.after
    if before is None or after is None:
        return []
    return [
        Change(label, _field(before, name, catalog), _field(after, name, catalog))
        for name, label in _FIELDS.items()
        if getattr(before, name) != getattr(after, name)
    ]


def _field(state: BillingFields, name: str, catalog: Catalog) -> Shown:
    match name:
        case "plan":
            return catalog.name(state.plan)
        case "subscription_status":
            return subscription_status(state.subscription_status)
        case "current_period_end":
            return state.current_period_end or "no date"
    return "yes" if state.cancel_at_period_end else "no"


def difference(field: FieldComparison, catalog: Catalog) -> Change:
    """A field as it is stored, and as the events have it."""
    name = field.field.removeprefix(_CHECKPOINT)
    label = _FOLDED_FIELDS.get(name, name)
    if field.is_of_checkpoint:
        label = f"{label}, before the newest second"
    return Change(label, _folded(name, field.stored, catalog), _folded(name, field.folded, catalog))


def _folded(name: str, value: Value, catalog: Catalog) -> Shown:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "plan":
        return catalog.name(str(value))
    if name in ("subscriptionStatus", "providerStatus"):
        return subscription_status(str(value))
    return value if isinstance(value, datetime) else str(value)
