"""The throttle: a bounded rate, bursts, and a bounded wait."""

import asyncio

import pytest

from tenantry.auth.rejection_throttle import Throttle, no_throttle


def test_no_throttle_delays_nobody() -> None:
    throttle = no_throttle()
    assert {throttle.reserve(100.0) for _ in range(1000)} == {0.0}


def test_callers_after_the_burst_continue_one_after_another() -> None:
    throttle = Throttle(10, burst=3, longest=5)
    assert [throttle.reserve(100.0) for _ in range(6)] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])


def test_caller_within_the_rate_never_waits() -> None:
    throttle = Throttle(10, burst=1, longest=5)
    assert [throttle.reserve(100 + number / 10) for number in range(50)] == pytest.approx([0] * 50)


def test_no_second_has_more_than_the_rate_and_the_burst() -> None:
    throttle = Throttle(10, burst=3, longest=60)
    continued = [
        100 + number / 1000 + throttle.reserve(100 + number / 1000) for number in range(300)
    ]
    assert continued == sorted(continued)
    for start in continued:
        assert sum(start <= moment < start + 1 for moment in continued) <= 10 + 3


def test_no_caller_waits_longer_than_the_maximum() -> None:
    throttle = Throttle(10, burst=3, longest=2)
    assert max(throttle.reserve(100.0) for _ in range(1000)) == 2


def test_flood_has_no_effect_once_it_is_over() -> None:
    throttle = Throttle(10, burst=3, longest=2)
    for _ in range(1000):
        throttle.reserve(100.0)
    assert throttle.reserve(102.5) == 0


def test_burst_after_a_quiet_period_is_no_larger() -> None:
    throttle = Throttle(10, burst=3, longest=5)
    throttle.reserve(100.0)
    assert [throttle.reserve(10_000.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1], abs=1e-6)


async def test_waiting_callers_are_counted() -> None:
    throttle = Throttle(10, burst=3, longest=5, now=lambda: 0.0)
    for _ in range(3):
        await throttle.wait()
    waiting = asyncio.create_task(throttle.wait())
    await asyncio.sleep(0)
    assert throttle.waiting == 1
    waiting.cancel()
    await asyncio.wait({waiting})
    assert throttle.waiting == 0
