"""Where the TypeScript client gets its settings from, and the options of a copy and of a call."""

import json
from http import HTTPStatus
from typing import Any, Final

import pytest

from tenantry import __version__
from tenantry_sdk import errors
from tenantry_sdk._response import Response, error_of
from tests.sdk.sdk_support import Served
from tests.support.service import Organization
from tests.support.typescript_client import ANOTHER_SERVER, Package, key_of

ASKED: Final = (
    ANOTHER_SERVER
    + """
    const asked = [];
    const answer = (request, response) => {
        asked.push(request.headers);
        response.writeHead(200, { "content-type": "application/json" }).end('{"data":[],"nextCursor":null}');
    };
    const list = (client, options) => client.projects.list({}, options).firstPage();
"""
)
"""A server that records the headers of requests and answers with an empty list."""
CALLER: Final = """
    const identity = { "x-principal-kind": "api_key", "x-principal-id": "k", "x-tenant-id": "acme", "x-mode": "live",
        "x-plan": "pro", "x-subscription-status": "active", "x-access": "full", "x-effective-plan": "pro" };
"""
"""The headers of the answer to a check."""


async def test_address_and_credential_are_those_of_the_environment(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        process.env.TENANTRY_BASE_URL = `${baseUrl}/api/v1`;
        process.env.TENANTRY_API_KEY = ` ${apiKey}\\n`;
        const own = (await new Tenantry().auth.whoami()).orgId;
        const given = await rejection(new Tenantry({ apiKey: "svc_live_x" }).auth.whoami());
        process.env.TENANTRY_OPERATOR_TOKEN = "op";
        const messages = [];
        for (const options of [{}, { organization: "acme" }, { baseUrl: "ftp://x" }]) {
            try { new Tenantry(options); } catch (error) { messages.push(`${error.name}: ${error.message}`); }
            delete process.env.TENANTRY_API_KEY;
        }
        process.env.TENANTRY_BASE_URL = "http://accounts.example.com";
        try { new Tenantry(); } catch (error) { messages.push(error.message); }
        print([own, given.code, messages]);
    """
    own, given, messages = await package.result_of(program, served.url, key_of(acme))
    assert (own, given) == (acme.id, "invalid_credential")
    assert messages == [
        "ConfigurationError: TENANTRY_API_KEY and TENANTRY_OPERATOR_TOKEN are both set: pass apiKey or operatorToken.",
        "ConfigurationError: organization is for users: the operator acts by client.tenant().",
        "ConfigurationError: baseUrl is not an address such as https://accounts.example.com",
        "TENANTRY_BASE_URL must be https: it receives credentials",
    ]


async def test_missing_credential_is_told_before_the_request(
    package: Package, nowhere: str
) -> None:
    program = """
        const calls = [tenantry.auth.whoami(), tenantry.projects.list().firstPage(),
            tenantry.request("GET", "/api/v1/plans"), tenantry.entitlements.consume({ feature: "exports" })];
        const failed = await Promise.all(calls.map(rejection));
        print([[...new Set(failed.map((error) => `${error.name}: ${error.message}`))],
            (await rejection(tenantry.apiKeys.reportLeak({ secret: "x" }, { retries: 0 }))).name]);
    """
    messages, unneeded = await package.result_of(program, nowhere)
    [message] = messages
    assert message == (
        "ConfigurationError: There is no credential: pass apiKey, tokens or operatorToken, "
        "or set TENANTRY_API_KEY or TENANTRY_OPERATOR_TOKEN."
    )
    assert unneeded == "ConnectionFailedError"


async def test_headers_are_those_of_the_client_of_its_copy_and_of_the_call(
    package: Package, served: Served
) -> None:
    program = (
        ASKED
        + """
        const copy = elsewhere.withOptions({ headers: { "X-Team": "billing", "X-Request-Id": "a" } });
        await list(elsewhere);
        await list(copy, { headers: { "x-request-id": "b", "User-Agent": "mine" } });
        await list(copy.withOptions({ apiKey: "svc_live_y", organization: "acme" }));
        await list(elsewhere);
        const names = ["authorization", "x-team", "x-request-id", "x-organization-id"];
        const agents = asked.map((headers) => headers["user-agent"]);
        print([asked.map((headers) => names.map((name) => headers[name] ?? null)), agents]);
        server.close();
    """
    )
    asked, agents = await package.result_of(program, served.url, "svc_live_x")
    assert asked == [
        ["Bearer svc_live_x", None, None, None],
        ["Bearer svc_live_x", "billing", "b", None],
        ["Bearer svc_live_y", "billing", "a", "acme"],
        ["Bearer svc_live_x", None, None, None],
    ]
    own = f"tenantry-client/{__version__}"
    assert agents == [own, "mine", own, own]


async def test_headers_of_the_client_are_not_sent_for_its_callers(
    package: Package, served: Served
) -> None:
    program = (
        ASKED
        + CALLER
        + """
        const own = elsewhere.withOptions({ headers: { "X-Team": "billing" } });
        server.removeAllListeners("request").on("request", ({ url, headers }, response) => {
            asked.push([url.split("/")[3], headers["x-team"] ?? null, headers.authorization]);
            response.writeHead(200, { ...identity, "content-type": "application/json" });
            response.end('{"used":1,"remaining":null,"resetsAt":null}');
        });
        const caller = await own.auth.verify(request("theirs"), null);
        await caller.consume({ feature: "exports" });
        await own.entitlements.consume({ feature: "exports" });
        print(asked);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "ours") == [
        ["auth", None, "Bearer theirs"],
        ["entitlements", None, "Bearer theirs"],
        ["entitlements", "billing", "Bearer ours"],
    ]


