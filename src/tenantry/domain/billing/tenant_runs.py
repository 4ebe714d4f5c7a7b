"""Replays and reconciliations of one tenant that the operator starts on a page."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.domain.audit import Author
from tenantry.domain.billing.explanation import FieldComparison

MOST_STARTS: Final = 3
"""How often a run starts: again after the end of the process that did it."""
MOST_LISTED: Final = 50
"""The most fields, events or names that a result lists of each kind."""
_LONGEST_VALUE: Final = 300
"""In characters."""


class RunKind(StrEnum):
    """What a run compares the stored state with."""

    REPLAY = "replay"
    """The tenant's events."""
    RECONCILE = "reconcile"
    """The payment provider."""


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class RunEvent(msgspec.Struct, frozen=True):
    """An event that a run applies: one that never arrived, or one that can be read now.
    ``outcome`` is None in a dry run.
    """

    id: str
    type: str
    outcome: str | None


class RunResult(msgspec.Struct, frozen=True):
    """What a run found, or repaired: at most `MOST_LISTED` of each kind.

    ``folded`` is the number of events that a replay folded, ``parked`` that of the parked ones that
    can take their place. The numbers of fields and events count those that the lists leave out.
    ``others`` are other tenants that lose or get a subscription by it.
    """

    folded: int = 0
    parked: int = 0
    fields: tuple[FieldComparison, ...] = ()
    field_count: int = 0
    events: tuple[RunEvent, ...] = ()
    event_count: int = 0
    linked: tuple[str, ...] = ()
    unknown_prices: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def changes_something(self) -> bool:
        """Whether the tenant differs from what it should be, or did before the repair."""
        return bool(
            self.field_count or self.parked or self.event_count or self.linked or self.others
        )


class TenantRun(msgspec.Struct, frozen=True):
    """The last run of a tenant. With ``repairs`` it is for real, else a dry run.

    ``seen`` counts the events of a replay, and the subscriptions read by a reconciliation.
    ``failure`` is why it ended early. Without a ``result`` it is not known what it did.
    """

    tenant_id: str
    id: str
    kind: RunKind
    repairs: bool
    author: Author
    requested_at: datetime
    started_at: datetime | None
    starts: int
    seen: int
    ended_at: datetime | None
    failure: str | None
    result: RunResult | None

    @property
    def status(self) -> RunStatus:
        if self.ended_at is not None:
            return RunStatus.DONE if self.failure is None else RunStatus.FAILED
        return RunStatus.QUEUED if self.started_at is None else RunStatus.RUNNING

    @property
    def was_interrupted(self) -> bool:
        """Whether it started more than once. What the first attempt repaired is not in the
        result.
        """
        return self.starts > 1

    @property
    def may_repair(self) -> bool:
        """Whether a run for real may follow: only after a dry run that found something."""
        is_found = self.result is not None and self.result.changes_something
        return not self.repairs and self.status is RunStatus.DONE and is_found

    @property
    def may_have_changed(self) -> bool:
        """Whether it has changed the tenant, or may have before it was interrupted."""
        is_changed = self.result is None or self.result.changes_something
        return self.repairs and (is_changed or self.was_interrupted)


class RepairedBilling(msgspec.Struct, frozen=True, rename="camel"):
    """What the audit trail has of a repair: the fields of a tenant that its users know."""

    repaired_from: str | None
    """What the state was compared with: ``events`` or ``provider``; None before the repair."""
    plan: Any | UnsetType = UNSET
    subscription_status: Any | UnsetType = UNSET
    seats: Any | UnsetType = UNSET
    current_period_end: Any | UnsetType = UNSET
    cancel_at_period_end: Any | UnsetType = UNSET
    ends_at: Any | UnsetType = UNSET


_SOURCES: Final = {RunKind.REPLAY: "events", RunKind.RECONCILE: "provider"}
_AUDITED: Final = dict(
    zip(RepairedBilling.__struct_encode_fields__, RepairedBilling.__struct_fields__, strict=True)
)


def audited_repair(
    kind: RunKind, fields: Iterable[FieldComparison]
) -> tuple[RepairedBilling, RepairedBilling]:
    """Return what the audit trail has of a tenant before and after a repair."""
    known = [each for each in fields if each.field in _AUDITED]
    before = {_AUDITED[each.field]: each.stored for each in known}
    after = {_AUDITED[each.field]: each.folded for each in known}
    return RepairedBilling(None, **before), RepairedBilling(_SOURCES[kind], **after)


def listed_fields(fields: Sequence[FieldComparison]) -> tuple[FieldComparison, ...]:
    """Return the first of these fields, with shortened values."""
    return tuple(
        FieldComparison(_cut(each.field), _cut(each.stored), _cut(each.folded))
        for each in fields[:MOST_LISTED]
    )


def _cut(value: Any) -> Any:  # noqa: ANN401  # of any kind
    is_long = isinstance(value, str) and len(value) > _LONGEST_VALUE
    return f"{value[:_LONGEST_VALUE]}…" if is_long else value
