"""The checks of a single event: whether it can have an effect, and what is unexpected about it."""

from datetime import timedelta
from typing import Final

from tenantry.domain.billing import events as ev
from tenantry.domain.billing.events import Anomaly, BillingEvent, Outcome
from tenantry.domain.billing.ledger import ReceivedEvent
from tenantry.domain.billing.state import BillingPolicy, plan_item

_SUBSCRIPTION_MODE: Final = "subscription"
_MODES: Final = {True: "live", False: "test"}
_OWN_TYPES: Final = frozenset({ev.SNAPSHOT, ev.CUSTOMER_MISSING})
_MOST_AHEAD: Final = timedelta(hours=1).total_seconds()
"""How far ahead of its arrival an event may be dated."""


def exclusion(event: BillingEvent, policy: BillingPolicy) -> tuple[Anomaly, str] | None:
    """Return how and why the settings exclude an event, if they do."""
    if event.account is not None and event.account not in policy.accounts:
        reason = f"Ignored: connected account {event.account} is not in PROVIDER_ACCOUNTS."
        return Anomaly.CONNECTED_ACCOUNT, reason
    if policy.ignores_other_mode and _is_of_other_mode(event, policy):
        modes = _MODES[bool(event.livemode)], _MODES[bool(policy.livemode)]
        return Anomaly.IGNORED_LIVEMODE, "Ignored: {} mode, and PROVIDER_LIVEMODE is {}.".format(
            *modes
        )
    return None


def is_replaceable(event: BillingEvent, policy: BillingPolicy) -> bool:
    """Whether a valid event of the same id replaces an event: it is invalid, or the settings
    exclude it.
    """
    return event.problem is not None or exclusion(event, policy) is not None


def _is_of_other_mode(event: BillingEvent, policy: BillingPolicy) -> bool:
    return (
        policy.livemode is not None
        and event.livemode is not None
        and event.livemode != policy.livemode
    )


def rejection(event: BillingEvent, policy: BillingPolicy) -> tuple[Outcome, str] | None:
    """Return the outcome and reason of an event that can never have a tenant or does not concern
    billing.
    """
    if excluded := exclusion(event, policy):
        return Outcome.IGNORED, excluded[1]
    if event.is_thin:
        return (
            Outcome.IGNORED,
            "Ignored: a thin (v2) event has no object. Have the provider send snapshot events.",
        )
    if event.type not in ev.HANDLED_TYPES and event.type not in _OWN_TYPES and event.grant is None:
        return Outcome.IGNORED, "This type is not handled."
    if event.problem is not None:
        return Outcome.INVALID, event.problem
    missing = _missing_payment(event) if event.reversal else _missing(event)
    return (Outcome.IGNORED, missing) if missing else None


def _missing(event: BillingEvent) -> str | None:
    """Return what an event lacks to ever have a tenant."""
    if event.type in ev.INVOICE_TYPES:
        is_named = event.customer_id or event.subscription_id
        return None if is_named else "The invoice names neither a customer nor a subscription."
    if event.type in ev.CHECKOUT_TYPES:
        return _missing_of_checkout(event)
    if event.type == ev.CUSTOMER_DELETED:
        return None if event.customer_id else "The event names no customer."
    if not event.org_id and not event.customer_id:
        return "The metadata names no orgId, and the subscription no customer."
    return None


def _missing_payment(event: BillingEvent) -> str | None:
    return None if event.payments else "The event names neither a charge nor a payment intent."


def _missing_of_checkout(event: BillingEvent) -> str | None:
    if event.checkout_mode != _SUBSCRIPTION_MODE:
        return "The checkout session is not for a subscription."
    if event.type == ev.CHECKOUT_COMPLETED and event.customer_id is None:
        return "The checkout session names no customer."
    return None if event.org_id else "The metadata names no orgId."


def anomalies(received: ReceivedEvent, policy: BillingPolicy) -> tuple[Anomaly, ...]:
    """Return the anomalies of an event that do not depend on its tenant."""
    event = received.event
    if excluded := exclusion(event, policy):
        return (excluded[0],)
    found = _of_object(event, policy)
    if _is_of_other_mode(event, policy):
        found.append(Anomaly.WRONG_LIVEMODE)
    if event.created > received.received_at.timestamp() + _MOST_AHEAD:
        found.append(Anomaly.FUTURE_DATED)
    return tuple(found)


def _of_object(event: BillingEvent, policy: BillingPolicy) -> list[Anomaly]:
    if event.problem is not None:
        return [Anomaly.UNUSABLE_OBJECT]
    if event.org_id is None and _should_name_tenant(event):
        return [Anomaly.MISSING_ORG_ID]
    if event.type in ev.WHOLE_SUBSCRIPTION_TYPES or event.type == ev.SNAPSHOT:
        return _of_prices(event, policy)
    return []


def _should_name_tenant(event: BillingEvent) -> bool:
    """Whether nothing else than its metadata says which tenant an event belongs to."""
    is_of_subscription = event.type in ev.SUBSCRIPTION_TYPES and event.customer_id is None
    return is_of_subscription or event.checkout_mode == _SUBSCRIPTION_MODE


def _of_prices(event: BillingEvent, policy: BillingPolicy) -> list[Anomaly]:
    item = plan_item(event, policy)
    found = []
    if event.price_id is None and item.seats is None:
        found.append(Anomaly.MISSING_PRICE)
    if item.unknown:
        found.append(Anomaly.UNKNOWN_PRICE)
    if item.is_one_of_several:
        found.append(Anomaly.SEVERAL_PLANS)
    if event.details.is_truncated and not policy.asks_provider:
        found.append(Anomaly.TRUNCATED_ITEMS)
    return found
