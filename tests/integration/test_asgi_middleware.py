"""The in-process middleware: its behavior beyond the service's own responses."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from tenantry.asgi import (
    AsgiAuthenticator,
    AsgiPrincipal,
    RequestPrincipal,
    SchemaMismatchError,
    TenantryAsgiMiddleware,
    optional_principal_of,
    principal_of,
)
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.domain.errors import InsufficientScopeError
from tenantry.server.asgi_types import AsgiApp, Receive, Scope, Send
from tests.support.app import client_of, lifespan
from tests.support.application_checks import (
    SCOPE_TABLE,
    check_modes,
    check_optional_credential,
    check_optional_key_in_its_header,
    header_of,
    reader_of,
)
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.database_link import database_link
from tests.support.in_process import (
    IDENTITY_OF_THE_CLIENT,
    answer,
    answer_caller,
    tenantry_of,
    values_of,
)
from tests.support.postgres import PostgresServer
from tests.support.service import (
    SHORT_TIMEOUTS,
    Caller,
    Service,
    refusal,
    running_service,
)
from tests.support.websocket import open_websocket

LIMITED: Final = """
[[plans]]
id = "free"
[plans.limits]
requests_per_minute = 100
"""


@asynccontextmanager
async def client_in_front_of(app: AsgiApp) -> AsyncIterator[httpx2.AsyncClient]:
    async with lifespan(app), client_of(app) as client:
        yield client


async def show_scope(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that shows its caller, and answers with separate id and limits."""
    await receive()
    principal: AsgiPrincipal | None = optional_principal_of(scope)
    shown = {
        "caller": None if principal is None else principal.id,
        "requestId": scope["tenantry.request_id"],
        "headers": [name.decode() for name, _ in scope["headers"]],
    }
    await answer(send, json.dumps(shown).encode(), (b"X-Request-Id", b"own"), (b"x-own", b"1"))


