"""Usual alternatives: rules without a ledger, behind the same `apply`."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tenantry.domain.billing.events import FOLDED_TYPES, BillingEvent
from tenantry.domain.billing.state import BillingPolicy, BillingState, apply


class Kept(NamedTuple):
    """All that such an endpoint keeps of a tenant: the state, and when the newest applied event was
    created.
    """

    state: BillingState = BillingState()
    newest: int = -1


Rule = Callable[[Kept, BillingEvent, BillingPolicy], Kept]


def last_arrival_wins(kept: Kept, event: BillingEvent, policy: BillingPolicy) -> Kept:
    """Every arrival is applied, a second one of the same event too."""
    if event.type not in FOLDED_TYPES:
        return kept
    return Kept(apply(kept.state, event, policy).state, max(kept.newest, event.created))


def created_watermark(kept: Kept, event: BillingEvent, policy: BillingPolicy) -> Kept:
    """An event not newer than the newest applied is dropped."""
    return kept if event.created <= kept.newest else last_arrival_wins(kept, event, policy)


BASELINES: Final[Mapping[str, Rule]] = {
    "last arrival wins": last_arrival_wins,
    "created watermark": created_watermark,
}
