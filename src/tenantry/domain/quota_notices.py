"""Which use of a quota is reported: to the owner of a tenant, and to applications."""

from typing import Final, NamedTuple

import msgspec

from tenantry.common.clock import from_epoch
from tenantry.domain.access import AccessPhase
from tenantry.domain.entitlements import Usage
from tenantry.domain.owner_mails import OwnerNotice, QuotaUsedData

_MARKS: Final = (100, 80)
"""Percent of a quota, the highest first."""


class UseChange(NamedTuple):
    """The use of a feature by a tenant before and after a transaction; ``limit`` is None without
    one. ``phase`` is the tenant's access, from which it follows.
    """

    org_id: str
    feature: str
    before: Usage
    after: Usage
    limit: int | None
    phase: AccessPhase

    @property
    def reaches_limit(self) -> bool:
        """Whether nothing is left after it, and something was before."""
        return self.limit is not None and self.before.used < self.limit <= self.after.used


class QuotaNotice(msgspec.Struct, frozen=True):
    """A notice to the owner of a tenant. Each ``cause`` is mailed once."""

    org_id: str
    cause: str
    data: QuotaUsedData


def notice_of(change: UseChange) -> QuotaNotice | None:
    """Return the notice of a change that reaches a mark; of two marks, that of the higher one."""
    if change.limit is None:
        return None
    percent = _mark_reached(change.before.used, change.after.used, change.limit)
    if percent is None:
        return None
    period = change.after.period
    names = (change.org_id, change.feature, str(period.start), str(percent))
    return QuotaNotice(
        change.org_id,
        " ".join((OwnerNotice.QUOTA_USED.mail_type, *names)),
        QuotaUsedData(
            change.feature,
            percent,
            change.after.used,
            change.limit,
            from_epoch(period.end),
        ),
    )


def _mark_reached(before: int, after: int, limit: int) -> int | None:
    reached = (mark for mark in _MARKS if before * 100 < mark * limit <= after * 100)
    return next(reached, None)
