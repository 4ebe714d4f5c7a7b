"""Which events keep the bytes that the provider sent."""

from enum import StrEnum

from tenantry.domain.billing.events import BillingEvent


class RawBodies(StrEnum):
    """Whose raw bodies the ledger stores beside the facts (RAW_BODIES)."""

    OFF = "off"
    FAILED = "failed"
    """Those of malformed events: all that decoding again needs, since other entries hold all
    facts.
    """
    ALL = "all"

    def stores_body_of(self, event: BillingEvent) -> bool:
        if self is RawBodies.FAILED:
            return event.problem is not None
        return self is RawBodies.ALL
