"""The check of a credential that another program received, for services that do not share the
database.
"""

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import httpx2
import pytest

from tenantry_sdk import errors
from tests.sdk.sdk_support import Flavour, Served, answered_by, serving
from tests.support.cases import cases
from tests.support.service import Caller

SECRET: Final = "svc_live_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"
PRINCIPAL: Final = {
    "X-Tenant-Id": "acme",
    "X-Principal-Id": "key_1",
    "X-Principal-Kind": "api_key",
    "X-Mode": "live",
    "X-Plan": "pro",
    "X-Access": "grace",
    "X-Effective-Plan": "pro",
    "X-Subscription-Status": "past_due",
    "X-Request-Id": "4f2a",
}
PROBLEM: Final = {
    "type": "urn:x",
    "title": "x",
    "status": 0,
    "detail": "Why.",
    "code": "x",
    "requestId": "4f2a",
}


def bearer(caller: Caller | str, **headers: str) -> dict[str, str]:
    """The headers of a request with this credential."""
    credential = caller if isinstance(caller, str) else caller.credential
    return {"Authorization": f"Bearer {credential}", **headers}


@asynccontextmanager
async def checker(served: Served, flavour: Flavour) -> AsyncIterator[Any]:
    """The checks of a client that has no credential."""
    async with flavour.client(base_url=served.url) as client:
        yield client.auth.verify


class Upstream:
    """What the client asks: it answers all requests in the same way, and keeps them."""

    def __init__(
        self, status: int = 200, content: dict[str, object] | str = "", /, **headers: str
    ) -> None:
        self._status = status
        self._headers = headers
        self._content = content
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if isinstance(self._content, dict):
            return httpx2.Response(self._status, headers=self._headers, json=self._content)
        return httpx2.Response(self._status, headers=self._headers, text=self._content)


