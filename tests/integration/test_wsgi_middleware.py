"""The WSGI middleware: its behavior beyond the service's own responses."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import httpx2
import psycopg
import pytest

from tenantry.common.clock import Timeouts
from tenantry.domain.errors import InsufficientScopeError
from tenantry.wsgi import (
    TenantryWsgiMiddleware,
    WsgiAuthenticator,
    WsgiPrincipal,
    optional_principal_of,
    principal_of,
)
from tests.support.application_checks import (
    SCOPE_TABLE,
    check_modes,
    check_optional_credential,
    check_optional_key_in_its_header,
    header_of,
    reader_of,
)
from tests.support.database_link import DatabaseLink, database_link
from tests.support.in_process import (
    IDENTITY_OF_THE_CLIENT,
    answer_wsgi_caller,
    authentication_of,
    closing_in_thread,
    threaded_tenantry_of,
    until_started,
    until_submitted,
)
from tests.support.service import (
    SHORT_TIMEOUTS,
    Caller,
    Service,
    refusal,
    running_service,
)
from tests.support.wsgi import environ_of, wsgi_client

THREADS: Final = 32
KEYS: Final = 8
LONG_TIMEOUTS: Final = Timeouts(
    request=60, batch=50, batch_start=50, rate_limits=50, connect=50, statement=50
)


@pytest.fixture
async def connection(service: Service) -> AsyncIterator[WsgiAuthenticator]:
    async with closing_in_thread(threaded_tenantry_of(service)) as tenantry:
        yield tenantry


@pytest.fixture
async def link(service: Service) -> AsyncIterator[DatabaseLink]:
    async with database_link(service.conninfo) as link:
        yield link


def show_environ(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """An application that shows its caller, and answers with a separate id."""
    principal: WsgiPrincipal | None = optional_principal_of(environ)
    shown = {
        "caller": None if principal is None else principal.id,
        "same": environ["tenantry.principal"] is principal,
        "requestId": environ["tenantry.request_id"],
        "headers": sorted(name for name in environ if name.startswith("HTTP_")),
    }
    start_response(
        "200 OK", [("Content-Type", "application/json"), ("X-Request-Id", "own"), ("X-Own", "1")]
    )
    return [json.dumps(shown).encode()]


def need_everything(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """An application that requires a scope in its own code; below ``/late`` after its response has
    started.
    """
    if environ["PATH_INFO"] == "/late":
        start_response("200 OK", [("Content-Type", "text/plain")])
    principal_of(environ).require("*:*")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done"]


def need_everything_lazily(
    environ: WSGIEnvironment, start_response: StartResponse
) -> Iterator[bytes]:
    """The same as a generator, which runs when its first part is taken."""
    yield from need_everything(environ, start_response)


def fail(_environ: WSGIEnvironment, _start_response: StartResponse) -> Iterable[bytes]:
    raise LookupError("a bug of the application")


def fail_lazily(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    yield from fail(environ, start_response)


async def test_public_paths_need_no_credential_and_have_no_caller(
    service: Service, connection: WsgiAuthenticator
) -> None:
    org = await service.organization()
    app = TenantryWsgiMiddleware(
        show_environ, tenantry=connection, public=["/", "/health", "/assets/", "/ä"]
    )
    async with wsgi_client(app) as client:
        for path in ("/", "/health", "/assets/a/b", "/%C3%A4"):
            for headers in ([], header_of(org.owner), [(b"authorization", b"Basic eDp5")]):
                shown = await client.get(path, headers=headers)
                assert (shown.status_code, shown.json()["caller"]) == (200, None), path
        for path in (
            "/healthy",
            "/health/",
            "/assets//a",
            "/assets/%2e%2e/a",
            "/assets/..%2fa",
            "/%E4",
            "/assets/%00",
        ):
            assert refusal(await client.get(path)) == (401, "missing_credential"), path
            assert (await client.get(path, headers=header_of(org.owner))).status_code == 200, path


async def test_table_of_scopes_and_head(service: Service, connection: WsgiAuthenticator) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    app = TenantryWsgiMiddleware(
        answer_wsgi_caller, tenantry=connection, scopes=SCOPE_TABLE, optional=True
    )
    async with wsgi_client(app) as client:
        here = Caller(client, reader.credential)
        for method, path, status in (
            ("GET", "/projects/1", 200),
            ("HEAD", "/projects/1", 200),
            ("POST", "/projects/1", 403),
            ("OPTIONS", "/projects/1", 403),
            ("GET", "/me", 200),
            ("GET", "/projects", 403),
        ):
            answer = await here.call(method, path)
            assert answer.status_code == status, (method, path)
        assert refusal(await client.get("/projects/1")) == (401, "missing_credential")
        # which the application asks for
        assert refusal(await client.get("/me")) == (401, "missing_credential")


@pytest.mark.parametrize(
    ("mode", "accepted"), [("live", {"live"}), ("test", {"test"}), ("any", {"live", "test"})]
)
async def test_mode_selects_the_accepted_keys(
    service: Service, connection: WsgiAuthenticator, mode: str, accepted: set[str]
) -> None:
    org = await service.organization()
    test = (await service.key(org.owner, org.id, "projects:read", mode="test")).caller
    async with wsgi_client(
        TenantryWsgiMiddleware(answer_wsgi_caller, tenantry=connection, mode=mode)
    ) as client:
        await check_modes(client, (("live", org.owner), ("test", test)), accepted)


async def test_rejection_of_head_has_the_headers_of_get_and_no_body(
    connection: WsgiAuthenticator,
) -> None:
    async with wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=connection)) as client:
        head = await client.head("/", headers={"X-Request-Id": "mine"})
        get = await client.get("/", headers={"X-Request-Id": "mine"})
    assert (head.status_code, head.content) == (401, b"")
    assert dict(head.headers) == dict(get.headers)
    assert int(get.headers["content-length"]) == len(get.content)


async def test_optional_credential_counts_if_there_is_one(
    service: Service, connection: WsgiAuthenticator
) -> None:
    org = await service.organization()
    async with wsgi_client(
        TenantryWsgiMiddleware(show_environ, tenantry=connection, optional=True)
    ) as client:
        await check_optional_credential(client, org)
        assert (await client.get("/a", headers=header_of(org.owner))).json()["same"] is True


async def test_optional_key_in_its_header_counts_if_there_is_one(service: Service) -> None:
    org = await service.organization()
    async with closing_in_thread(
        threaded_tenantry_of(service, API_KEY_HEADER="X-API-Key")
    ) as tenantry:
        app = TenantryWsgiMiddleware(show_environ, tenantry=tenantry, optional=True)
        async with wsgi_client(app) as client:
            await check_optional_key_in_its_header(client, org)


async def test_client_cannot_name_itself(service: Service, connection: WsgiAuthenticator) -> None:
    org = await service.organization()
    sent = {
        **IDENTITY_OF_THE_CLIENT,
        "Tenantry.Principal": "root",
        "tenantry.context": "root",
        "tenantry.principal": "root",
        "tenantry_principal": "root",
    }
    app = TenantryWsgiMiddleware(show_environ, tenantry=connection, public=["/open"])
    async with wsgi_client(app) as client:
        for path, caller in (("/open", None), ("/", org.key.id)):
            shown = (
                await Caller(client, org.owner.credential).call("GET", path, headers=sent)
            ).json()
            assert (shown["caller"], shown["same"]) == (caller, True)
            assert [name for name in shown["headers"] if name.startswith("HTTP_X_")] == [
                "HTTP_X_MINE"
            ]


async def test_application_gets_the_request_id_and_cannot_replace_it(
    service: Service, connection: WsgiAuthenticator
) -> None:
    org = await service.organization()
    async with wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=connection)) as client:
        answer = await Caller(client, org.owner.credential).call(
            "GET", "/", headers={"X-Request-Id": "mine"}
        )
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert answer.headers["x-own"] == "1"
    assert answer.json()["requestId"] == "mine"


@pytest.mark.parametrize("app", [need_everything, need_everything_lazily])
async def test_scope_asked_for_in_the_applications_own_code_is_403(
    service: Service, connection: WsgiAuthenticator, app: WSGIApplication
) -> None:
    org = await service.organization()
    reader = await reader_of(service, org)
    async with wsgi_client(TenantryWsgiMiddleware(app, tenantry=connection)) as client:
        assert (await Caller(client, org.owner.credential).get("/")).text == "done"
        answer = await Caller(client, reader.credential).get("/")
        assert refusal(answer) == (403, "insufficient_scope")
        assert answer.headers["www-authenticate"].endswith('scope="*:*"')
        with pytest.raises(InsufficientScopeError):
            await Caller(client, reader.credential).get("/late")


@pytest.mark.parametrize("app", [fail, fail_lazily])
async def test_exceptions_of_the_application_pass(
    service: Service, connection: WsgiAuthenticator, app: WSGIApplication
) -> None:
    org = await service.organization()
    async with wsgi_client(TenantryWsgiMiddleware(app, tenantry=connection)) as client:
        with pytest.raises(LookupError, match="a bug of the application"):
            await client.get("/", headers=header_of(org.owner))


async def test_body_of_the_application_is_passed_on_untouched(
    service: Service, connection: WsgiAuthenticator
) -> None:
    """So that servers can send files by themselves, and end streams."""
    org = await service.organization()
    body = iter([b"part"])

    def app(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return body

    environ = environ_of("GET", "/", header_of(org.owner))
    given = await asyncio.to_thread(
        TenantryWsgiMiddleware(app, tenantry=connection), environ, lambda *_: lambda _: None
    )
    assert given is body


async def test_stream_that_the_client_leaves_is_closed(
    service: Service, connection: WsgiAuthenticator
) -> None:
    org = await service.organization()
    seen: list[str] = []

    def app(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        try:
            start_response("200 OK", [("Content-Type", "text/plain")])
            yield b"part"
            yield b"part"
        finally:
            seen.append("closed")

    def leave() -> None:
        environ = environ_of("GET", "/", header_of(org.owner))
        stream: Any = TenantryWsgiMiddleware(app, tenantry=connection)(
            environ, lambda *_: lambda _: None
        )
        assert next(iter(stream)) == b"part"
        stream.close()

    await asyncio.to_thread(leave)
    assert seen == ["closed"]


async def test_two_middlewares_authenticate_and_count_once(
    service: Service, connection: WsgiAuthenticator
) -> None:
    org = await service.organization()
    inner = TenantryWsgiMiddleware(
        show_environ, tenantry=connection, scopes={("GET", "/"): "projects:read"}
    )
    async with wsgi_client(TenantryWsgiMiddleware(inner, tenantry=connection)) as client:
        answers = [await client.get("/", headers=header_of(org.owner)) for _ in range(3)]
        left = [
            int(answer.headers["ratelimit"].partition("r=")[2].partition(";")[0])
            for answer in answers
        ]
        assert left == list(range(left[0], left[0] - 3, -1))
        assert [len(answer.headers.get_list("x-request-id")) for answer in answers] == [1, 1, 1]
        other = (await service.key(org.owner, org.id, "other:read")).caller
        assert refusal(await client.get("/", headers=header_of(other))) == (
            403,
            "insufficient_scope",
        )


async def test_outer_middleware_of_another_database_does_not_authenticate(
    service: Service, connection: WsgiAuthenticator
) -> None:
    org = await service.organization()
    async with closing_in_thread(threaded_tenantry_of(service)) as other:
        inner = TenantryWsgiMiddleware(show_environ, tenantry=connection)
        async with wsgi_client(
            TenantryWsgiMiddleware(inner, tenantry=other, optional=True)
        ) as client:
            assert refusal(await client.get("/")) == (401, "missing_credential")
            assert (await client.get("/", headers=header_of(org.owner))).status_code == 200


async def test_paths_are_those_below_the_mount(connection: WsgiAuthenticator) -> None:
    app = TenantryWsgiMiddleware(show_environ, tenantry=connection, public=["/health"])
    async with wsgi_client(app, script_name="/api") as client:
        assert (await client.get("/api/health")).status_code == 200
        assert refusal(await client.get("/api/api/health")) == (401, "missing_credential")


async def test_header_outside_latin_1_is_rejected(connection: WsgiAuthenticator) -> None:
    """No server that follows PEP 3333 passes one."""
    environ = {
        **environ_of("GET", "/", []),
        "HTTP_AUTHORIZATION": "Bearer svc_live_€",
        "HTTP_X_REQUEST_ID": "€",
    }
    app = TenantryWsgiMiddleware(show_environ, tenantry=connection)
    [body] = await asyncio.to_thread(app, environ, lambda *_: lambda _: None)
    assert json.loads(body)["code"] == "invalid_credential"


async def test_use_of_a_key_is_recorded_with_its_address_when_the_connection_closes(
    service: Service,
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    tenantry = threaded_tenantry_of(service)
    async with (
        closing_in_thread(tenantry),
        wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=tenantry)) as client,
    ):
        assert (await client.get("/", headers=header_of(key.caller))).status_code == 200
    record = (await org.owner.get(key.path)).json()
    assert record["lastUsedAt"] is not None
    assert record["lastUsedAddress"] == "203.0.113.9"


async def test_connection_may_be_used_again_after_it_was_closed(
    service: Service, connection: WsgiAuthenticator
) -> None:
    org = await service.organization()
    async with wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=connection)) as client:
        for _ in range(2):
            assert (await client.get("/", headers=header_of(org.owner))).status_code == 200
            await asyncio.to_thread(connection.close)


async def test_requests_of_many_threads_share_a_query(service: Service, link: DatabaseLink) -> None:
    org = await service.organization()
    keys = [(await service.key(org.owner, org.id, "projects:read")).caller for _ in range(KEYS)]
    tenantry = threaded_tenantry_of(service, LONG_TIMEOUTS, DATABASE_URL=link.conninfo)
    async with (
        closing_in_thread(tenantry),
        wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=tenantry)) as client,
    ):
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200
        batcher = authentication_of(tenantry).authenticator._keys
        before = batcher._runs
        link.block()
        asked = [
            asyncio.create_task(client.get("/", headers=header_of(keys[n % KEYS])))
            for n in range(THREADS)
        ]
        await until_submitted(batcher, THREADS)
        link.unblock()
        answers = await asyncio.gather(*asked)
        assert len({answer.json()["caller"] for answer in answers}) == KEYS
        assert batcher._runs - before <= 2  # what came first, and the rest


async def test_rejections_do_not_keep_threads_waiting(
    service: Service, connection: WsgiAuthenticator
) -> None:
    """Else a flood of bad credentials would take all threads from accepted requests."""
    async with wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=connection)) as client:
        assert refusal(await client.get("/")) == (401, "missing_credential")
        throttle = authentication_of(connection).admission.throttle
        assert {throttle.reserve(0.0) for _ in range(1000)} == {0.0}


@asynccontextmanager
async def linked_client(
    service: Service, link: DatabaseLink, timeouts: Timeouts = SHORT_TIMEOUTS
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application whose database is behind the link."""
    tenantry = threaded_tenantry_of(service, timeouts, DATABASE_URL=link.conninfo)
    async with (
        closing_in_thread(tenantry),
        wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=tenantry)) as client,
    ):
        yield client