async def need_everything(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that requires a scope in its own code; below ``/late`` after its response has
    started.
    """
    principal = principal_of(scope)
    if scope["path"] == "/late":
        await answer(send, b"{}")
    principal.require("*:*")
    await answer(send, b"{}")


async def test_public_paths_need_no_credential_and_have_no_caller(service: Service) -> None:
    org = await service.organization()
    app = TenantryAsgiMiddleware(
        show_scope,
        tenantry=tenantry_of(service),
        public=["/", "/health", "/assets/"],
        owns_lifespan=True,
    )
    async with client_in_front_of(app) as client:
        for path in ("/", "/health", "/assets/a/b"):
            for headers in ([], header_of(org.owner), [(b"authorization", b"Basic eDp5")]):
                shown = await client.get(path, headers=headers)
                assert (shown.status_code, shown.json()["caller"]) == (200, None)
        for path in (
            "/healthy",
            "/health/",
            "/assets",
            "/a",
            "/assets//a",
            "/assets/%2e%2e/a",
            "/assets/..%2fa",
        ):
            assert refusal(await client.get(path)) == (401, "missing_credential"), path
            assert (await client.get(path, headers=header_of(org.owner))).status_code == 200


@cases(
    ("mode", "accepted"),
    [(None, {"live"}), ("live", {"live"}), ("test", {"test"}), ("any", {"live", "test"})],
)
async def test_mode_selects_the_accepted_keys(
    service: Service, mode: str | None, accepted: set[str]
) -> None:
    org = await service.organization()
    test = (await service.key(org.owner, org.id, "projects:read", mode="test")).caller
    option: dict[str, Any] = {} if mode is None else {"mode": mode}
    app = TenantryAsgiMiddleware(
        answer_caller, tenantry=tenantry_of(service), owns_lifespan=True, **option
    )
    async with client_in_front_of(app) as client:
        callers = (("live", org.owner), ("live", service.user(org=org.id)), ("test", test))
        await check_modes(client, callers, accepted)


def test_invalid_mode_is_rejected_at_its_declaration(service: Service) -> None:
    with pytest.raises(ValueError, match="must be live, test or any"):
        TenantryAsgiMiddleware(answer_caller, tenantry=tenantry_of(service), mode="tset")


async def test_optional_credential_counts_if_there_is_one(service: Service) -> None:
    org = await service.organization()
    app = TenantryAsgiMiddleware(
        show_scope, tenantry=tenantry_of(service), optional=True, owns_lifespan=True
    )
    async with client_in_front_of(app) as client:
        await check_optional_credential(client, org)


async def test_optional_key_in_its_header_counts_if_there_is_one(service: Service) -> None:
    org = await service.organization()
    tenantry = tenantry_of(service, API_KEY_HEADER="X-API-Key")
    app = TenantryAsgiMiddleware(show_scope, tenantry=tenantry, optional=True, owns_lifespan=True)
    async with client_in_front_of(app) as client:
        await check_optional_key_in_its_header(client, org)


async def test_table_of_scopes_rejects_unlisted_requests(service: Service) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    app = TenantryAsgiMiddleware(
        answer_caller,
        tenantry=tenantry_of(service),
        scopes=SCOPE_TABLE,
        optional=True,
        owns_lifespan=True,
    )
    async with client_in_front_of(app) as client:
        here = Caller(client, reader.credential)
        assert (await here.get("/projects/1")).status_code == 200
        assert refusal(await here.post("/projects/1")) == (403, "insufficient_scope")
        assert (await here.get("/me")).status_code == 200
        answered = await here.get("/projects")
        assert refusal(answered) == (403, "insufficient_scope")
        assert answered.headers["www-authenticate"].endswith('scope="*:*"')
        assert (await Caller(client, org.owner.credential).get("/projects")).status_code == 200
        assert refusal(await client.get("/projects/1")) == (401, "missing_credential")


async def test_function_that_returns_no_scope_rejects_the_request(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    org = await service.organization()
    app = TenantryAsgiMiddleware(
        answer_caller,
        tenantry=tenantry_of(service),
        scopes=lambda _method, _path: "",
        owns_lifespan=True,
    )
    async with client_in_front_of(app) as client:
        assert refusal(await Caller(client, org.owner.credential).get("/")) == (
            500,
            "internal_error",
        )
    assert "'' is not a scope" in caplog.text


async def test_scope_asked_for_in_the_applications_own_code_is_403(service: Service) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    app = TenantryAsgiMiddleware(need_everything, tenantry=tenantry_of(service), owns_lifespan=True)
    async with client_in_front_of(app) as client:
        assert (await Caller(client, org.owner.credential).get("/")).status_code == 200
        answered = await Caller(client, reader.credential).get("/")
        assert refusal(answered) == (403, "insufficient_scope")
        assert answered.headers["www-authenticate"].endswith('scope="*:*"')
        with pytest.raises(InsufficientScopeError):
            await Caller(client, reader.credential).get("/late")


async def test_missing_caller_is_401(service: Service) -> None:
    app = TenantryAsgiMiddleware(
        answer_caller, tenantry=tenantry_of(service), public=["/a"], owns_lifespan=True
    )
    async with client_in_front_of(app) as client:
        assert refusal(await client.get("/a")) == (401, "missing_credential")


async def test_identity_headers_of_the_client_are_dropped(service: Service) -> None:
    org = await service.organization()
    sent = {**IDENTITY_OF_THE_CLIENT, "Accept": "*/*"}
    app = TenantryAsgiMiddleware(
        show_scope, tenantry=tenantry_of(service), public=["/open"], owns_lifespan=True
    )
    async with client_in_front_of(app) as client:
        for path in ("/open", "/"):
            shown = (
                await Caller(client, org.owner.credential).call("GET", path, headers=sent)
            ).json()
            assert {"accept", "x-mine"} <= set(shown["headers"])
            assert not {
                name
                for name in shown["headers"]
                if name.replace("_", "-").startswith(
                    ("x-t", "x-p", "x-s", "x-mo", "x-a", "x-e", "x-k", "x-f")
                )
            }


async def test_headers_dropped_are_all_that_the_gateway_check_sets(service: Service) -> None:
    org = await service.organization()
    checked = await org.owner.get("/api/v1/auth/verify/-")
    everywhere = {"x-request-id", "x-content-type-options"}
    names = [
        name
        for name in map(str.lower, checked.headers)
        if name.startswith("x-") and name not in everywhere
    ]
    app = TenantryAsgiMiddleware(show_scope, tenantry=tenantry_of(service), owns_lifespan=True)
    async with client_in_front_of(app) as client:
        shown = (
            await Caller(client, org.owner.credential).call(
                "GET", "/", headers=dict.fromkeys(names, "x")
            )
        ).json()
        assert len(names) >= 5
        assert not set(names) & set(shown["headers"])


async def test_application_gets_the_request_id_and_cannot_replace_it(service: Service) -> None:
    org = await service.organization()
    app = TenantryAsgiMiddleware(show_scope, tenantry=tenantry_of(service), owns_lifespan=True)
    async with client_in_front_of(app) as client:
        answered = await Caller(client, org.owner.credential).call(
            "GET", "/", headers={"X-Request-Id": "mine"}
        )
        assert answered.headers.get_list("x-request-id") == ["mine"]
        assert answered.headers["x-own"] == "1"
        assert answered.json()["requestId"] == "mine"


async def test_two_middlewares_authenticate_and_count_once(service: Service) -> None:
    org = await service.organization()
    other = (await service.key(org.owner, org.id, "other:read")).caller
    tenantry = tenantry_of(service, TENANTRY_PLANS=catalog_file(LIMITED))
    inner = TenantryAsgiMiddleware(
        show_scope, tenantry=tenantry, scopes={("GET", "/"): "projects:read"}
    )
    app = TenantryAsgiMiddleware(inner, tenantry=tenantry, owns_lifespan=True)
    async with client_in_front_of(app) as client:
        answers = [await Caller(client, org.owner.credential).get("/") for _ in range(3)]
        answers.append(await Caller(client, other.credential).get("/"))
        for answered in answers:
            assert len(answered.headers.get_list("x-request-id")) == 1
            assert len(answered.headers.get_list("ratelimit")) == 1
        left = [
            int(answered.headers["ratelimit"].partition("r=")[2].partition(";")[0])
            for answered in answers
        ]
        assert left == list(range(left[0], left[0] - 4, -1))
        assert refusal(answers[-1]) == (403, "insufficient_scope")


async def test_outer_middleware_of_another_database_does_not_authenticate(service: Service) -> None:
    org = await service.organization()
    other, own = tenantry_of(service), tenantry_of(service)
    app = TenantryAsgiMiddleware(
        TenantryAsgiMiddleware(show_scope, tenantry=own, owns_lifespan=False),
        tenantry=other,
        optional=True,
    )
    async with other, own, client_of(app) as client:
        assert refusal(await client.get("/")) == (401, "missing_credential")
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200


async def show_caller(request: Request) -> JSONResponse:
    return JSONResponse({"id": principal_of(request).id, "same": principal_of(request.scope).id})


async def ask_for_everything(request: Request) -> JSONResponse:
    principal_of(request).require("*:*")
    return JSONResponse({})


async def test_starlette_application_with_mounted_routes(service: Service) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    tenantry = tenantry_of(service)
    routes = [Route("/me", show_caller), Mount("/v1", routes=[Route("/all", ask_for_everything)])]
    app = Starlette(routes=routes, lifespan=tenantry.lifespan)
    app.add_middleware(TenantryAsgiMiddleware, tenantry=tenantry)
    async with client_in_front_of(app) as client:
        here = Caller(client, reader.credential)
        assert (await here.get("/me")).json()["same"] == (await here.get("/me")).json()["id"]
        assert refusal(await here.get("/v1/all")) == (403, "insufficient_scope")
        assert refusal(await client.get("/me")) == (401, "missing_credential")
        assert (await here.get("/nothing")).status_code == 404


async def test_paths_are_those_below_the_mount(service: Service) -> None:
    tenantry = tenantry_of(service)
    inner = TenantryAsgiMiddleware(show_scope, tenantry=tenantry, public=["/health"])
    app = Starlette(routes=[Mount("/api", app=inner)], lifespan=tenantry.lifespan)
    async with client_in_front_of(app) as client:
        assert (await client.get("/api/health")).status_code == 200
        assert refusal(await client.get("/api/api/health")) == (401, "missing_credential")


async def test_use_of_a_key_is_recorded_with_its_address(service: Service) -> None:
    org = await service.organization()
    app = TenantryAsgiMiddleware(answer_caller, tenantry=tenantry_of(service), owns_lifespan=True)
    key = await service.key(org.owner, org.id, "projects:read")
    async with client_in_front_of(app) as client:
        assert (await Caller(client, key.caller.credential).get("/")).status_code == 200
    assert (await org.owner.get(key.path)).json()["lastUsedAt"] is not None


async def chat(_scope: Scope, receive: Receive, send: Send) -> None:
    """A websocket that requires more scopes after its first message."""
    principal: RequestPrincipal = principal_of(_scope)
    await receive()
    await send({"type": "websocket.accept", "headers": [(b"x-own", b"1")]})
    await receive()
    principal.require("projects:write")
    await send({"type": "websocket.close", "code": 1000})


async def test_websocket_is_rejected_before_it_opens(service: Service) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    scopes = {("WEBSOCKET", "/chat"): "projects:read", ("WEBSOCKET", "/admin"): "admin:all"}
    tenantry = tenantry_of(service)
    app = TenantryAsgiMiddleware(chat, tenantry=tenantry, scopes=scopes)
    async with tenantry:
        for path, headers, status, code in (
            ("/chat", [], 401, "missing_credential"),
            ("/admin", header_of(reader), 403, "insufficient_scope"),
        ):
            start, body = await open_websocket(app, path, headers)
            assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
            assert {b"www-authenticate", b"x-request-id", b"content-type"} <= {
                name for name, _ in start["headers"]
            }
            assert json.loads(body["body"])["code"] == code
            (closed,) = await open_websocket(app, path, headers, can_deny=False)
            assert closed == {"type": "websocket.close", "code": 1008, "reason": code}


async def test_websocket_is_opened_with_our_headers_and_closed_when_the_application_refuses(
    service: Service,
) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    tenantry = tenantry_of(service)
    app = TenantryAsgiMiddleware(chat, tenantry=tenantry)
    async with tenantry:
        accepted, closed = await open_websocket(app, "/", header_of(reader))
        assert [name for name, _ in accepted["headers"]][:2] == [b"x-own", b"x-request-id"]
        assert closed == {"type": "websocket.close", "code": 1008, "reason": "insufficient_scope"}
        _, closed = await open_websocket(app, "/", header_of(org.owner))
        assert closed["code"] == 1000


async def test_websocket_is_closed_with_an_internal_error_while_authentication_is_unavailable(
    conninfo: str,
) -> None:
    async with database_link(conninfo) as link, running_service(link.conninfo) as service:
        org = await service.organization()
        app = TenantryAsgiMiddleware(chat, tenantry=(tenantry := tenantry_of(service)))
        async with tenantry:
            await link.cut()
            (closed,) = await open_websocket(app, "/", header_of(org.owner), can_deny=False)
            assert closed == {"type": "websocket.close", "code": 1011, "reason": "auth_unavailable"}
            await link.restore()


async def test_lifespan_is_the_applications_unless_the_middleware_owns_it(service: Service) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    tenantry = tenantry_of(service)
    async with lifespan(TenantryAsgiMiddleware(app, tenantry=tenantry)):
        assert seen == ["lifespan"]
    async with lifespan(TenantryAsgiMiddleware(app, tenantry=tenantry, owns_lifespan=True)):
        assert seen == ["lifespan"]


async def test_connection_may_be_started_again_but_not_twice(service: Service) -> None:
    org = await service.organization()
    tenantry = tenantry_of(service)
    app = TenantryAsgiMiddleware(answer_caller, tenantry=tenantry)
    async with client_of(app) as client:
        caller = Caller(client, org.owner.credential)
        for _ in range(2):
            async with tenantry:
                assert (await caller.get("/")).status_code == 200
                with pytest.raises(RuntimeError, match="started already"):
                    await tenantry.start()
                assert (await caller.get("/")).status_code == 200
        assert refusal(await caller.get("/")) == (500, "internal_error")
        await tenantry.stop()


@pytest.mark.thorough
async def test_connection_ends_though_the_database_hangs(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    async with database_link(service.conninfo) as link:
        tenantry = tenantry_of(service, SHORT_TIMEOUTS, DATABASE_URL=link.conninfo)
        async with (
            tenantry,
            client_of(TenantryAsgiMiddleware(answer_caller, tenantry=tenantry)) as client,
        ):
            assert (await client.get("/", headers=header_of(reader))).status_code == 200
            link.block()
    assert "the connection to the database could not be closed in 2.4 s" in caplog.text


async def test_older_schema_fails_the_start_with_a_remedy(
    service: Service, conninfo: str, caplog: pytest.LogCaptureFixture
) -> None:
    await _set_revision(conninfo, "0000")
    with pytest.raises(
        SchemaMismatchError,
        match=r"is at schema revision 0000.*needs 0\d\d\d: run `tenantry migrate`",
    ):
        await tenantry_of(service, DATABASE_URL=conninfo).start()
    app = TenantryAsgiMiddleware(
        answer_caller, tenantry=tenantry_of(service, DATABASE_URL=conninfo), owns_lifespan=True
    )
    sent: list[Any] = []

    async def startup() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, startup, send)
    [logged] = [each for each in caplog.records if each.message == "the application does not start"]
    assert logged.exc_info is not None
    error = logged.exc_info[1]
    assert isinstance(error, SchemaMismatchError)
    assert sent == [{"type": "lifespan.startup.failed", "message": str(error)}]


async def test_newer_schema_is_accepted(service: Service, conninfo: str) -> None:
    await _set_revision(conninfo, "9999")
    async with tenantry_of(service, DATABASE_URL=conninfo):
        pass


async def test_database_without_the_schema_fails_the_start(
    postgres: PostgresServer, service: Service
) -> None:
    with postgres.database() as conninfo:
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            await connection.execute("DROP TABLE tenantry_version")
        with pytest.raises(SchemaMismatchError, match="has no schema of tenantry"):
            await AsgiAuthenticator.from_values(
                {**values_of(service), "DATABASE_URL": conninfo}
            ).start()


@pytest.mark.thorough
async def test_schema_is_checked_later_where_the_database_is_away_at_the_start(
    conninfo: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with database_link(conninfo) as link, running_service(link.conninfo) as service:
        org = await service.organization()
        await _set_revision(service.conninfo, "0000")
        await link.cut()
        app = TenantryAsgiMiddleware(
            answer_caller, tenantry=(tenantry := tenantry_of(service, DEFAULT_TIMEOUTS))
        )
        async with tenantry, client_of(app) as client:
            caller = Caller(client, org.owner.credential)
            assert refusal(await caller.get("/")) == (503, "auth_unavailable")
            await link.restore()
            with caplog.at_level(logging.ERROR):
                assert refusal(await caller.get("/")) == (503, "auth_unavailable")
            assert "rejecting all requests: the database is at schema revision 0000" in caplog.text
            await _set_revision(service.conninfo, "9999")
            assert (await caller.get("/")).status_code == 200


async def _set_revision(conninfo: str, revision: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("UPDATE tenantry_version SET version_num = %s", (revision,))