async def test_caller_of_a_request_is_known(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    key = await served.service.key(
        organization.owner, organization.id, "reports:read", externalId="cus_4711"
    )
    async with checker(served, flavour) as verify:
        principal = await verify(bearer(key.caller), "reports:read")
        other = await verify(bearer(organization.owner), None)
    assert other.external_id is None
    assert principal.to_dict() == {
        "kind": "api_key",
        "id": key.id,
        "orgId": organization.id,
        "mode": "live",
        "plan": "free",
        "subscriptionStatus": "none",
        "access": {"state": "none", "plan": "free"},
        "externalId": "cus_4711",
        "features": [],
        "featuresCut": False,
    }
    assert principal.effective_plan == "free"
    assert principal.response.request_id is not None
    assert "ratelimit" in principal.response.headers


async def test_user_chooses_the_organization_with_the_header(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    user = served.service.user(f"una-{flavour.name}")
    async with flavour.client_of(served, organization) as owner:
        await owner.members.create(user_id=f"una-{flavour.name}", role="member")
    async with checker(served, flavour) as verify:
        headers = bearer(user, **{"x-organization-id": organization.id})
        principal = await verify(headers, "projects:read")
        with pytest.raises(errors.PermissionDeniedError) as raised:
            await verify({**headers, "x-organization-id": "another"}, "projects:read")
    assert (principal.kind, principal.id, principal.org_id) == (
        "user",
        f"una-{flavour.name}",
        organization.id,
    )
    assert raised.value.code == "no_organization"


async def test_revoked_key_is_rejected_at_the_next_request(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    key = await served.service.key(organization.owner, organization.id, "projects:read")
    async with checker(served, flavour) as verify:
        await verify(bearer(key.caller), "projects:read")
        await organization.owner.delete(key.path)
        with pytest.raises(errors.AuthenticationError) as raised:
            await verify(bearer(key.caller), "projects:read")
    assert raised.value.code == "api_key_revoked"


async def test_missing_scope_is_rejected_with_the_challenge(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    key = await served.service.key(organization.owner, organization.id, "projects:read")
    async with checker(served, flavour) as verify:
        assert (await verify(bearer(key.caller), None)).id == key.id
        assert (await verify(bearer(organization.owner), "*:*")).id == organization.key.id
        with pytest.raises(errors.PermissionDeniedError) as raised:
            await verify(bearer(key.caller), "projects:write")
    error = raised.value
    assert error.headers_to_pass_on["WWW-Authenticate"].endswith(
        'error="insufficient_scope", scope="projects:write"'
    )
    assert error.headers_to_pass_on["Content-Type"] == "application/problem+json"
    assert json.loads(error.content) == error.document
    assert error.document["requestId"] == error.request_id


async def test_mode_decides_about_test_keys(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    test = await served.service.key(
        organization.owner, organization.id, "projects:read", mode="test"
    )
    async with checker(served, flavour) as verify:
        for mode in ("test", "any"):
            assert (await verify(bearer(test.caller), "projects:read", mode=mode)).mode == "test"
        with pytest.raises(errors.PermissionDeniedError) as refused_test:
            await verify(bearer(test.caller), "projects:read")
        with pytest.raises(errors.PermissionDeniedError) as refused_live:
            await verify(bearer(organization.owner), "projects:read", mode="test")
    assert (refused_test.value.code, refused_live.value.code) == ("mode_mismatch", "mode_mismatch")


async def test_headers_of_all_frameworks_are_understood(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    value = bearer(organization.owner)["Authorization"]
    forms: list[Any] = [
        {"authorization": value},
        {"AUTHORIZATION": value},
        {b"authorization": value.encode()},
        [(b"host", b"x"), (b"authorization", value.encode())],  # ASGI
        [("Authorization", value)],  # WSGI's frameworks
        httpx2.Headers({"Authorization": value}),
    ]
    async with checker(served, flavour) as verify:
        for form in forms:
            assert (await verify(form, "projects:read")).org_id == organization.id, form


async def test_malformed_credentials_are_invalid(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    good = bearer(organization.owner)["Authorization"]
    malformed: dict[str, Any] = {
        "nothing": {},
        "empty": {"Authorization": ""},
        "no scheme": {"Authorization": organization.owner.credential},
        "another scheme": {"Authorization": f"Basic {organization.owner.credential}"},
        "line break": {"Authorization": f"{good}\r\nX-Organization-Id: other"},
        "line break first": {"Authorization": f"\r\n{good}"},
        "NUL": {"Authorization": f"{good}\0"},
        "non-ASCII": {"Authorization": f"{good}ä"},
        "beyond Latin-1": {"Authorization": f"{good}\u20ac"},
        "surrogate": {"Authorization": f"{good}\udcff"},
        "non-breaking space": {"Authorization": f"{good}\u00a0"},
        "bytes": [(b"authorization", good.encode() + b"\xff")],
        "huge": {"Authorization": f"Bearer {'x' * 1_000_000}"},
        "padded": {"Authorization": f"{good}{' ' * 9000}x"},
        "repeated": [("Authorization", good), ("authorization", good)],
        "in another header": {"X-Api-Key": good, "Cookie": good},
    }
    async with checker(served, flavour) as verify:
        for name, headers in malformed.items():
            with pytest.raises(errors.AuthenticationError) as raised:
                await verify(headers, "projects:read")
            expected = (
                "missing_credential"
                if name in {"nothing", "empty", "in another header"}
                else "invalid_credential"
            )
            assert raised.value.code == expected, name
            assert raised.value.headers_to_pass_on["WWW-Authenticate"].startswith(
                'Bearer realm="api"'
            ), name


async def test_token_with_many_groups_is_passed_on_whole(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    groups = [f"11111111-2222-4333-8444-{number:012}" for number in range(157)]
    user = served.service.user("uma", org=organization.id, groups=groups, padding="x" * 4000)
    assert 14_000 < len(user.credential or "") < 16_384
    async with checker(served, flavour) as verify:
        assert (await verify(bearer(user), "projects:read")).org_id == organization.id


async def test_repeated_organization_is_not_guessed(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    user = served.service.user("uma", org=organization.id, role="member")
    headers = [("Authorization", f"Bearer {user.credential}")]
    both = [("X-Organization-Id", organization.id), ("X-Organization-Id", "other")]
    async with checker(served, flavour) as verify:
        assert (await verify([*headers, both[0]], None)).org_id == organization.id
        with pytest.raises(errors.PermissionDeniedError):
            await verify([*headers, *both], None)


async def test_credential_of_the_program_itself_is_never_used(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL)
    own = {"Authorization": "Bearer own", "X-Organization-Id": "own"}
    async with answered_by(
        flavour, upstream, "own-key", organization="own", http_headers=own
    ) as client:
        await client.auth.verify({}, "projects:read")
        await client.auth.verify(
            {"Authorization": "Bearer theirs", "X-Organization-Id": "theirs"}, "projects:read"
        )
    without, other = upstream.requests
    assert {"authorization", "x-organization-id"} & without.headers.keys() == set()
    assert (other.headers["authorization"], other.headers["x-organization-id"]) == (
        "Bearer theirs",
        "theirs",
    )


async def test_only_what_the_check_needs_is_passed_on(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL)
    headers = {
        **bearer(SECRET),
        "Cookie": "session=1",
        "X-Forwarded-For": "203.0.113.9",
        "X-Request-Id": "trace-1",
    }
    async with answered_by(flavour, upstream) as client:
        await client.auth.verify(headers, "projects:read", client_address="2001:db8::1")
        await client.auth.verify(
            {**headers, "X-Request-Id": "a b"}, None, client_address="unix:\r\nX-Evil: 1"
        )
    first, second = upstream.requests
    assert (first.method, first.url.path) == ("GET", "/api/v1/auth/verify/projects:read")
    assert (first.headers["x-forwarded-for"], first.headers["x-request-id"]) == (
        "2001:db8::1",
        "trace-1",
    )
    assert second.url.path == "/api/v1/auth/verify/-"
    assert second.headers["x-forwarded-for"] == "unknown"
    assert {"x-request-id", "x-evil", "cookie"} & second.headers.keys() == set()


async def test_header_for_keys_is_passed_on_where_it_is_named(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL)
    headers = {"x-api-key": SECRET, "X-Other": SECRET}
    async with answered_by(flavour, upstream) as client:
        await client.auth.verify(headers, None)
        await client.auth.verify(headers, None, api_key_header="X-API-Key")
        await client.auth.verify([*headers.items()] * 2, None, api_key_header="X-API-Key")
        await client.auth.verify(bearer("x", **headers), None, api_key_header="X-API-Key")
    without, named, repeated, both = (request.headers for request in upstream.requests)
    assert SECRET not in str([*without.items()])
    assert (named.get("x-api-key"), named.get("authorization"), named.get("x-other")) == (
        SECRET,
        None,
        None,
    )
    assert repeated["x-api-key"] == f"{SECRET}, {SECRET}"
    assert (both["x-api-key"], both["authorization"]) == (SECRET, "Bearer x")


async def test_headers_of_the_client_are_not_sent_for_its_callers(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL)
    async with answered_by(flavour, upstream, "own-key") as client:
        copy = client.with_options(headers={"X-Team": "billing", "X-Trace": "own"})
        await copy.auth.verify(bearer("x"), None)
        await copy.auth.verify(bearer("x"), None, headers={"X-Trace": "7"})
        with pytest.raises(errors.UnreadableAnswerError):
            await copy.auth.whoami()
    sent = [
        [request.headers.get(name) for name in ("x-team", "x-trace")]
        for request in upstream.requests
    ]
    assert sent == [[None, None], [None, "7"], ["billing", "own"]]


async def test_string_in_place_of_headers_is_told(flavour: Flavour) -> None:
    async with flavour.client("own-key") as client:
        for wrong in ("Bearer svc_live_x", b"Bearer svc_live_x"):
            with pytest.raises(TypeError, match="needs the headers of the request") as raised:
                await client.auth.verify(wrong, None)
            assert "svc_live_x" not in str(raised.value)


async def test_own_header_for_keys_is_never_used_for_a_check(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL)
    async with answered_by(
        flavour, upstream, "own-key", http_headers={"X-API-Key": "own"}
    ) as client:
        await client.with_options(headers={"x-api-key": "own"}).auth.verify(
            {}, None, api_key_header="X-API-Key"
        )
    assert "x-api-key" not in upstream.requests[0].headers


async def test_name_of_the_header_for_keys_is_checked(flavour: Flavour) -> None:
    async with answered_by(flavour, Upstream(**PRINCIPAL)) as client:
        for name in ("", "X API Key", "X-Key: 1", "X_Key"):
            with pytest.raises(ValueError, match="is not the name of a header"):
                await client.auth.verify({}, None, api_key_header=name)


async def test_service_accepts_a_key_in_its_header_alone(conninfo: str, flavour: Flavour) -> None:
    async with serving(conninfo, API_KEY_HEADER="X-API-Key", KEY_PREFIX="acme") as served:
        organization = await served.service.organization()
        secret = str(organization.owner.credential)
        async with flavour.client(None, base_url=served.url) as client:
            check = partial(client.auth.verify, api_key_header="X-API-Key")
            principal = await check({"X-API-Key": secret}, "projects:read")
            scheme = await check({"Authorization": f"Api-Key {secret}"}, None)
            with pytest.raises(errors.AuthenticationError) as raised:
                await check(bearer(secret, **{"X-API-Key": secret}), None)
    assert secret.startswith("acme_live_")
    assert (principal.id, scheme.id) == (organization.key.id, organization.key.id)
    assert raised.value.code == "invalid_credential"


@cases(
    ("status", "code"),
    [(401, "api_key_expired"), (403, "org_suspended"), (503, "auth_unavailable")],
)
async def test_rejection_is_passed_on_after_one_request(
    flavour: Flavour, status: int, code: str
) -> None:
    upstream = Upstream(status, {**PROBLEM, "code": code}, **{"retry-after": "7"})
    async with answered_by(flavour, upstream) as client:
        with pytest.raises(errors.APIError) as raised:
            await client.auth.verify(bearer(SECRET), "projects:read")
    assert (raised.value.status_code, raised.value.code) == (status, code)
    assert raised.value.headers_to_pass_on["Retry-After"] == "7"
    assert len(upstream.requests) == 1


async def test_rate_limit_is_passed_on_and_not_waited_for(flavour: Flavour) -> None:
    limits = {
        "retry-after": "30",
        "ratelimit": '"tenant";r=0;t=30',
        "ratelimit-policy": '"tenant";q=9;w=60',
    }
    upstream = Upstream(
        429, {**PROBLEM, "code": "rate_limited"}, **limits, **{"set-cookie": "a=b", "server": "x"}
    )
    async with answered_by(flavour, upstream) as client:
        with pytest.raises(errors.RateLimitedError) as raised:
            await client.auth.verify(bearer(SECRET), "projects:read")
    assert raised.value.headers_to_pass_on == {
        "Content-Type": "application/json",
        "Retry-After": "30",
        "RateLimit": '"tenant";r=0;t=30',
        "RateLimit-Policy": '"tenant";q=9;w=60',
        "Cache-Control": "no-store",
    }
    assert len(upstream.requests) == 1


def lost(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadError("reset")


def late(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadTimeout("late")


@cases(
    "answer",
    [
        lost,
        late,
        Upstream(500, {**PROBLEM, "code": "internal_error"}),
        Upstream(502, "<html>"),
        Upstream(503, "<html>"),
        Upstream(504),
        Upstream(408),
        Upstream(429, "<html>"),
    ],
)
async def test_failed_check_is_503_with_a_problem(
    flavour: Flavour, answer: Callable[[httpx2.Request], httpx2.Response]
) -> None:
    async with answered_by(flavour, answer) as client:
        with pytest.raises(errors.UnavailableError) as raised:
            await client.auth.verify(bearer(SECRET), "projects:read")
    error = raised.value
    assert (error.status_code, error.code) == (503, "auth_unavailable")
    assert error.headers_to_pass_on["Retry-After"] == "1"
    assert error.headers_to_pass_on["Content-Type"] == "application/problem+json"
    assert json.loads(error.content) == error.document
    assert error.document["status"] == 503
    assert error.__cause__ is not None


@cases(
    ("fails", "sent"), [(httpx2.ReadError, 2), (httpx2.ConnectError, 2), (httpx2.ReadTimeout, 1)]
)
async def test_only_a_lost_connection_is_retried_once(
    flavour: Flavour, fails: type[Exception], sent: int
) -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        raise fails("gone")

    async with answered_by(flavour, answer) as client:
        with pytest.raises(errors.UnavailableError):
            await client.auth.verify(bearer(SECRET), "projects:read")
    assert len(seen) == sent


async def test_lost_connection_is_made_up_for(flavour: Flavour) -> None:
    answers = [httpx2.Response(200, headers=PRINCIPAL)]
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        if len(seen) == 1:
            raise httpx2.RemoteProtocolError("closed while idle")
        return answers.pop()

    async with answered_by(flavour, answer) as client:
        principal = await client.auth.verify(bearer(SECRET), "projects:read")
    assert (principal.org_id, principal.access.state, principal.subscription_status) == (
        "acme",
        "grace",
        "past_due",
    )


@cases("missing", [name for name in PRINCIPAL if name != "X-Request-Id"])
async def test_answer_without_a_whole_principal_accepts_nobody(
    flavour: Flavour, missing: str
) -> None:
    for headers in (
        {**PRINCIPAL, missing: ""},
        {name: value for name, value in PRINCIPAL.items() if name != missing},
    ):
        async with answered_by(flavour, Upstream(**headers)) as client:
            with pytest.raises(errors.UnreadableAnswerError):
                await client.auth.verify(bearer(SECRET), "projects:read")


@cases("status", [204, 302, 400, 401, 403, 404, 405])
async def test_answer_of_something_else_accepts_nobody_and_is_not_passed_on(
    flavour: Flavour, status: int
) -> None:
    async with answered_by(flavour, Upstream(status, "<html>", **PRINCIPAL)) as client:
        with pytest.raises(errors.UnreadableAnswerError) as raised:
            await client.auth.verify(bearer(SECRET), "projects:read")
    assert not isinstance(raised.value, errors.APIError)


async def test_feature_that_the_catalog_lacks_is_no_other_server(flavour: Flavour) -> None:
    problem = '{"code": "unknown_feature", "detail": "The plan catalog has no feature."}'
    async with answered_by(flavour, Upstream(404, problem)) as client:
        with pytest.raises(errors.NotFoundError) as raised:
            await client.auth.verify(bearer(SECRET), None, feature="ssso")
    assert raised.value.code == "unknown_feature"


@cases("scope", ["", "-", "projects", "projects:read/mode/any", "../../x", "a:b?c", "A:b", "a:b\n"])
async def test_scope_that_is_none_is_refused_before_it_is_sent(
    flavour: Flavour, scope: str
) -> None:
    upstream = Upstream(**PRINCIPAL)
    async with answered_by(flavour, upstream) as client:
        with pytest.raises(ValueError, match="is not a scope"):
            await client.auth.verify(bearer(SECRET), scope)
        with pytest.raises(ValueError, match="mode is"):
            await client.auth.verify(bearer(SECRET), None, mode=scope)
    assert upstream.requests == []


@pytest.mark.parametrize(
    "answer", [lost, late, Upstream(401, {**PROBLEM, "code": "x"}), Upstream(200)]
)
async def test_credential_is_in_no_log_error_or_traceback(
    flavour: Flavour,
    answer: Callable[[httpx2.Request], httpx2.Response],
    caplog: pytest.LogCaptureFixture,
) -> None:
    headers = Unseen(bearer(SECRET, **{"X-API-Key": SECRET}))
    with caplog.at_level(logging.DEBUG):
        async with answered_by(flavour, answer) as client:
            with pytest.raises(errors.TenantryError) as raised:
                await client.auth.verify(headers, "projects:read", api_key_header="X-API-Key")
    trace = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    shown = "".join([*trace.format(), str(vars(raised.value)), caplog.text])
    assert "/api/v1/auth/verify/projects:read" in caplog.text
    assert SECRET not in shown


class Unseen(dict[str, str]):
    """Headers of a framework that hides values: what is shown is the client's doing."""

    def __repr__(self) -> str:
        return "headers"


async def test_checks_share_connections(flavour: Flavour) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        head = "".join(f"{name}: {value}\r\n" for name, value in PRINCIPAL.items())
        while await reader.read(65536):
            writer.write(f"HTTP/1.1 200 OK\r\n{head}Content-Length: 0\r\n\r\n".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with flavour.client(base_url=url) as client:
            for _ in range(20):
                await client.auth.verify(bearer(SECRET), "projects:read")
            for _ in range(20):
                await client.with_options(api_key=SECRET, timeout=5).auth.verify(
                    bearer(SECRET), "projects:read", timeout=4
                )
    assert connections == 1


async def test_service_out_of_reach_accepts_nobody(flavour: Flavour) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    async with flavour.client(base_url=url) as client:
        with pytest.raises(errors.UnavailableError):
            await client.auth.verify(bearer(SECRET), "projects:read")


async def test_caller_has_the_features_that_the_service_names(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL, **{"X-Features": "exports,sso"})
    async with answered_by(flavour, upstream) as client:
        principal = await client.auth.verify(bearer("x"), None)
    assert principal.features == ["exports", "sso"]
    assert (principal.has("sso"), principal.has("ss")) == (True, False)


async def test_feature_that_was_cut_from_the_list_is_unknown(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL, **{"X-Features": "exports,..."})
    async with answered_by(flavour, upstream) as client:
        principal = await client.auth.verify(bearer("x"), None)
    assert (principal.features, principal.features_cut) == (["exports"], True)
    assert principal.has("exports")
    with pytest.raises(LookupError, match=r"call verify\(\.\.\., feature='sso'\)"):
        principal.has("sso")


@cases(
    ("scope", "mode", "path"),
    [
        ("reports:read", "live", "reports:read/feature:sso"),
        (None, "live", "-/feature:sso"),
        ("reports:read", "any", "reports:read/feature:sso/mode/any"),
    ],
)
async def test_feature_follows_the_scope_in_the_address(
    flavour: Flavour, scope: str | None, mode: str, path: str
) -> None:
    upstream = Upstream(**PRINCIPAL)
    async with answered_by(flavour, upstream) as client:
        await client.auth.verify(bearer("x"), scope, feature="sso", mode=mode)
    assert upstream.requests[0].url.path == f"/api/v1/auth/verify/{path}"


async def test_name_that_no_feature_has_is_not_sent(flavour: Flavour) -> None:
    upstream = Upstream(**PRINCIPAL)
    async with answered_by(flavour, upstream) as client:
        for name in ("", "SSO", "sso/mode/any", "sso\n"):
            with pytest.raises(ValueError, match="is not the id of a feature"):
                await client.auth.verify(bearer("x"), None, feature=name)
    assert upstream.requests == []
