"""Shares of a rate limit: how much a process asks for, what it lets through, and what it gives
back.
"""

from tenantry.domain.rate_limits import (
    NEAR_DATABASE,
    SLOTS,
    WINDOW,
    Policy,
    Quota,
    RateShare,
    RateSubject,
    quota_of,
)
from tenantry.domain.shares import NEVER, Share, ShareGrant, ShareRequest, take
from tests.support.cases import cases

NOW = 1_800_000_000


TENANT = RateSubject(Policy.TENANT, "tenant acme")


def share_of(limit: int) -> RateShare:
    return Share(TENANT, limit, NEAR_DATABASE)


def asking(limit: int, wanted: int, counted_in: int, unused: int, missing: int = 0) -> object:
    """The request for a share of the tenant."""
    return ShareRequest(TENANT, limit, wanted, counted_in, unused, missing)


def reserve(
    share: RateShare, second: int, demand: int, number: int, total: int, frees_at: int = NOW
) -> None:
    """Ask for a share, and be granted so many."""
    request = share.request(second, demand) or ShareRequest(TENANT, share.limit, 0, NEVER, 0)
    grant = ShareGrant(number, total, second, second, frees_at + SLOTS)
    share.receive(request, second, grant)


def wanted_by(share: RateShare, second: int, demand: int = 1) -> int:
    """What is asked for, granted, and then used up."""
    request = share.request(second, demand)
    assert request is not None
    number = request.wanted
    share.receive(request, second, ShareGrant(number, number, second, second, second + SLOTS))
    share.left = 0
    return number


def test_first_request_is_for_one() -> None:
    assert share_of(6000).request(NOW, 1) == asking(6000, 1, NEVER, 0, 1)


@cases(
    ("limit", "wanted"),
    [(1, [1, 1]), (199, [1, 1]), (200, [1, 2, 2]), (600, [1, 2, 4, 6, 6]), (10_000, [1, 2, 4, 8])],
)
def test_share_doubles_while_it_is_used_up_to_a_hundredth_of_the_limit(
    limit: int, wanted: list[int]
) -> None:
    share = share_of(limit)
    assert [wanted_by(share, NOW) for _ in wanted] == wanted


def test_waiting_requests_are_combined() -> None:
    assert wanted_by(share_of(600), NOW, demand=64) == 64


@cases(("left", "wanted"), [(0, 18), (3, 15), (14, 1)])
def test_share_is_a_quarter_larger_than_the_former_use(left: int, wanted: int) -> None:
    share = share_of(10_000)
    assert [wanted_by(share, NOW) for _ in range(4)] == [1, 2, 4, 8]
    share.left = left
    assert wanted_by(share, NOW + 1) == wanted


def test_share_restarts_with_one_after_an_idle_second() -> None:
    share = share_of(10_000)
    assert [wanted_by(share, NOW) for _ in range(4)] == [1, 2, 4, 8]
    assert wanted_by(share, NOW + 2) == 1


def test_used_share_is_prefetched_in_the_next_second() -> None:
    share = share_of(10_000)
    wanted_by(share, NOW, demand=8)
    assert [share.should_renew(second) for second in (NOW, NOW + 1, NOW + 2)] == [
        False,
        True,
        False,
    ]
    assert share.request(NOW + 1, 0) == asking(10_000, 10, NOW, 0)


def test_unused_share_is_not_prefetched() -> None:
    share = share_of(10_000)
    reserve(share, NOW, 0, 8, 8)
    assert not share.should_renew(NOW + 1)


def test_share_of_a_small_limit_is_not_prefetched() -> None:
    share = share_of(199)
    wanted_by(share, NOW)
    assert not share.should_renew(NOW + 1)
    assert share.request(NOW + 1, 0) is None


def test_share_is_valid_in_its_second_only() -> None:
    share = share_of(600)
    reserve(share, NOW, 1, 2, 2)
    assert [take([share], second) for second in (NOW - 1, NOW, NOW + 1)] == [
        False,
        True,
        False,
    ]


