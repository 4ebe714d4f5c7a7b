"""The single check of a token's times accepts exactly the tokens that pass every separate check."""

import httpx2
from hypothesis import example, given
from hypothesis import strategies as st

from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.token_checks import (
    LEEWAY_SECONDS,
    MAX_LIFETIME_SECONDS,
    TIME_CHECKS,
    DecodedToken,
    Times,
    are_timely,
    first_failure,
)

CONFIG = OidcConfig("https://id.example", "api")
KEYS = KeySet(CONFIG, httpx2.AsyncClient())
NOW = 1_800_000_000.0
edges = st.sampled_from([0, LEEWAY_SECONDS, -LEEWAY_SECONDS, MAX_LIFETIME_SECONDS, -MAX_LIFETIME_SECONDS])
seconds = st.builds(lambda edge, off: NOW + edge + off, edges, st.sampled_from([-1, -0.5, 0, 0.5, 1]))
moments = seconds | seconds.map(int) | st.integers() | st.floats(allow_nan=False)


@given(moments, st.none() | moments, moments)
@example(NOW, None, NOW + 60)
@example(10**400, None, 10**400)
def test_one_step_agrees_with_the_checks(issued: float, not_before: float | None, expires: float) -> None:
    reading = DecodedToken("", CONFIG, KEYS)
    reading.times, reading.now = Times(issued, not_before, expires), NOW
    assert are_timely(reading.times, NOW) is (first_failure(TIME_CHECKS, reading) is None)