@pytest.mark.thorough
async def test_database_may_be_away_at_the_first_request(
    service: Service, link: DatabaseLink
) -> None:
    org = await service.organization()
    await link.cut()
    async with linked_client(service, link) as client:
        answers = await asyncio.gather(
            *(client.get("/", headers=header_of(org.owner)) for _ in range(THREADS))
        )
        assert {refusal(answer) for answer in answers} == {(503, "auth_unavailable")}
        # nothing is known of its schema yet
        assert refusal(await client.get("/")) == (503, "auth_unavailable")
        await link.restore()
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200


async def test_requests_get_an_answer_while_the_database_hangs_and_after_it(
    service: Service, link: DatabaseLink
) -> None:
    org = await service.organization()
    async with linked_client(service, link) as client:
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200
        link.block()
        answers = await asyncio.gather(
            *(client.get("/", headers=header_of(org.owner)) for _ in range(THREADS))
        )
        assert {refusal(answer) for answer in answers} == {(503, "auth_unavailable")}
        link.unblock()
        await link.cut()
        await link.restore()
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200


@pytest.mark.thorough
async def test_close_ends_though_the_database_hangs(service: Service, link: DatabaseLink) -> None:
    org = await service.organization()
    async with linked_client(service, link) as client:
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200
        link.block()