def test_unused_requests_return_with_the_next_request() -> None:
    share = share_of(600)
    reserve(share, NOW, 5, 5, 5)
    share.left -= 2
    assert share.request(NOW + 1, 1) == asking(600, 2, NOW, 3, 1)
    assert share.unused == 0


def test_sufficient_share_needs_no_request() -> None:
    share = share_of(600)
    reserve(share, NOW, 2, 2, 2)
    assert share.request(NOW, 2) is None


def test_only_missing_requests_are_requested() -> None:
    share = share_of(100)
    reserve(share, NOW, 2, 2, 2)
    assert share.request(NOW, 5) == asking(100, 3, NOW, 0, 3)


def test_share_is_exhausted_in_the_second_of_an_empty_grant() -> None:
    share = share_of(600)
    reserve(share, NOW, 3, 0, 600, NOW - 10)
    assert share.is_exhausted(NOW)
    assert not share.is_exhausted(NOW + 1)


def test_share_with_the_last_request_is_not_exhausted() -> None:
    share = share_of(600)
    reserve(share, NOW, 1, 1, 600, NOW - 10)
    assert not share.is_exhausted(NOW)
    share.left -= 1
    assert share.is_exhausted(NOW)


def test_limit_of_zero_is_always_exhausted() -> None:
    assert share_of(0).is_exhausted(NOW)
    assert quota_of(share_of(0), NOW) == Quota(Policy.TENANT, 0, 0, WINDOW)


def test_quota_adds_the_share_and_the_free_part() -> None:
    share = share_of(600)
    reserve(share, NOW, 3, 3, 100, NOW - 20)
    assert quota_of(share, NOW) == Quota(Policy.TENANT, 600, 503, 41)


def test_reset_is_the_end_of_the_oldest_second_in_the_window() -> None:
    share = share_of(600)
    reserve(share, NOW, 1, 0, 600)
    assert quota_of(share, NOW).reset == SLOTS
    reserve(share, NOW, 1, 0, 600, NOW - WINDOW)
    assert quota_of(share, NOW).reset == 1


def test_raised_limit_ends_exhaustion_at_once() -> None:
    share = share_of(5)
    reserve(share, NOW, 1, 0, 5)
    share.set_limit(6)
    assert not share.is_exhausted(NOW)


def test_lowered_limit_invalidates_the_share() -> None:
    share = share_of(600)
    reserve(share, NOW, 6, 6, 6)
    share.set_limit(300)
    assert not take([share], NOW)
    assert share.request(NOW, 1) == asking(300, 2, NOW, 0, 1)
    reserve(share, NOW, 1, 2, 8)
    assert share.request(NOW + 1, 1) == asking(300, 1, NOW, 8, 1)


def test_refund_within_its_second_is_valid() -> None:
    share = share_of(600)
    reserve(share, NOW, 1, 1, 1)
    share.left -= 1
    share.refund(NOW)
    assert take([share], NOW)


def test_refund_after_a_later_grant_stays_counted() -> None:
    share = share_of(600)
    reserve(share, NOW + 1, 1, 1, 1)
    share.refund(NOW)
    assert share.left == 1


def test_share_seems_exhausted_until_the_window_moves() -> None:
    share = share_of(2)
    wanted_by(share, NOW, demand=2)
    assert [share.seems_exhausted(NOW + seconds) for seconds in (0, 60, 61)] == [True, True, False]


def test_new_share_does_not_seem_exhausted() -> None:
    assert not share_of(2).seems_exhausted(NOW)


def test_released_share_does_not_seem_exhausted() -> None:
    share = share_of(2)
    reserve(share, NOW, 2, 2, 2)
    share.left -= 1
    assert not share.seems_exhausted(NOW)
    share.release()
    assert not share.seems_exhausted(NOW + 1)
    assert quota_of(share, NOW + 1).remaining == 1


def test_raised_limit_does_not_seem_exhausted() -> None:
    share = share_of(2)
    wanted_by(share, NOW, demand=2)
    share.set_limit(3)
    assert not share.seems_exhausted(NOW)


def test_release_leaves_nothing() -> None:
    share = share_of(600)
    reserve(share, NOW, 2, 2, 2)
    assert share.release() == asking(600, 0, NOW, 2)
    assert not take([share], NOW)
