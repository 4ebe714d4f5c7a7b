"""Options of one call, and of a copy of the client."""

import asyncio
import inspect
from typing import Any, Final

import httpx2
import pytest

from tenantry_sdk import AsyncTenantry, Tenantry, errors
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Flavour, Served, answered_by
from tests.sdk.test_surface import arguments, members
from tests.support.cases import cases

PROBLEM: Final = {"code": "overloaded", "detail": "Why."}
PAGE: Final[dict[str, object]] = {"data": [], "nextCursor": None}


class Always:
    """Answers all requests alike, and keeps them."""

    def __init__(self, status: int, content: object) -> None:
        self._answer = (status, content)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return httpx2.Response(self._answer[0], json=self._answer[1])


async def test_retries_of_one_call(flavour: Flavour) -> None:
    upstream = Always(503, PROBLEM)
    async with answered_by(flavour, upstream, retries=2) as client:
        for options, sent in (({}, 3), ({"retries": 0}, 1), ({"retries": 1}, 2)):
            upstream.requests.clear()
            with pytest.raises(errors.UnavailableError):
                await client.plans.list(**options).first_page()
            assert len(upstream.requests) == sent


async def test_method_in_lower_case_is_retried_too(flavour: Flavour) -> None:
    upstream = Always(503, PROBLEM)
    async with answered_by(flavour, upstream, retries=1) as client:
        with pytest.raises(errors.UnavailableError):
            await client.request("get", "/api/v1/plans")
    assert [request.method for request in upstream.requests] == ["GET", "GET"]


@pytest.mark.thorough
@pytest.mark.parametrize("failure", [Failure.SILENT, Failure.SLOW_BODY])
async def test_timeout_of_one_call(served: Served, flavour: Flavour, failure: Failure) -> None:
    organization = await served.service.organization()
    async with (
        faulty_proxy(served.url, lambda: failure) as (url, proxy),
        flavour.client(
            str(organization.owner.credential), base_url=url, timeout=3600, attempt_timeout=3600
        ) as client,
    ):
        with pytest.raises(errors.TimedOutError):
            await client.auth.whoami(timeout=1)
        with pytest.raises(errors.TimedOutError):
            await client.auth.whoami(attempt_timeout=1, retries=1)
    assert len(proxy.met) == 3


