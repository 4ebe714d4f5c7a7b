"""The dispatcher of the service, before applications and routes of a few lines."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx2
import pytest
from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler

from tenantry.api.app import build_api
from tenantry.auth.rejection_throttle import ANONYMOUS_PER_SECOND, BURST
from tenantry.domain.errors import NotFoundError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.server.asgi_types import (
    CALLER,
    CLAIMS,
    IS_HEAD,
    OPERATOR,
    OUTCOME,
    REQUEST_ID,
    AsgiApp,
    HotHandler,
    HotRequest,
    HotResponse,
    Receive,
    Scope,
    Send,
)
from tenantry.server.cors import ANY_ORIGIN, CorsPolicy
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.metrics import Metrics
from tests.support.app import client_of
from tests.support.cases import cases
from tests.support.logs import watched

HOT = "/hot"
PROJECTS = "/api/v1/projects"
DEADLINE = 0.25
PASSED_AT_ONCE = 0.01
TURNS = 100
"""Turns of the event loop: more than an answer needs without waiting."""


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that never answers."""
    await asyncio.Event().wait()


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def fail(request: HotRequest) -> HotResponse:
    raise RuntimeError(f"on the way to {request.path}")


def dispatcher_of(
    app: AsgiApp = hello,
    handler: HotHandler = fail,
    deadline: float = 60,
    cors: CorsPolicy | None = None,
) -> Dispatcher:
    hot = HotRoutes()
    hot.add("GET", HOT, handler)
    hot.add("GET", PROJECTS, handler)
    hot.add_prefix(f"{HOT}/", "/hot/{anything}", handler)
    metrics = Metrics(several_processes=False)
    return Dispatcher(
        hot, app, metrics, no_deadline=lambda path: path == "/slow", cors=cors, deadline=deadline
    )


def routes_of(*routes: HTTPRouteHandler) -> AsgiApp:
    return cast("AsgiApp", build_api(routes))


def counted(dispatcher: Dispatcher) -> str:
    return dispatcher._metrics.render().decode()


async def get_from(dispatcher: Dispatcher, path: str) -> httpx2.Response:
    async with client_of(dispatcher) as client:
        return await client.get(path)


@pytest.mark.parametrize("path", [HOT, f"{HOT}/below"])
async def test_exception_in_a_hot_route_is_500_and_logged_with_the_request_id(path: str) -> None:
    dispatcher = dispatcher_of()
    with watched("tenantry.server.problems") as log:
        answer = await get_from(dispatcher, path)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.json()["requestId"] == answer.headers["x-request-id"]
    assert "on the way" not in answer.text
    assert log.count(answer.headers["x-request-id"]) == 1
    assert 'status="500"} 1.0' in counted(dispatcher)


async def test_exception_in_a_litestar_route_is_500_and_logged_with_the_request_id() -> None:
    @get("/broken")
    async def broken() -> None:
        raise RuntimeError("on the way")

    with watched("tenantry.server.problems") as log:
        answer = await get_from(dispatcher_of(routes_of(broken), deadline=5), "/broken")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "on the way" not in answer.text
    assert log.count(answer.headers["x-request-id"]) == 1


async def test_route_without_a_guard_is_401() -> None:
    @get("/forgotten")
    async def forgotten(principal: NamedDependency[RequestPrincipal]) -> str:
        return principal.org_id

    answer = await get_from(dispatcher_of(routes_of(forgotten), deadline=5), "/forgotten")
    assert (answer.status_code, answer.json()["code"]) == (401, "missing_credential")


async def test_refusal_of_a_hot_route_is_a_problem() -> None:
    async def refuse(_: HotRequest) -> HotResponse:
        raise NotFoundError("thing")

    answer = await get_from(dispatcher_of(handler=refuse), HOT)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_timeout_of_the_application_is_503() -> None:
    dispatcher = dispatcher_of(nothing, deadline=PASSED_AT_ONCE)
    answer = await get_from(dispatcher, "/anything")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert 'status="503"} 1.0' in counted(dispatcher)


async def posted_slowly(dispatcher: Dispatcher) -> httpx2.Response:
    """Return the response to a client that sends its body after the deadline."""

    async def slowly() -> AsyncIterator[bytes]:
        late = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * DEADLINE, late.set)
        yield b"bo"
        await late.wait()
        yield b"dy"

    async with client_of(dispatcher) as client:
        return await client.post("/anything", content=slowly())


async def test_waits_for_the_client_do_not_count_against_the_deadline() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    answer = await posted_slowly(dispatcher_of(echo, deadline=DEADLINE))
    assert (answer.status_code, answer.content) == (200, b"body")


async def test_deadline_applies_after_a_slow_client_is_done() -> None:
    async def read_only(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        await asyncio.Event().wait()

    answer = await posted_slowly(dispatcher_of(read_only, deadline=DEADLINE))
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")


async def test_error_page_replaces_the_problem_document() -> None:
    def page_of(scope: Scope, status: int, request_id: str) -> HotResponse | None:
        return (
            HotResponse(status, [(b"x-page-of", request_id.encode())], b"page")
            if scope["path"] == "/page"
            else None
        )

    dispatcher = Dispatcher(
        HotRoutes(),
        nothing,
        Metrics(several_processes=False),
        error_page=page_of,
        deadline=PASSED_AT_ONCE,
    )
    page = await get_from(dispatcher, "/page")
    assert (page.status_code, page.text) == (503, "page")
    assert page.headers["x-page-of"] == page.headers["x-request-id"]
    assert (await get_from(dispatcher, "/other")).json()["code"] == "database_unavailable"


async def test_head_is_answered_as_get_without_its_body() -> None:
    seen: list[tuple[str, bool]] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["method"], IS_HEAD in scope))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello ", "more_body": True})
        await send({"type": "http.response.body", "body": b"and more"})

    dispatcher = dispatcher_of(look)
    async with client_of(dispatcher) as client:
        answer = await client.head("/anything")
        assert (answer.status_code, answer.content) == (200, b"")
        assert (await client.get("/anything")).text == "hello and more"
    assert seen == [("GET", True), ("GET", False)]
    assert 'method="HEAD"' in counted(dispatcher)