@pytest.mark.thorough
async def test_close_ends_a_connection_that_is_still_being_made(
    service: Service, link: DatabaseLink
) -> None:
    link.block()
    tenantry = threaded_tenantry_of(service, SHORT_TIMEOUTS, DATABASE_URL=link.conninfo)
    async with wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=tenantry)) as client:
        asked = asyncio.create_task(client.get("/", headers={"Authorization": "Bearer a.b.c"}))
        await until_started(tenantry)
        await asyncio.to_thread(tenantry.close)
        assert (await asked).status_code == 503


@pytest.mark.thorough
async def test_event_loop_that_hangs_is_503(service: Service) -> None:
    """The limit of a request does not depend on the loop that it waits for."""
    org = await service.organization()
    began, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    tenantry = threaded_tenantry_of(service, SHORT_TIMEOUTS)

    async def hang() -> None:
        loop.call_soon_threadsafe(began.set)
        released.wait()

    async with (
        closing_in_thread(tenantry),
        wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=tenantry)) as client,
    ):
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200
        hanging = asyncio.create_task(asyncio.to_thread(tenantry.call, hang))
        await began.wait()
        assert refusal(await client.get("/", headers=header_of(org.owner))) == (
            503,
            "auth_unavailable",
        )
        released.set()
        await asyncio.gather(hanging, return_exceptions=True)
        assert (await client.get("/", headers=header_of(org.owner))).status_code == 200


