"""The time limits of production: each ends before the one that contains it, and all within 5 s."""

from tenantry.common.clock import DEFAULT_TIMEOUTS


def test_inner_timeouts_end_before_the_request_which_ends_within_5_s() -> None:
    limits = DEFAULT_TIMEOUTS
    parts = (
        limits.batch_start,
        limits.rate_limits,
        limits.connect,
        limits.statement,
        limits.identity_provider,
    )
    assert max(parts) < limits.batch < limits.request < 5
    assert limits.token_endpoint < limits.request
