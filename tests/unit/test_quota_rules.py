"""How long a quota lasts, and when it is nearly used up."""

from datetime import UTC, datetime, timedelta
from typing import Final

from tenantry.domain.entitlements import Usage, UsagePeriod
from tenantry.domain.features import Feature
from tenantry.domain.quotas import Quota
from tests.support.cases import cases

BEGIN: Final = datetime(2026, 11, 1, tzinfo=UTC)
END: Final = datetime(2026, 12, 1, tzinfo=UTC)
EXPORTS: Final = Feature("exports", "metered")


def quota(used: int, limit: int | None = 1000) -> Quota:
    period = UsagePeriod(int(BEGIN.timestamp()), int(END.timestamp()))
    return Quota(EXPORTS, limit, Usage(used, period))


@cases(
    ("used", "limit", "nearly", "up"),
    [
        (799, 1000, False, False),
        (800, 1000, True, False),
        (1000, 1000, True, True),
        (1100, 1000, True, True),
        (10**9, None, False, False),
    ],
)
def test_a_quota_is_nearly_used_up_from_80_percent_on(
    used: int, limit: int | None, nearly: bool, up: bool
) -> None:
    assert (quota(used, limit).is_nearly_used_up, quota(used, limit).is_used_up) == (nearly, up)


def test_at_the_rate_of_the_period_the_rest_lasts_so_long() -> None:
    assert quota(500).runs_out_at(BEGIN + timedelta(days=10)) == BEGIN + timedelta(days=20)


@cases(
    ("used", "limit", "passed"),
    [
        (300, 1000, timedelta(days=10)),  # lasts until after the period
        (0, 1000, timedelta(days=10)),
        (1000, 1000, timedelta(days=10)),
        (10**9, None, timedelta(days=10)),
        (999, 1000, timedelta(minutes=59)),
    ],
)
def test_there_is_no_such_time(used: int, limit: int | None, passed: timedelta) -> None:
    assert quota(used, limit).runs_out_at(BEGIN + passed) is None


def test_an_hour_is_enough_to_know_the_rate() -> None:
    assert quota(500).runs_out_at(BEGIN + timedelta(hours=1)) == BEGIN + timedelta(hours=2)
