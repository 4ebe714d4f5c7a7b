"""``RateLimit-Policy`` and ``RateLimit``, as structured fields."""

from tenantry.domain.rate_limits import Policy, Quota
from tenantry.server.rate_limit_headers import rate_headers

TENANT = Quota(Policy.TENANT, 600, 12, 31)
KEY = Quota(Policy.KEY, 60, 0, 4)


def test_one_limit_is_one_item() -> None:
    assert rate_headers((TENANT,)) == (
        (b"ratelimit-policy", b'"tenant";q=600;w=60'),
        (b"ratelimit", b'"tenant";r=12;t=31'),
    )


def test_two_limits_are_a_list() -> None:
    assert rate_headers((TENANT, KEY)) == (
        (b"ratelimit-policy", b'"tenant";q=600;w=60, "key";q=60;w=60'),
        (b"ratelimit", b'"tenant";r=12;t=31, "key";r=0;t=4'),
    )


def test_without_limits_there_are_no_limit_headers() -> None:
    assert rate_headers(()) == ()


def test_field_of_a_policy_is_made_once() -> None:
    assert rate_headers((TENANT,))[0] is rate_headers((TENANT,))[0]