async def test_options_of_a_call_limit_its_time_and_its_attempts(
    package: Package, nowhere: str
) -> None:
    program = """
        let asked = 0;
        const fetch = async ({ method }, { signal }) => {
            asked += 1;
            if (method === "DELETE") return new Response(null, { status: 503 });
            return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
        };
        const client = new Tenantry({ baseUrl, apiKey, fetch });
        const key = { keyId: "key_1" };
        const failed = [];
        failed.push(await rejection(client.apiKeys.get(key, { attemptTimeout: 20, retries: 1 })));
        failed.push(await rejection(client.withOptions({ timeout: 20 }).apiKeys.get(key)));
        failed.push(await rejection(client.withOptions({ retries: 3 }).apiKeys.delete(key, { retries: 0 })));
        print([failed.map(({ name }) => name), asked]);
    """
    assert await package.result_of(program, nowhere, "svc_live_x") == [
        ["TimedOutError", "TimedOutError", "UnavailableError"],
        4,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            '{ timeout: "5" }',
            "timeout must be a number of milliseconds, above 0 and at most 86400000",
        ),
        ("{ timeout: Infinity }", "timeout must be a number of milliseconds, above 0 and"),
        ("{ attemptTimeout: 0 }", "attemptTimeout must be a number of milliseconds"),
        ("{ retries: 1.5 }", "retries must be a whole number, 0 or more"),
        (
            '{ headers: { "x-a": "b\\nc" } }',
            'the header "x-a" has characters that no header can carry',
        ),
        ('{ headers: { Authorization: "x" } }', "the client sets the header authorization itself"),
        ('{ headers: { "X-Organization-Id": "x" } }', "pass organization instead of a header"),
        ('{ headers: { "X-On-Behalf-Of": "x" } }', "call client.tenant() instead of a header"),
        ("{ maxRetries: 1 }", "there is no option maxRetries"),
    ],
)
async def test_wrong_option_is_told(
    package: Package, nowhere: str, options: str, message: str
) -> None:
    program = f"""
        const options = {options};
        const failed = [await rejection((async () => tenantry.withOptions(options))())];
        failed.push(await rejection(tenantry.projects.create({{ name: "x" }}, options)));
        print(failed.map((error) => error.message));
    """
    told = await package.result_of(program, nowhere, "svc_live_x")
    assert [each.startswith(message) for each in told] == [True, True], told


async def test_wrong_name_or_value_is_told_in_words(package: Package, nowhere: str) -> None:
    program = """
        const made = (...options) => async () => new Tenantry(...options);
        const { auth, entitlements, projects } = tenantry;
        const operator = new Tenantry({ baseUrl, operatorToken: "op" });
        const wrong = [made("svc_live_x"), made({ baseURL: "x" }), made({ baseUrl, apiKey: 3 }),
            () => auth.verify("Bearer x", null), () => auth.verify({ headers: {} }),
            () => auth.verify({ headers: {} }, null, { featur: "sso" }),
            () => auth.verify({ headers: {} }, null, { timeout: Infinity }),
            () => projects.create({ nmae: "x" }), () => projects.list({ limt: 2 }).firstPage(),
            () => projects.create({ name: "x", idempotencyKey: "a b" }),
            () => entitlements.consume({ feature: "exports", amuont: 2 }), async () => operator.tenant(),
            async () => operator.tenant("acme", { onBehalf: "ann" }),
            async () => tenantry.withOptions({ signal: AbortSignal.abort() }),
            () => tenantry.request("GET", "/api/v1/plans", { qurey: {} })];
        print(await Promise.all(wrong.map(async (each) => (await rejection((async () => each())())).message)));
    """
    assert await package.result_of(program, nowhere, "svc_live_x") == [
        "the options are an object: new Tenantry({ apiKey })",
        (
            "there is no option baseURL: they are baseUrl, apiKey, operatorToken, tokens, organization, allowHttp, "
            "fetch, timeout, attemptTimeout, retries"
        ),
        "apiKey is not a credential",
        "verify needs the request that your service received: { headers }",
        "undefined is not a scope such as reports:read, or null for any credential",
        "there is no option featur: they are feature, mode, apiKeyHeader, clientAddress, timeout",
        "timeout must be a number of milliseconds, above 0 and at most 86400000",
        "there is no parameter nmae",
        "there is no parameter limt",
        "idempotencyKey must be 1 to 255 visible ASCII characters",
        "there is no option amuont: they are feature, amount, idempotencyKey, onUnavailable",
        "tenantId must be 1 to 255 visible ASCII characters",
        "there is no option onBehalf: they are mode, onBehalfOf",
        (
            "there is no option signal: they are timeout, attemptTimeout, retries, headers, apiKey, "
            "organization"
        ),
        "there is no parameter qurey",
    ]


