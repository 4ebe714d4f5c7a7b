"""``RateLimit-Policy`` and ``RateLimit``, as structured fields."""

from tenantry.domain.rate_limits import Policy, Quota
from tenantry.server.rate_limit_headers import rate_headers
from tests.support.documentation import block_of

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


def test_guide_shows_what_callers_see() -> None:
    tenant, key = Quota(Policy.TENANT, 600, 412, 31), Quota(Policy.KEY, 60, 12, 58)
    fields = dict(
        line.split(": ", 1)
        for line in block_of("how-to/rate-limits.md", "RateLimit-Policy").splitlines()
    )
    shown = tuple((name.lower().encode(), value.encode()) for name, value in fields.items())
    assert shown == rate_headers((tenant, key))


def test_without_limits_there_are_no_limit_headers() -> None:
    assert rate_headers(()) == ()


def test_field_of_a_policy_is_made_once() -> None:
    assert rate_headers((TENANT,))[0] is rate_headers((TENANT,))[0]
