"""The list of plans without a credential (`PUBLIC_PLANS`)."""

import gzip
from collections.abc import AsyncIterator

import pytest

from tests.support.postgres import PostgresServer
from tests.support.repeating_clients import MOST_ANONYMOUS_BYTES
from tests.support.service import WHOAMI, Service, refusal, running_service

PLANS = "/api/v1/plans"
SHOP = "https://shop.example"


@pytest.fixture(scope="module")
async def public(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(
            conninfo, PUBLIC_PLANS="true", CORS_ORIGINS="https://app.example"
        ) as service:
            yield service


async def test_anybody_reads_what_a_caller_reads(public: Service) -> None:
    org = await public.organization()
    anonymous = await public.anonymous.get(PLANS)
    caller = await org.owner.get(PLANS)
    assert (anonymous.status_code, anonymous.content) == (200, caller.content)
    assert anonymous.headers["content-type"] == caller.headers["content-type"]


async def test_plans_are_private_by_default(service: Service) -> None:
    answer = await service.anonymous.get(PLANS)
    assert refusal(answer) == (401, "missing_credential")
    assert "access-control-allow-origin" not in answer.headers


async def test_wrong_credential_is_rejected_also_where_none_is_needed(public: Service) -> None:
    answer = await public.caller("svc_live_x").get(PLANS)
    assert refusal(answer) == (401, "invalid_credential")
    assert "public" not in answer.headers.get("cache-control", "")


async def test_public_answer_is_for_shared_caches_and_a_callers_is_not(public: Service) -> None:
    org = await public.organization()
    anonymous = await public.anonymous.get(PLANS)
    assert anonymous.headers["cache-control"] == "public, max-age=300"
    varying = {name.strip().lower() for name in anonymous.headers["vary"].split(",")}
    assert varying == {"accept-encoding", "authorization", "x-organization-id"}
    assert "public" not in (await org.owner.get(PLANS)).headers.get("cache-control", "")


async def test_public_answer_is_compressed_and_a_callers_is_not(public: Service) -> None:
    headers = {"Accept-Encoding": "gzip"}
    async with public.client.stream("GET", PLANS, headers=headers) as answer:
        sent = b"".join([part async for part in answer.aiter_raw()])
    plain = await public.client.get(PLANS, headers={"Accept-Encoding": "identity"})
    assert gzip.decompress(sent) == plain.content
    assert len(sent) <= MOST_ANONYMOUS_BYTES
    org = await public.organization()
    assert "content-encoding" not in (await org.owner.get(PLANS)).headers


@pytest.mark.parametrize("origin", [SHOP, "https://app.example"])
async def test_pages_of_every_origin_may_read_the_plans(public: Service, origin: str) -> None:
    answer = await public.client.get(PLANS, headers={"Origin": origin})
    assert answer.headers.get_list("access-control-allow-origin") == ["*"]
    assert "access-control-allow-credentials" not in answer.headers


async def test_pages_of_other_origins_may_read_nothing_else(public: Service) -> None:
    answer = await public.client.get(WHOAMI, headers={"Origin": SHOP})
    assert "access-control-allow-origin" not in answer.headers
    preflight = await public.client.options(
        PLANS, headers={"Origin": SHOP, "Access-Control-Request-Method": "GET"}
    )
    assert "access-control-allow-headers" not in preflight.headers


async def test_public_answer_counts_for_no_rate_limit(public: Service) -> None:
    answer = await public.anonymous.get(PLANS)
    assert "ratelimit" not in answer.headers