async def test_headers_of_one_call_and_of_a_copy(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as client:
        traced = client.with_options(headers={"X-Request-Id": "from-the-copy"})
        named = await traced.auth.whoami(headers={"x-request-id": "from-the-call"})
        again = await traced.auth.whoami()
        plain = await client.auth.whoami()
    assert named.response.request_id == "from-the-call"
    assert again.response.request_id == "from-the-copy"
    assert plain.response.request_id not in {None, "from-the-call", "from-the-copy"}


async def test_copy_selects_another_organization(served: Served, flavour: Flavour) -> None:
    user = served.service.user(f"ursula-{flavour.name}", email="u@x.example", email_verified=True)
    async with flavour.client(user.credential, base_url=served.url) as client:
        tenants = [(await client.tenants.create(name=name)).id for name in ("One", "Two")]
        with pytest.raises(errors.PermissionDeniedError):
            await client.auth.whoami()
        chosen = [
            (await client.with_options(organization=one).auth.whoami()).org_id for one in tenants
        ]
    assert chosen == tenants


async def test_options_of_copies_add_up(flavour: Flavour) -> None:
    upstream = Always(200, PAGE)
    async with answered_by(flavour, upstream) as client:
        copy = client.with_options(headers={"X-A": "1"}).with_options(
            headers={"X-B": "2", "User-Agent": "mine"}
        )
        await copy.plans.list(headers={"x-a": "3"}).first_page()
    [request] = upstream.requests
    assert (request.headers["x-a"], request.headers["x-b"], request.headers["user-agent"]) == (
        "3",
        "2",
        "mine",
    )
    assert request.headers.get_list("x-a") == ["3"]


async def test_closing_a_copy_leaves_the_connections_open(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as client:
        copy = client.with_options(timeout=5)
        await copy.aclose()
        assert (await client.auth.whoami()).org_id == organization.id
    with pytest.raises(errors.ConfigurationError, match="closed"):
        await copy.auth.whoami()


def test_every_method_passes_its_options_on() -> None:
    """Whatever else the call does: each request that it sends has the header."""
    without: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.headers.get("x-trace") != "1":
            without.append(f"{request.method} {request.url.path}")
        return httpx2.Response(
            404, json={"code": "not_found", "detail": "There is no such object."}
        )

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http_client:
        for name, method in members(Tenantry("key", http_client=http_client)):
            if name in {"close", "tenant", "with_options", "entitlements.consuming"}:
                continue  # they send nothing, or what other methods send
            positional, named = arguments(method)
            if name == "request":
                positional = ["GET", "/api/v1/x"]
            with pytest.raises(errors.TenantryError):
                next(iter(method(*positional, **named, headers={"X-Trace": "1"})))
    assert without == []


@cases(
    ("wrong", "kind"),
    [
        ({"timeout": 0}, ValueError),
        ({"retries": -1}, ValueError),
        ({"attempt_timeout": float("nan")}, ValueError),
        ({"max_retries": 3}, TypeError),
        ({"headers": {"Authorization": "Bearer x"}}, ValueError),
        ({"headers": {"idempotency-key": "x"}}, ValueError),
        ({"headers": {"X-Organization-Id": "x"}}, ValueError),
        ({"headers": {"Content-Length": "0"}}, ValueError),
        ({"headers": {"Host": "evil.example"}}, ValueError),
        ({"headers": {"X-A": "1\r\nX-B: 2"}}, ValueError),
        ({"headers": {"X-A\r\nX-B": "2"}}, ValueError),
        ({"headers": {"X-A": "ä"}}, ValueError),
        ({"headers": {"X-A": ""}}, ValueError),
        ({"headers": {"": "1"}}, ValueError),
    ],
)
async def test_invalid_options_are_refused_before_anything_is_sent(
    flavour: Flavour, wrong: dict[str, Any], kind: type[Exception]
) -> None:
    upstream = Always(200, PAGE)
    async with answered_by(flavour, upstream) as client:
        with pytest.raises(kind):
            client.with_options(**wrong)
        with pytest.raises(kind):
            client.plans.list(**wrong)
        with pytest.raises(kind):
            await client.auth.whoami(**wrong)
    assert upstream.requests == []


async def test_value_of_a_refused_header_is_not_in_the_error(flavour: Flavour) -> None:
    async with flavour.client("key") as client:
        with pytest.raises(ValueError, match="x-secret") as raised:
            await client.auth.whoami(headers={"X-Secret": "hunter2\n"})
    assert "hunter2" not in str(raised.value)


async def test_client_without_a_credential_says_so_before_it_sends_anything(
    flavour: Flavour,
) -> None:
    upstream = Always(200, PAGE)
    async with answered_by(flavour, upstream, None) as client:
        with pytest.raises(errors.ConfigurationError, match="TENANTRY_API_KEY"):
            await client.auth.whoami()
        with pytest.raises(errors.ConfigurationError, match="empty"):
            flavour.make("")
    assert upstream.requests == []


async def test_calls_that_need_no_credential_send_none(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    leaked = await served.service.key(organization.owner, organization.id, "projects:read")
    async with flavour.client(base_url=served.url) as client:
        assert ((await client.health.live()).status, (await client.health.ready()).status) == (
            "ok",
            "ok",
        )
        assert (await client.api_keys.report_leak(str(leaked.caller.credential))).id == leaked.id


async def test_service_that_is_not_ready_is_no_error(flavour: Flavour) -> None:
    upstream = Always(503, {"status": "not ready", "waitingFor": ["the database"]})
    async with answered_by(flavour, upstream) as client:
        health = await client.health.ready()
    assert (health.status, health.waiting_for, health.response.status_code) == (
        "not ready",
        ["the database"],
        503,
    )
    assert len(upstream.requests) == 1
    assert "authorization" not in upstream.requests[0].headers


async def test_key_is_made_in_the_organization_of_the_credential(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        made = await owner.api_keys.create(
            name="CI", scopes=["projects:read"], idempotency_key="once"
        )
        with pytest.raises(errors.ConflictError) as raised:
            await owner.api_keys.create(name="CI", scopes=["projects:read"], idempotency_key="once")
    assert made.org_id == organization.id
    assert raised.value.code == "idempotency_replay"


def test_options_are_typed_alike_in_both_clients() -> None:
    for client in (Tenantry("key"), AsyncTenantry("key")):
        kinds = {
            str(inspect.signature(method).parameters["options"].annotation)
            for name, method in members(client)
            if name not in {"aclose", "close", "tenant"}
        }
        assert kinds == {"Unpack[CallOptions]"}


async def test_concurrent_calls_keep_their_own_options(flavour: Flavour) -> None:
    upstream = Always(200, PAGE)
    async with answered_by(flavour, upstream) as client:
        await asyncio.gather(
            *(
                client.plans.list(headers={"X-Number": str(number)}).first_page()
                for number in range(20)
            )
        )
    assert sorted(int(request.headers["x-number"]) for request in upstream.requests) == [*range(20)]
