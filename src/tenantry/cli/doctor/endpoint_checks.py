"""Checks of the webhook endpoints at the payment provider: their addresses, and the event types
that they send.
"""

from collections.abc import Collection, Sequence
from typing import Final

from tenantry.cli.doctor import Finding, Level, ok, problem
from tenantry.domain.billing import events as ev
from tenantry.integrations.stripe.client import ProviderEndpoint

_SUBJECT: Final = "payment provider"
_EVERY_TYPE: Final = "*"
BENEFITS: Final = {
    ev.SUBSCRIPTION_CREATED: "a subscription that begins active or as a trial gives its plan at once "
    "(trial without a card, 100 % coupon, created by API)",
    ev.SUBSCRIPTION_PAUSED: "a trial that ends without a card ends the access even if its `updated` event is lost",
    ev.SUBSCRIPTION_RESUMED: "a paused subscription gives access again even if its `updated` event is lost",
    ev.TRIAL_WILL_END: "the owner can be mailed before a trial ends (OWNER_NOTICES=trial_ending)",
    ev.INVOICE_PAID: "an invoice that is marked as paid by hand clears the past-due status at once",
    ev.INVOICE_VOIDED: "voiding the unpaid invoice clears the past-due status that it caused",
    ev.INVOICE_UNCOLLECTIBLE: "writing off the unpaid invoice clears the past-due status that it caused",
    ev.ASYNC_PAYMENT_SUCCEEDED: "tenantry asks the provider for the state as soon as a bank debit is paid",
    ev.ASYNC_PAYMENT_FAILED: "tenantry asks the provider for the state as soon as a bank debit fails",
}
"""What each further type is good for, beside those that are required."""


def judge_endpoints(
    endpoints: Collection[ProviderEndpoint] | None, webhook_url: str
) -> list[Finding]:
    """Judge whether an endpoint for our address exists, is enabled, and sends the required types.

    ``endpoints`` is None if the API key may not read them. Further types that they do not send are
    reported as information.
    """
    required = _listed(ev.REQUIRED_TYPES)
    if endpoints is None:
        return [problem("payment provider.endpoints_unreadable", types=required)]
    ours = endpoints_at(endpoints, webhook_url)
    if not ours:
        return [problem("payment provider.no_endpoint", url=webhook_url, types=required)]
    return [*map(_judge_endpoint, ours), *_further_types(ours)]


def _judge_endpoint(endpoint: ProviderEndpoint) -> Finding:
    enabled = set(endpoint.enabled_events)
    missing = set() if _EVERY_TYPE in enabled else ev.REQUIRED_TYPES - enabled
    faults = [] if endpoint.status == "enabled" else [f"is {endpoint.status}"]
    faults += [f"lacks {_listed(missing)}"] if missing else []
    if faults:
        types = _listed(ev.REQUIRED_TYPES)
        return problem(
            "payment provider.wrong_endpoint",
            url=endpoint.url,
            faults=" and ".join(faults),
            types=types,
        )
    if _EVERY_TYPE in enabled:
        return ok(
            _SUBJECT,
            f"sends every event type to {endpoint.url}; tenantry ignores those that it does not know",
        )
    unknown = enabled - ev.KNOWN_TYPES
    ignored = f"; tenantry ignores {_listed(unknown)}" if unknown else ""
    return ok(
        _SUBJECT,
        f"sends the {len(ev.REQUIRED_TYPES)} required event types to {endpoint.url}{ignored}",
    )


def _further_types(endpoints: Sequence[ProviderEndpoint]) -> list[Finding]:
    sent = known_types_of(endpoints)
    return [
        Finding(Level.INFO, _SUBJECT, f"can also send {event_type}: {benefit}")
        for event_type, benefit in BENEFITS.items()
        if event_type not in sent
    ]


def endpoints_at(
    endpoints: Collection[ProviderEndpoint], webhook_url: str
) -> list[ProviderEndpoint]:
    """Return the endpoints with this address."""
    return [
        endpoint for endpoint in endpoints if endpoint.url.rstrip("/") == webhook_url.rstrip("/")
    ]


def known_types_of(endpoints: Collection[ProviderEndpoint]) -> frozenset[str]:
    """Return the types that tenantry knows and that one of these endpoints sends."""
    enabled = {event_type for endpoint in endpoints for event_type in endpoint.enabled_events}
    return ev.KNOWN_TYPES if _EVERY_TYPE in enabled else ev.KNOWN_TYPES & enabled


def _listed(types: Collection[str]) -> str:
    return ", ".join(sorted(types))
