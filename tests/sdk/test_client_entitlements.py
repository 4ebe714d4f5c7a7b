"""Features and quotas: what consuming one does, also while the service is unreachable."""

import json
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from tenantry_sdk import errors
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Flavour, Served, answered_by, serving
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.postgres import PostgresServer

USED: Final = {"used": 3, "remaining": 7, "resetsAt": "2026-04-01T00:00:00Z"}


class Upstream:
    """Answers requests in turn, the last answer for good; None loses the connection."""

    def __init__(self, *answers: httpx2.Response | None) -> None:
        self._answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        if answer is None:
            raise httpx2.ReadError("lost")
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)


class Refused(NamedTuple):
    """A rejection of the service, and the error of the client."""

    status: int
    code: str
    error: type[errors.APIError]


def problem(status: int, code: str) -> httpx2.Response:
    return httpx2.Response(status, json={"status": status, "code": code, "detail": "Why."})


def counted(request: httpx2.Request) -> Any:
    return json.loads(request.content)


async def test_consume_sends_the_amount_and_returns_what_is_left(flavour: Flavour) -> None:
    upstream = Upstream(httpx2.Response(200, json=USED))
    async with answered_by(flavour, upstream) as client:
        result = await client.entitlements.consume("exports", 3)
    [request] = upstream.requests
    assert (request.method, request.url.path) == ("POST", "/api/v1/entitlements/exports/consume")
    assert counted(request) == {"amount": 3}
    assert (result.used, result.remaining, result.counted) == (3, 7, True)
    assert result.to_dict() == USED


async def test_consume_counts_one_by_default(flavour: Flavour) -> None:
    upstream = Upstream(httpx2.Response(200, json=USED))
    async with answered_by(flavour, upstream) as client:
        await client.entitlements.consume("exports")
    assert counted(upstream.requests[0]) == {"amount": 1}


async def test_attempts_of_one_consume_carry_one_idempotency_key(flavour: Flavour) -> None:
    upstream = Upstream(None, httpx2.Response(503), httpx2.Response(200, json=USED))
    async with answered_by(flavour, upstream) as client:
        await client.entitlements.consume("exports")
        await client.entitlements.consume("exports")
        await client.entitlements.consume("exports", idempotency_key="export-7")
    keys = [request.headers["idempotency-key"] for request in upstream.requests]
    assert len(keys) == 5
    assert len(set(keys[:3])) == 1
    assert len({*keys}) == 3
    assert keys[4] == "export-7"


@cases(
    "refused",
    [
        Refused(403, "quota_exceeded", errors.QuotaExceededError),
        Refused(403, "feature_not_granted", errors.FeatureNotGrantedError),
        Refused(404, "unknown_feature", errors.UnknownFeatureError),
        Refused(429, "rate_limited", errors.RateLimitedError),
    ],
    ids=lambda refused: refused.code,
)
@cases("on_unavailable", ["raise", "allow", "deny"])
async def test_rejections_raise_whatever_is_to_be_done_while_the_service_is_unavailable(
    flavour: Flavour, refused: Refused, on_unavailable: str
) -> None:
    upstream = Upstream(problem(refused.status, refused.code))
    async with answered_by(flavour, upstream, retries=0) as client:
        with pytest.raises(refused.error) as raised:
            await client.entitlements.consume("exports", on_unavailable=on_unavailable)
    assert (type(raised.value), raised.value.code) == (refused.error, refused.code)
    assert raised.value.next_step


@cases(
    "lost",
    [None, httpx2.Response(500), problem(503, "overloaded"), httpx2.Response(504)],
    ids=["connection", "500", "503", "504"],
)
async def test_unavailable_service_raises_allows_or_denies(
    flavour: Flavour, lost: httpx2.Response | None
) -> None:
    async with answered_by(flavour, Upstream(lost), retries=1) as client:
        consume = client.entitlements.consume
        with pytest.raises((errors.ConnectionFailedError, errors.APIError)) as raised:
            await consume("exports", idempotency_key="once")
        assert not isinstance(raised.value, errors.EntitlementDeniedError)
        allowed = await consume("exports", on_unavailable="allow")
        with pytest.raises(errors.EntitlementDeniedError) as denied:
            await consume("exports", idempotency_key="once", on_unavailable="deny")
    assert (allowed.counted, allowed.used, allowed.remaining) == (False, None, None)
    assert isinstance(denied.value.__cause__, type(raised.value))
    assert (denied.value.status_code, denied.value.idempotency_key) == (403, "once")
    assert json.loads(denied.value.content) == denied.value.document