async def test_requests_are_rejected_until_the_schema_fits(
    conninfo: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_service(conninfo) as service,
        closing_in_thread(threaded_tenantry_of(service)) as tenantry,
    ):
        org = await service.organization()
        await _set_revision(conninfo, "0000")
        async with wsgi_client(TenantryWsgiMiddleware(show_environ, tenantry=tenantry)) as client:
            with caplog.at_level(logging.ERROR):
                assert refusal(await client.get("/", headers=header_of(org.owner))) == (
                    503,
                    "auth_unavailable",
                )
            assert "rejecting all requests: the database is at schema revision 0000" in caplog.text
            await _set_revision(conninfo, "9999")
            assert (await client.get("/", headers=header_of(org.owner))).status_code == 200


def test_invalid_options_are_rejected_at_their_declaration(service: Service) -> None:
    for options in ({"mode": "tset"}, {"public": ["health"]}, {"scopes": {("GET", "/"): "a"}}):
        with pytest.raises(ValueError, match="is not a"):
            TenantryWsgiMiddleware(show_environ, tenantry=threaded_tenantry_of(service), **options)


async def test_function_that_returns_no_scope_rejects_the_request(
    service: Service, connection: WsgiAuthenticator, caplog: pytest.LogCaptureFixture
) -> None:
    org = await service.organization()
    app = TenantryWsgiMiddleware(
        show_environ, tenantry=connection, scopes=lambda _method, _path: ""
    )
    async with wsgi_client(app) as client:
        assert refusal(await client.get("/", headers=header_of(org.owner))) == (
            500,
            "internal_error",
        )
    assert "'' is not a scope" in caplog.text


async def _set_revision(conninfo: str, revision: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        await connection.execute("UPDATE tenantry_version SET version_num = %s", (revision,))