async def test_limit_of_a_caller_is_answered_at_once(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + CALLER
        + """
        let asked = 0;
        const answer = ({ url }, response) => {
            if (url.includes("verify")) return response.writeHead(200, identity).end();
            asked += 1;
            const body = JSON.stringify({ status: 429, code: "rate_limited", detail: "Wait." });
            response.writeHead(429, { "retry-after": "0" }).end(body);
        };
        const caller = await elsewhere.auth.verify(request("theirs"), null);
        const { name, isForCaller } = await rejection(caller.consume({ feature: "exports" }));
        const theirs = asked;
        await rejection(elsewhere.entitlements.consume({ feature: "exports" }, { retries: 1 }));
        print([name, isForCaller, theirs, asked - theirs]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "ours") == ["RateLimitedError", True, 1, 2]


async def test_result_has_its_raw_response(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { data, response, requestId } = await tenantry.projects.create({ name: "Zoë" }).withResponse();
        const page = await tenantry.projects.list().firstPage();
        const gone = await tenantry.projects.delete({ projectId: data.id }).withResponse();
        const failed = await rejection(tenantry.projects.get({ projectId: data.id }).withResponse());
        const made = { body: { name: "raw" }, idempotencyKey: "once" };
        const raw = await tenantry.request("post", "/api/v1/projects", made);
        const again = await tenantry.request("GET", "/api/v1/projects", { query: { limit: 1 } }).withResponse();
        const wrong = await rejection(tenantry.request("GET", "@example.com/"));
        await new Promise(setImmediate); // a second promise of a failed call would end the program
        print({ name: data.name, status: response.status, same: (await response.json()).id === data.id,
            ids: [requestId, gone.requestId, failed.requestId].map((id) => typeof id), gone: [gone.data ?? null,
            gone.response.status], page: page.response.status, limit: page.response.headers.has("ratelimit"),
            raw: raw.name, again: again.data.data.length, wrong: wrong.message });
    """
    assert await package.result_of(program, served.url, key_of(acme)) == {
        "name": "Zoë",
        "status": 201,
        "same": True,
        "ids": ["string"] * 3,
        "gone": [None, 204],
        "page": 200,
        "limit": True,
        "raw": "raw",
        "again": 1,
        "wrong": "path must begin with /",
    }


async def test_both_clients_have_the_same_error_for_each_status(
    package: Package, nowhere: str
) -> None:
    rejections = [
        *((status.value, "x") for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST),
        (403, "feature_not_granted"),
        (403, "quota_exceeded"),
        (404, "unknown_feature"),
    ]
    program = f"""
        const found = [];
        for (const [status, code] of {json.dumps(rejections)}) {{
            const fetch = async () => new Response(JSON.stringify({{ status, code, detail: "x" }}), {{ status }});
            const error = await rejection(new Tenantry({{ baseUrl, apiKey, fetch, retries: 0 }}).auth.whoami());
            const names = [error.name];
            let kind = error.constructor;
            for (; kind.name !== "Error"; kind = Object.getPrototypeOf(kind)) names.push(kind.name);
            found.push(names);
        }}
        print(found);
    """
    assert await package.result_of(program, nowhere, "svc_live_x") == [
        names_of(error_in_python(*each)) for each in rejections
    ]


def error_in_python(status: int, code: str) -> errors.APIError:
    content = json.dumps({"status": status, "code": code, "detail": "x"}).encode()
    return error_of(Response(status, {}, content), None)


def names_of(error: Any) -> list[str]:
    kinds = type(error).__mro__[: -len(Exception.__mro__)]
    return [type(error).__name__, *(kind.__name__ for kind in kinds)]