async def test_pages_of_other_origins_can_read_unexpected_errors() -> None:
    dispatcher = dispatcher_of(nothing, deadline=PASSED_AT_ONCE, cors=CorsPolicy([ANY_ORIGIN]))
    async with client_of(dispatcher) as client:
        failed, timed_out = await client.get(PROJECTS), await client.get("/api/v1/api-keys")
        null = await client.get("/api/v1/projects/%00")
        packed = await client.post("/api/v1/api-keys", headers={"Content-Encoding": "gzip"})
    answers = {"internal_error": failed, "database_unavailable": timed_out, "not_found": null}
    for code, answer in {**answers, "unsupported_media_type": packed}.items():
        assert (answer.json()["code"], answer.headers["access-control-allow-origin"]) == (code, "*")


async def test_late_response_is_not_sent_after_the_timeout() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await hello(scope, receive, send)

    answer = await get_from(dispatcher_of(late, deadline=PASSED_AT_ONCE), "/anything")
    assert answer.status_code == 503
    assert json.loads(answer.content)["code"] == "database_unavailable"


async def test_response_that_started_in_time_is_completed() -> None:
    overdue = asyncio.Event()

    async def slow_body(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await overdue.wait()
        await send({"type": "http.response.body", "body": b"whole"})

    asyncio.get_running_loop().call_later(2 * DEADLINE, overdue.set)
    answer = await get_from(dispatcher_of(slow_body, deadline=DEADLINE), "/anything")
    assert (answer.status_code, answer.text) == (200, "whole")


async def test_response_that_started_while_the_body_was_arriving_is_completed() -> None:
    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        # the rest of the body is awaited first, and arrives after the response has started
        await asyncio.gather(
            receive(), send({"type": "http.response.start", "status": 200, "headers": []})
        )
        overdue = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * DEADLINE, overdue.set)
        await overdue.wait()
        await send({"type": "http.response.body", "body": b"whole"})

    answer = await posted_slowly(dispatcher_of(early, deadline=DEADLINE))
    assert (answer.status_code, answer.text) == (200, "whole")


async def test_path_without_a_deadline_may_take_longer() -> None:
    overdue = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await overdue.wait()
        await hello(scope, receive, send)

    asyncio.get_running_loop().call_later(0.05, overdue.set)
    assert (await get_from(dispatcher_of(slow, deadline=PASSED_AT_ONCE), "/slow")).text == "hello"


async def test_disconnect_cancels_the_application() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def working(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    request = asyncio.create_task(get_from(dispatcher_of(working, deadline=60), "/anything"))
    await started.wait()
    request.cancel()
    await ended.wait()


async def test_application_gets_the_request_id() -> None:
    seen: list[object] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope[REQUEST_ID])
        await hello(scope, receive, send)

    answer = await get_from(dispatcher_of(look), "/anything")
    assert seen == [answer.headers["x-request-id"]]


async def test_lifespan_and_websocket_are_passed_on() -> None:
    seen: list[str] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(_: Any) -> None: ...

    for kind in ("lifespan", "websocket"):
        await dispatcher_of(look)({"type": kind, "path": HOT}, receive, send)
    assert seen == ["lifespan", "websocket"]


@cases(
    "mark",
    [
        {CALLER: None},
        {CLAIMS: None},
        {OPERATOR: True},
        {OUTCOME: "invalid_credential"},
        {OUTCOME: "not_found"},
    ],
)
@cases("path", [HOT, "/other"])
async def test_only_anonymous_refusals_are_throttled(path: str, mark: dict[str, object]) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        scope.update(mark)
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})

    async def refuse_at_once(request: HotRequest) -> HotResponse:
        request.scope.update(mark)
        return HotResponse(404, [])

    dispatcher = dispatcher_of(refuse, refuse_at_once, deadline=5)
    waiting = [
        asyncio.create_task(dispatcher._throttle.wait())
        for _ in range(BURST + ANONYMOUS_PER_SECOND)
    ]
    await asyncio.sleep(0)
    asked = asyncio.create_task(get_from(dispatcher, path))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert asked.done() is (mark != {OUTCOME: "not_found"})
    for task in (asked, *waiting):
        task.cancel()
    await asyncio.wait((asked, *waiting))


async def test_throttling_does_not_count_against_the_deadline() -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})

    dispatcher = dispatcher_of(refuse, deadline=DEADLINE)
    number = BURST + round(2 * DEADLINE * ANONYMOUS_PER_SECOND)
    waiting = [asyncio.create_task(dispatcher._throttle.wait()) for _ in range(number)]
    await asyncio.sleep(0)
    assert (await get_from(dispatcher, "/nowhere")).status_code == 404
    await asyncio.wait(waiting)
