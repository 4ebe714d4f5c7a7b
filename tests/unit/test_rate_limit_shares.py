"""Shares of a rate limit: how much a process asks for, what it lets through, and what it gives back."""

import pytest

from tenantry.domain.rate_limits import SLOTS, WINDOW, Policy, Quota, Share, ShareGrant, ShareRequest

NOW = 1_800_000_000


def share_of(limit: int) -> Share:
    return Share(Policy.TENANT, "tenant acme", limit)


def wanted_by(share: Share, second: int, demand: int = 1) -> int:
    """What is asked for, granted, and then used up."""
    taking = share.ask(second, demand)
    assert taking is not None
    share.receive(second, ShareGrant(taking.wanted, taking.wanted, second))
    share.left = 0
    return taking.wanted


def test_first_taking_is_of_one() -> None:
    assert share_of(6000).ask(NOW, 1) == ShareRequest("tenant acme", 6000, 1, -SLOTS, 0, 1)


@pytest.mark.parametrize(
    ("limit", "wanted"), [(1, [1, 1]), (199, [1, 1]), (200, [1, 2, 2]), (600, [1, 2, 4, 6, 6]), (10_000, [1, 2, 4, 8])]
)
def test_share_doubles_while_it_is_used_up_to_a_hundredth_of_the_limit(limit: int, wanted: list[int]) -> None:
    share = share_of(limit)
    assert [wanted_by(share, NOW) for _ in wanted] == wanted


def test_requests_that_wait_are_asked_for_all_together() -> None:
    assert wanted_by(share_of(600), NOW, demand=64) == 64


@pytest.mark.parametrize(("left", "wanted"), [(0, 18), (3, 15), (14, 1)])
def test_share_is_a_quarter_more_than_what_the_second_before_let_through(left: int, wanted: int) -> None:
    share = share_of(10_000)
    assert [wanted_by(share, NOW) for _ in range(4)] == [1, 2, 4, 8]
    share.left = left
    assert wanted_by(share, NOW + 1) == wanted


def test_share_begins_with_one_again_after_an_idle_second() -> None:
    share = share_of(10_000)
    assert [wanted_by(share, NOW) for _ in range(4)] == [1, 2, 4, 8]
    assert wanted_by(share, NOW + 2) == 1


def test_share_that_was_used_is_foreseen_in_the_next_second() -> None:
    share = share_of(10_000)
    wanted_by(share, NOW, demand=8)
    assert [share.should_prefetch(second) for second in (NOW, NOW + 1, NOW + 2)] == [False, True, False]
    assert share.ask(NOW + 1, 0) == ShareRequest("tenant acme", 10_000, 10, NOW, 0)


def test_share_that_nobody_used_is_not_foreseen() -> None:
    share = share_of(10_000)
    share.ask(NOW, 0)
    share.receive(NOW, ShareGrant(8, 8, NOW))
    assert not share.should_prefetch(NOW + 1)


def test_share_that_others_cannot_spare_is_not_foreseen() -> None:
    share = share_of(199)
    wanted_by(share, NOW)
    assert not share.should_prefetch(NOW + 1)
    assert share.ask(NOW + 1, 0) is None


def test_share_is_good_in_its_second_only() -> None:
    share = share_of(600)
    share.ask(NOW, 1)
    share.receive(NOW, ShareGrant(2, 2, NOW))
    assert [share.is_available(second) for second in (NOW - 1, NOW, NOW + 1)] == [False, True, False]


def test_what_was_not_used_goes_back_with_the_next_taking() -> None:
    share = share_of(600)
    share.ask(NOW, 5)
    share.receive(NOW, ShareGrant(5, 5, NOW))
    share.left -= 2
    assert share.ask(NOW + 1, 1) == ShareRequest("tenant acme", 600, 2, NOW, 3, 1)
    assert share.unused == 0


def test_share_at_hand_makes_no_taking() -> None:
    share = share_of(600)
    share.ask(NOW, 2)
    share.receive(NOW, ShareGrant(2, 2, NOW))
    assert share.ask(NOW, 2) is None


def test_only_what_is_missing_is_asked_for() -> None:
    share = share_of(100)
    share.ask(NOW, 2)
    share.receive(NOW, ShareGrant(2, 2, NOW))
    assert share.ask(NOW, 5) == ShareRequest("tenant acme", 100, 3, NOW, 0, 3)


