"""The shares of a tenant's quota that one process reserves."""

from tenantry.domain.entitlements import Usage, UsagePeriod
from tenantry.domain.request_quotas import IDLE_SECONDS, QuotaShare
from tests.support.cases import cases

PERIOD = UsagePeriod(0, 1000)
NEXT = UsagePeriod(1000, 2000)


def reserve(
    share: QuotaShare, used: int, second: int, waiting: int = 1, period: UsagePeriod = PERIOD
) -> int:
    """Reserve as a process does, for so many that wait; return how many were reserved."""
    number = share.wanted(Usage(used, period), waiting, second)
    share.receive(period, number, waiting, second)
    return number


def test_share_is_at_most_a_hundredth_of_what_is_left() -> None:
    share = QuotaShare(10_000)
    sizes = []
    for _ in range(6):
        share.release()
        sizes.append(reserve(share, 2000, 1))
    assert sizes == [1, 8, 64, 80, 80, 80]


def test_last_requests_are_reserved_one_by_one() -> None:
    share = QuotaShare(1000)
    assert [reserve(share, used, 1) for used in (850, 950, 999)] == [1, 1, 1]


def test_requests_that_wait_are_reserved_beyond_a_hundredth() -> None:
    assert reserve(QuotaShare(1000), 500, 1, waiting=20) == 20
    assert reserve(QuotaShare(1000), 990, 1, waiting=20) == 10


def test_share_grows_until_it_lasts_for_half_a_minute() -> None:
    share = QuotaShare(None)
    sizes = [reserve(share, 0, second) for second in (1, 1, 30, 60, 100)]
    assert sizes == [1, 8, 64, 64, 64]


def test_share_is_used_until_it_is_empty() -> None:
    share = QuotaShare(1000)
    reserve(share, 0, 1, waiting=2)
    assert [share.take(1) for _ in range(3)] == [True, True, False]


def test_share_ends_with_its_period() -> None:
    share = QuotaShare(1000)
    reserve(share, 0, 999)
    assert not share.take(1000)
    assert share.release() == 1
    reserve(share, 0, 1000, period=NEXT)
    assert share.take(1000)


def test_share_of_another_limit_is_not_used() -> None:
    share = QuotaShare(1000)
    reserve(share, 0, 1)
    share.set_limit(10)
    assert not share.take(1)


def test_quota_is_exhausted_until_the_next_second_or_another_limit() -> None:
    share = QuotaShare(10)
    assert reserve(share, 10, 1) == 0
    assert share.is_exhausted(1)
    assert not share.is_exhausted(2)
    share.set_limit(20)
    assert not share.is_exhausted(1)


def test_lowered_quota_reserves_nothing() -> None:
    assert reserve(QuotaShare(10), 25, 1) == 0


@cases(
    ("second", "is_idle"),
    [(7, False), (7 + IDLE_SECONDS - 1, False), (7 + IDLE_SECONDS, True), (6, True)],
)
def test_share_is_idle_some_seconds_after_its_last_request(second: int, is_idle: bool) -> None:
    share = QuotaShare(10)
    share.take(7)
    assert share.is_idle(second) is is_idle
