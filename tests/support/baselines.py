"""Usual alternatives: rules without a ledger, behind the same `apply`."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tenantry.domain.billing.events import FOLDED_TYPES, BillingEvent
from tenantry.domain.billing.state import BillingPolicy, BillingState, apply


class BaselineRecord(NamedTuple):
    """All that such an endpoint keeps of a tenant: the state, and when the newest applied event was
    created.
    """

    state: BillingState = BillingState()
    newest: int = -1


Rule = Callable[[BaselineRecord, BillingEvent, BillingPolicy], BaselineRecord]


def last_arrival_wins(
    record: BaselineRecord, event: BillingEvent, policy: BillingPolicy
) -> BaselineRecord:
    """Every arrival is applied, a second one of the same event too."""
    if event.type not in FOLDED_TYPES:
        return record
    return BaselineRecord(
        apply(record.state, event, policy).state, max(record.newest, event.created)
    )


def created_watermark(
    record: BaselineRecord, event: BillingEvent, policy: BillingPolicy
) -> BaselineRecord:
    """An event not newer than the newest applied is dropped."""
    return record if event.created <= record.newest else last_arrival_wins(record, event, policy)


BASELINES: Final[Mapping[str, Rule]] = {
    "last arrival wins": last_arrival_wins,
    "created watermark": created_watermark,
}
