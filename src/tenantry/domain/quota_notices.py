"""Which use of a quota is reported: to the owner of a tenant, and to applications."""

from typing import Final, NamedTuple

from tenantry.common.clock import from_epoch
from tenantry.domain.access import AccessPhase
from tenantry.domain.entitlements import Usage
from tenantry.domain.owner_mails import NewMail, OwnerNotice, QuotaUsedData
from tenantry.domain.permissions import Mode
from tenantry.domain.plans import Catalog

_MARKS: Final = (100, 80)
"""Percent of a quota, the highest first."""


class MeteredUse(NamedTuple):
    """The use of a feature by a tenant in a mode: what is locked, whatever the period."""

    org_id: str
    mode: Mode
    feature: str


class UseChange(NamedTuple):
    """A use of a feature before and after a transaction; ``limit`` is None without one. ``phase``
    is the tenant's access, from which it follows.
    """

    use: MeteredUse
    before: Usage
    after: Usage
    limit: int | None
    phase: AccessPhase

    @property
    def reaches_limit(self) -> bool:
        """Whether nothing is left after it, and something was before."""
        return self.limit is not None and self.before.used < self.limit <= self.after.used


def notice_of(change: UseChange, catalog: Catalog) -> NewMail | None:
    """Return the mail of a change that reaches a mark; of two marks, that of the higher one. A mark
    is mailed once in a period.
    """
    if change.limit is None:
        return None
    percent = _mark_reached(change.before.used, change.after.used, change.limit)
    if percent is None:
        return None
    period = change.after.period
    org_id, _, feature = change.use
    names = (org_id, feature, str(period.start), str(percent))
    data = QuotaUsedData(
        catalog.feature_name(feature),
        percent,
        change.after.used,
        change.limit,
        from_epoch(period.end),
    )
    mail_type = OwnerNotice.QUOTA_USED.mail_type
    return NewMail(mail_type, org_id, data, cause=" ".join((mail_type, *names)))


def _mark_reached(before: int, after: int, limit: int) -> int | None:
    reached = (mark for mark in _MARKS if before * 100 < mark * limit <= after * 100)
    return next(reached, None)
