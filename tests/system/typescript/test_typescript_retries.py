"""Lost, slow and incomplete responses, and the retries of the TypeScript client."""

import json
from typing import Final

import pytest

from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Served
from tests.support.service import Organization
from tests.support.typescript_client import ANOTHER_SERVER, Package, key_of

LOST: Final = [
    Failure.UNAVAILABLE_BEFORE,
    Failure.UNAVAILABLE_AFTER,
    Failure.RESET_AFTER,
    Failure.TRUNCATED,
]
ANSWERS: Final = """
    const attempts = {
        lost: async () => { throw new TypeError("reset"); },
        silent: (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", reject)),
        page: async () => new Response("<html>", { status: 201, headers: { "content-type": "text/html" } }),
    };
    const answered = (status) => async () => new Response("", { status });
    const created = (steps, options) => {
        const fetch = (...sent) => {
            const step = steps.shift();
            return (attempts[step] ?? answered(step))(...sent);
        };
        const { projects } = new Tenantry({ baseUrl, apiKey, fetch, attemptTimeout: 20, retries: 1 });
        return rejection(projects.create({ name: "x" }, options));
    };
    const keysOf = (errors) => errors.map(({ name, idempotencyKey }) => [name, typeof idempotencyKey]);
"""
"""Creations whose attempts end in a given way."""


