"""At which use of a quota the owner is told."""

from tenantry.domain.access import NOTHING
from tenantry.domain.entitlements import Usage, UsagePeriod
from tenantry.domain.owner_mails import QuotaUsedData
from tenantry.domain.permissions import Mode
from tenantry.domain.plans import parse_catalog
from tenantry.domain.quota_notices import MeteredUse, UseChange, notice_of
from tests.support.cases import cases

CATALOG = parse_catalog(
    """
[[features]]
id = "exports"
type = "metered"
name = "Nightly exports"
[[plans]]
id = "free"
"""
)
PERIOD = UsagePeriod(1_793_491_200, 1_796_083_200)


def percent_of(before: int, after: int, limit: int | None) -> int | None:
    use = MeteredUse("acme", Mode.LIVE, "exports")
    change = UseChange(use, Usage(before, PERIOD), Usage(after, PERIOD), limit, NOTHING)
    notice = notice_of(change, CATALOG)
    if notice is None:
        return None
    assert isinstance(notice.data, QuotaUsedData)
    assert notice.data.feature == "Nightly exports"
    return notice.data.percent


@cases(
    ("before", "after", "limit", "percent"),
    [
        (0, 7, 10, None),
        (0, 8, 10, 80),
        (7, 9, 10, 80),
        (8, 9, 10, None),
        (9, 10, 10, 100),
        (0, 10, 10, 100),
        (10, 10, 10, None),
        (0, 1, 1, 100),
        (0, 1, 2, None),
        (1, 2, 2, 100),
        (0, 2, 3, None),
        (2, 3, 3, 100),
        (79, 80, 100, 80),
        (0, 2**53 - 1, 2**53 - 1, 100),
        (0, 10**9, None, None),
        (30, 31, 10, None),
    ],
)
def test_mark_is_reached_by_the_use_that_crosses_it(
    before: int, after: int, limit: int | None, percent: int | None
) -> None:
    assert percent_of(before, after, limit) == percent


def test_each_mark_of_a_period_has_a_cause_of_its_own() -> None:
    other = UsagePeriod(PERIOD.end, PERIOD.end + 1)
    causes = set()
    for period in (PERIOD, other):
        for before, after in ((7, 8), (9, 10)):
            for feature in ("exports", "imports"):
                use = MeteredUse("acme", Mode.LIVE, feature)
                change = UseChange(use, Usage(before, period), Usage(after, period), 10, NOTHING)
                notice = notice_of(change, CATALOG)
                assert notice is not None
                causes.add(notice.cause)
    assert len(causes) == 8