async def test_mistakes_are_errors_whatever_is_to_be_done(flavour: Flavour) -> None:
    upstream = Upstream(httpx2.Response(200, text="<title>Welcome</title>"))
    async with answered_by(flavour, upstream, retries=0) as client:
        with pytest.raises(errors.UnreadableAnswerError):
            await client.entitlements.consume("exports", on_unavailable="allow")
        with pytest.raises(ValueError, match="on_unavailable is raise, allow or deny, not 'open'"):
            await client.entitlements.consume("exports", on_unavailable="open")
    assert len(upstream.requests) == 1


@pytest.fixture(scope="module")
async def selling(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service with features in its plan catalog."""
    with postgres.database() as conninfo:
        async with serving(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as running:
            yield running


async def test_check_of_a_caller_needs_the_feature(selling: Served, flavour: Flavour) -> None:
    basic = await tenant_of(selling.service, "basic")
    pro = await tenant_of(selling.service, "pro")
    headers = {"Authorization": f"Bearer {basic.owner.credential}"}
    async with flavour.client(base_url=selling.url) as client:
        principal = await client.auth.verify(
            {"Authorization": f"Bearer {pro.owner.credential}"}, None, feature="sso"
        )
        with pytest.raises(errors.FeatureNotGrantedError) as raised:
            await client.auth.verify(headers, None, feature="sso")
        with pytest.raises(errors.UnknownFeatureError):
            await client.auth.verify(headers, None, feature="sos")
    assert principal.features == ["exports", "seats", "sso"]
    assert raised.value.status_code == 403
    assert json.loads(raised.value.content)["code"] == "feature_not_granted"


async def test_list_and_get_say_what_the_organization_has(
    selling: Served, flavour: Flavour
) -> None:
    basic = await tenant_of(selling.service, "basic")
    async with flavour.client_of(selling, basic) as client:
        listed = [each async for each in client.entitlements.list()]
        exports = await client.entitlements.get("exports")
        with pytest.raises(errors.UnknownFeatureError) as raised:
            await client.entitlements.get("unknown")
    assert [(each.feature, each.granted) for each in listed] == [
        ("sso", False),
        ("audit-log", True),
        ("seats", False),
        ("exports", True),
    ]
    assert (exports.type, exports.limit, exports.remaining) == ("metered", 10, 10)
    assert exports.source == "plan"
    assert exports.resets_at is not None
    assert raised.value.code == "unknown_feature"


async def test_use_is_counted_until_the_quota_is_exceeded(
    selling: Served, flavour: Flavour
) -> None:
    basic = await tenant_of(selling.service, "basic")
    async with flavour.client_of(selling, basic) as client:
        consume = client.entitlements.consume
        used = await consume("exports", 8, idempotency_key="export-7")
        again = await consume("exports", 8, idempotency_key="export-7")
        with pytest.raises(errors.QuotaExceededError):
            await consume("exports", 3)
        last = await consume("exports", 2)
        for feature, kind in (("sso", errors.ConflictError), ("x", errors.UnknownFeatureError)):
            with pytest.raises(kind):
                await consume(feature)
    assert (used.used, used.remaining, again.used) == (8, 2, 8)
    assert (last.used, last.remaining) == (10, 0)


async def test_lost_answers_of_consume_count_once(selling: Served, flavour: Flavour) -> None:
    basic = await tenant_of(selling.service, "basic")
    failures = iter([Failure.RESET_AFTER, Failure.UNAVAILABLE_AFTER, Failure.TRUNCATED])
    async with (
        faulty_proxy(selling.url, lambda: next(failures, Failure.NONE)) as (url, _),
        flavour.client(str(basic.owner.credential), base_url=url) as client,
    ):
        used = await client.entitlements.consume("exports", 4)
    assert (used.used, used.remaining) == (4, 6)