def test_share_is_shut_for_the_second_in_which_nothing_was_left() -> None:
    share = share_of(600)
    share.ask(NOW, 3)
    share.receive(NOW, ShareGrant(0, 600, NOW - 10))
    assert share.is_exhausted(NOW)
    assert not share.is_exhausted(NOW + 1)


def test_share_with_the_last_of_the_limit_is_not_shut_before_it_is_used() -> None:
    share = share_of(600)
    share.ask(NOW, 1)
    share.receive(NOW, ShareGrant(1, 600, NOW - 10))
    assert not share.is_exhausted(NOW)
    share.left -= 1
    assert share.is_exhausted(NOW)


def test_limit_of_none_is_always_shut() -> None:
    assert share_of(0).is_exhausted(NOW)
    assert share_of(0).quota(NOW) == Quota(Policy.TENANT, 0, 0, WINDOW)


def test_quota_counts_what_is_at_hand_and_what_nobody_has() -> None:
    share = share_of(600)
    share.ask(NOW, 3)
    share.receive(NOW, ShareGrant(3, 100, NOW - 20))
    assert share.quota(NOW) == Quota(Policy.TENANT, 600, 503, 41)


def test_more_comes_back_when_the_oldest_second_is_past_the_window() -> None:
    share = share_of(600)
    share.ask(NOW, 1)
    share.receive(NOW, ShareGrant(0, 600, NOW))
    assert share.quota(NOW).reset == SLOTS
    share.receive(NOW, ShareGrant(0, 600, NOW - WINDOW))
    assert share.quota(NOW).reset == 1


def test_raised_limit_opens_the_share_at_once() -> None:
    share = share_of(5)
    share.ask(NOW, 1)
    share.receive(NOW, ShareGrant(0, 5, NOW))
    share.set_limit(6)
    assert not share.is_exhausted(NOW)


def test_lowered_limit_lets_nothing_through_that_was_taken_before() -> None:
    share = share_of(600)
    share.ask(NOW, 6)
    share.receive(NOW, ShareGrant(6, 6, NOW))
    share.set_limit(300)
    assert not share.is_available(NOW)
    assert share.ask(NOW, 1) == ShareRequest("tenant acme", 300, 2, NOW, 0, 1)
    share.receive(NOW, ShareGrant(2, 8, NOW))
    assert share.ask(NOW + 1, 1) == ShareRequest("tenant acme", 300, 1, NOW, 8, 1)


def test_put_back_within_its_second_is_good_again() -> None:
    share = share_of(600)
    share.ask(NOW, 1)
    share.receive(NOW, ShareGrant(1, 1, NOW))
    share.left -= 1
    share.refund(NOW)
    assert share.is_available(NOW)


def test_put_back_after_a_later_taking_stays_counted() -> None:
    share = share_of(600)
    share.ask(NOW + 1, 1)
    share.receive(NOW + 1, ShareGrant(1, 1, NOW))
    share.refund(NOW)
    assert share.left == 1


def test_share_that_was_used_up_is_so_until_something_comes_back() -> None:
    share = share_of(2)
    wanted_by(share, NOW, demand=2)
    assert [share.seems_exhausted(NOW + seconds) for seconds in (0, 60, 61)] == [True, True, False]


def test_share_that_nobody_has_looked_at_is_not_known_to_be_used_up() -> None:
    assert not share_of(2).seems_exhausted(NOW)


def test_share_that_was_given_back_is_not_used_up() -> None:
    share = share_of(2)
    share.ask(NOW, 2)
    share.receive(NOW, ShareGrant(2, 2, NOW))
    share.left -= 1
    assert not share.seems_exhausted(NOW)
    share.release()
    assert not share.seems_exhausted(NOW + 1)
    assert share.quota(NOW + 1).remaining == 1


def test_raised_limit_is_not_used_up() -> None:
    share = share_of(2)
    wanted_by(share, NOW, demand=2)
    share.set_limit(3)
    assert not share.seems_exhausted(NOW)


def test_share_is_new_until_something_is_taken_and_again_after_the_window() -> None:
    share = share_of(2)
    states = [share.has_expired]
    wanted_by(share, NOW)
    states.append(share.has_expired)
    share.expire()
    assert [*states, share.has_expired] == [True, False, True]


def test_surrender_leaves_nothing() -> None:
    share = share_of(600)
    share.ask(NOW, 2)
    share.receive(NOW, ShareGrant(2, 2, NOW))
    assert share.release() == ShareRequest("tenant acme", 600, 0, NOW, 2)
    assert not share.is_available(NOW)