@pytest.mark.parametrize("failure", LOST, ids=lambda failure: failure.name)
async def test_creation_is_retried_and_applied_once(
    package: Package, served: Served, acme: Organization, failure: Failure
) -> None:
    failures = iter([failure])
    program = """
        const created = await tenantry.projects.create({ name: "Zoë" });
        const { data } = await tenantry.projects.list().firstPage();
        await tenantry.projects.delete({ projectId: created.id });
        print(data.map(({ id }) => id === created.id));
    """
    async with faulty_proxy(served.url, lambda: next(failures, Failure.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [True]


@pytest.mark.parametrize(
    "failure", [Failure.RESET_AFTER, Failure.UNAVAILABLE_AFTER], ids=lambda failure: failure.name
)
async def test_deletion_succeeds_when_the_response_to_the_first_attempt_is_lost(
    package: Package, served: Served, acme: Organization, failure: Failure
) -> None:
    failures = iter([Failure.NONE, failure])
    program = """
        const { id } = await tenantry.projects.create({ name: "x" });
        await tenantry.projects.delete({ projectId: id });
        print((await tenantry.projects.list().firstPage()).data);
    """
    async with faulty_proxy(served.url, lambda: next(failures, Failure.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == []


async def test_lost_secret_is_reported_with_the_id_of_its_key(
    package: Package, served: Served, acme: Organization
) -> None:
    failures = iter([Failure.RESET_AFTER])
    program = """
        const key = { orgId: ORG, name: "x", scopes: ["a:b"] };
        const { code, document, idempotencyKey } = await rejection(tenantry.apiKeys.create(key));
        const { status } = await tenantry.apiKeys.get({ keyId: document.id });
        print([code, status, typeof idempotencyKey]);
    """.replace("ORG", json.dumps(acme.id))
    async with faulty_proxy(served.url, lambda: next(failures, Failure.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [
            "idempotency_replay",
            "active",
            "string",
        ]


async def test_change_is_sent_once(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const error = await rejection(tenantry.tenants.update({ tenantId: "x", name: "x" }));
        print([error instanceof APIError, error.code, error.retryAfter]);
    """
    async with faulty_proxy(served.url, lambda: Failure.UNAVAILABLE_BEFORE) as (url, proxy):
        assert await package.result_of(program, url, key_of(acme)) == [True, "http_503", 0]
    assert len(proxy.met) == 1


async def test_retries_are_limited(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const error = await rejection(new Tenantry({ baseUrl, apiKey, retries: 1 }).projects.list().firstPage());
        print([error instanceof ConnectionFailedError, error instanceof TimedOutError]);
    """
    async with faulty_proxy(served.url, lambda: Failure.RESET_BEFORE) as (url, proxy):
        assert await package.result_of(program, url, key_of(acme)) == [True, False]
    assert len(proxy.met) == 2


@pytest.mark.parametrize(
    "failure",
    [Failure.SILENT, Failure.SLOW_HEAD, Failure.SLOW_BODY],
    ids=lambda failure: failure.name,
)
@pytest.mark.parametrize("limit", ["timeout: 200", "attemptTimeout: 200, retries: 1"])
async def test_slow_response_times_out(
    package: Package, served: Served, acme: Organization, failure: Failure, limit: str
) -> None:
    program = f"""
        const error = await rejection(new Tenantry({{ baseUrl, apiKey, {limit} }}).projects.list().firstPage());
        print([error instanceof TimedOutError, error instanceof ConnectionFailedError]);
    """
    async with faulty_proxy(served.url, lambda: failure) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [True, True]


async def test_caller_can_cancel_a_call(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const controller = new AbortController();
        const call = rejection(tenantry.projects.list({}, { signal: controller.signal }).firstPage());
        controller.abort(new Error("enough"));
        const error = await call;
        print([error instanceof TenantryError, error.name, error.cause.message]);
    """
    async with faulty_proxy(served.url, lambda: Failure.SILENT) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [True, "AbortError", "enough"]


async def test_credential_of_a_call_is_awaited_within_its_timeout_and_its_signal(
    package: Package, nowhere: str
) -> None:
    program = """
        let asked = 0;
        const tokens = () => { asked += 1; return new Promise(() => undefined); };
        const { projects } = new Tenantry({ baseUrl, tokens });
        const controller = new AbortController();
        const { signal } = controller;
        const late = await rejection(projects.create({ name: "x" }, { timeout: 20 }));
        const call = rejection(projects.create({ name: "x" }, { signal }));
        controller.abort();
        const errors = [late, await call, await rejection(projects.create({ name: "x" }, { signal }))];
        print([asked, late.message, errors.map(({ name, idempotencyKey }) => [name, idempotencyKey ?? null])]);
    """
    assert await package.result_of(program, nowhere) == [
        2,
        "POST /api/v1/projects: tokens gave no credential within 20 ms",
        [["TimedOutError", None], ["AbortError", None], ["AbortError", None]],
    ]


async def test_timeout_of_a_call_begins_before_its_credential(
    package: Package, nowhere: str
) -> None:
    program = """
        const later = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
        const tokens = async () => { await later(300); return "token"; };
        const fetch = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", reject));
        const client = new Tenantry({ baseUrl, tokens, fetch });
        const { name, message } = await rejection(client.auth.whoami({ timeout: 1000 }));
        print([name, Number(/within (\\d+) ms/.exec(message)[1])]);
    """
    name, limit = await package.result_of(program, nowhere)
    assert name == "TimedOutError"
    assert limit <= 701


async def test_error_of_a_creation_that_may_have_succeeded_has_its_idempotency_key(
    package: Package, nowhere: str
) -> None:
    program = (
        ANSWERS
        + """
        const controller = new AbortController();
        const { signal } = controller;
        const canceled = created(["silent"], { signal, attemptTimeout: 1000 });
        setTimeout(() => controller.abort(), 20);
        const errors = [await canceled];
        for (const steps of [["page"], [500], ["lost", "lost"], ["silent", "silent"], ["lost", 422], [503, 403]]) {
            errors.push(await created(steps));
        }
        print(keysOf(errors));
    """
    )
    assert await package.result_of(program, nowhere, "svc_live_x") == [
        ["AbortError", "string"],
        ["UnreadableAnswerError", "string"],
        ["ServerError", "string"],
        ["ConnectionFailedError", "string"],
        ["TimedOutError", "string"],
        ["ValidationFailedError", "string"],
        ["PermissionDeniedError", "string"],
    ]


async def test_error_of_a_creation_that_failed_has_no_idempotency_key(
    package: Package, nowhere: str
) -> None:
    program = (
        ANSWERS
        + """
        const errors = [await created(["lost"], { signal: AbortSignal.abort() })];
        for (const status of [400, 403, 422, 429, 501]) errors.push(await created([status, status]));
        print(keysOf(errors));
    """
    )
    assert await package.result_of(program, nowhere, "svc_live_x") == [
        ["AbortError", "undefined"],
        ["BadRequestError", "undefined"],
        ["PermissionDeniedError", "undefined"],
        ["ValidationFailedError", "undefined"],
        ["RateLimitedError", "undefined"],
        ["NotConfiguredError", "undefined"],
    ]


async def test_incomplete_json_is_a_lost_response(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const bodies = ["", '{"data": [', '{"data": [], "nextCursor": null}'];
        const answer = (_, response) => {
            response.writeHead(200, { "content-type": "application/json" }).end(bodies.shift() ?? "{");
        };
        const page = await elsewhere.projects.list().firstPage();
        const error = await rejection(elsewhere.projects.list().firstPage());
        print([page.data, error instanceof ConnectionFailedError, error.message]);
        server.close();
    """
    )
    message = "GET /api/v1/projects: the response was incomplete"
    assert await package.result_of(program, served.url, "svc_live_x") == [[], True, message]


async def test_creation_is_repeated_with_one_key_while_the_lost_attempt_still_runs(
    package: Package, served: Served
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const keys = [];
        const body = { status: 409, code: "idempotency_in_flight", detail: "Wait.", requestId: "r" };
        const answers = [
            (request) => request.socket.destroy(),
            ...Array(4).fill((_, response) => response.writeHead(409).end(JSON.stringify(body))),
            (_, response) => response.writeHead(201, { "content-type": "application/json" }).end('{"id":"proj_1"}'),
        ];
        const answer = (request, response) => {
            keys.push(request.headers["idempotency-key"]);
            answers.shift()(request, response);
        };
        const { id } = await elsewhere.projects.create({ name: "x" });
        print([id, keys.length, new Set(keys).size]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == ["proj_1", 6, 1]


async def test_call_is_not_retried_when_it_would_end_before_retry_after(
    package: Package, served: Served
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const values = ["3600", "999999999", new Date(Date.now() + 3600_000).toUTCString()];
        let asked = 0;
        const answer = (_, response) => response.writeHead(503, { "retry-after": values[asked++] }).end();
        const errors = [];
        for (const _ of values) errors.push(await rejection(elsewhere.projects.list().firstPage()));
        print([asked, errors.map(({ code, retryAfter }) => [code, retryAfter > 3000])]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        3,
        [["http_503", True]] * 3,
    ]
