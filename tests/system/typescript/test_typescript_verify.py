"""`auth.verify` of the TypeScript client, and the Express example that uses it."""

import asyncio
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2

from tests.sdk.faulty_proxy import Fault, faulty_proxy
from tests.sdk.sdk_support import Served, serving
from tests.support.required import node
from tests.support.service import KEYS, Organization
from tests.support.typescript_client import ANOTHER_SERVER, ROOT, Package, key_of

EXAMPLE: Final = ROOT / "examples" / "express" / "server.js"


async def key_with(organization: Organization, *scopes: str, **fields: object) -> str:
    made = await organization.owner.post(
        KEYS, {"orgId": organization.id, "name": "k", "scopes": scopes, **fields}
    )
    return str(made.json()["secret"])


async def test_verify_passes_the_rate_limit_on(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const policy = { "ratelimit": '"tenant";r=0;t=7', "ratelimit-policy": '"tenant";q=600;w=60' };
        const told = { "retry-after": "7", ...policy, "set-cookie": "x" };
        const body = JSON.stringify({ status: 429, code: "rate_limited", detail: "Wait.", requestId: "r" });
        const answer = (_, response) => response.writeHead(429, told).end(body);
        const { statusCode, headersToPassOn } = await rejection(elsewhere.auth.verify(request(apiKey), null));
        print([statusCode, headersToPassOn]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        429,
        {
            "Cache-Control": "no-store",
            "Retry-After": "7",
            "RateLimit": '"tenant";r=0;t=7',
            "RateLimit-Policy": '"tenant";q=600;w=60',
        },
    ]


async def test_verify_returns_the_caller_until_its_key_is_revoked(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { orgId } = await tenantry.auth.whoami();
        const externalId = "cus_4711";
        const key = await tenantry.apiKeys.create({ orgId, name: "x", scopes: ["reports:read"], externalId });
        const gateway = new Tenantry({ baseUrl });
        const of = new Headers(request(key.secret.reveal()).headers);
        const asked = { headers: { get: (name) => of.get(name) } }; // as Headers of another realm
        const caller = await gateway.auth.verify(asked, "reports:read");
        const forbidden = await rejection(gateway.auth.verify(request(key.secret.reveal()), "reports:write"));
        await tenantry.apiKeys.delete({ keyId: key.id });
        const revoked = await rejection(gateway.auth.verify(request(key.secret.reveal()), null));
        const told = [forbidden, revoked].map((error) =>
            [error.statusCode, error.code, error.headersToPassOn["WWW-Authenticate"]]);
        print([{ ...caller, id: caller.id === key.id }, ...told]);
    """
    caller, forbidden, revoked = await package.result_of(program, served.url, key_of(acme))
    assert caller == {
        "orgId": acme.id,
        "id": True,
        "kind": "api_key",
        "mode": "live",
        "plan": "free",
        "subscriptionStatus": "none",
        "access": "none",
        "effectivePlan": "free",
        "externalId": "cus_4711",
        "features": [],
    }
    assert forbidden[:2] == [403, "insufficient_scope"]
    assert 'scope="reports:write"' in forbidden[2]
    assert revoked[:2] == [401, "api_key_revoked"]
    assert 'error="invalid_token"' in revoked[2]


async def test_verify_rejects_what_is_no_single_valid_credential(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const values = [undefined, "", "Bearer", "Bearer svc_live_x", "Bearer \\u00e9", "Bearer \\u0100",
            "Bearer a\\nb", [`Bearer ${apiKey}`, `Bearer ${apiKey}`], `Basic ${apiKey}`];
        const codes = [];
        for (const authorization of values) {
            const error = await rejection(tenantry.auth.verify({ headers: { authorization } }, null));
            codes.push([error.statusCode, error.code]);
        }
        const doubled = new Headers(request(apiKey).headers);
        doubled.append("authorization", `Bearer ${apiKey}`);
        codes.push([(await rejection(tenantry.auth.verify({ headers: doubled }, null))).statusCode]);
        print(codes);
    """
    codes = await package.result_of(program, served.url, key_of(acme))
    assert codes[0] == [401, "missing_credential"]
    assert {status for status, *_ in codes} == {401}


async def test_verify_passes_on_the_header_for_keys_where_it_is_named(
    package: Package, conninfo: str
) -> None:
    program = """
        const sent = { headers: { "X-Api-Key": apiKey } };
        const named = { apiKeyHeader: "X-API-Key" };
        const twice = { headers: { "x-api-key": apiKey, authorization: `Bearer ${apiKey}` } };
        const caller = await tenantry.auth.verify(sent, null, named);
        const unnamed = await rejection(tenantry.auth.verify(sent, null));
        const both = await rejection(tenantry.auth.verify(twice, null, named));
        const wrong = await rejection(tenantry.auth.verify(sent, null, { apiKeyHeader: "X API Key" }));
        print([caller.id, unnamed.code, both.code, wrong.name]);
    """
    async with serving(conninfo, API_KEY_HEADER="X-API-Key", KEY_PREFIX="acme") as served:
        acme = await served.service.organization()
        found = await package.result_of(program, served.url, key_of(acme))
    assert found == [acme.key.id, "missing_credential", "invalid_credential", "TypeError"]


async def test_verify_takes_the_organization_that_the_request_names(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const naming = (name) => ({ headers: { ...request(apiKey).headers, "x-organization-id": name } });
        const names = ["another", "\\u00e9", ["a", "b"]];
        const errors = await Promise.all(names.map((name) => rejection(tenantry.auth.verify(naming(name), null))));
        print(errors.map(({ code }) => code));
    """
    token = str(served.service.user("ada", org=acme.id, role="owner").credential)
    assert await package.result_of(program, served.url, token) == ["org_mismatch"] * 3


async def test_verify_accepts_test_keys_only_where_it_is_told_to(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const modes = [undefined, "live", "test", "any"];
        print(await Promise.all(modes.map(async (mode) => {
            const answer = tenantry.auth.verify(request(apiKey), null, { mode });
            return (await rejection(answer))?.code ?? (await answer).mode;
        })));
    """
    key = await key_with(acme, "reports:read", mode="test")
    assert await package.result_of(program, served.url, key) == [
        "mode_mismatch",
        "mode_mismatch",
        "test",
        "test",
    ]


async def test_verify_takes_scopes_only(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const scopes = ["", "-", "..", "../whoami", "a:b/../../whoami", "a:b?x", "A:b", "-/mode/any"];
        const check = (...options) => rejection(tenantry.auth.verify(request(apiKey), ...options));
        const errors = await Promise.all(scopes.map((scope) => check(scope)));
        errors.push(await check(null, { mode: "../../x:y" }));
        print(errors.map(({ name }) => name));
    """
    assert await package.result_of(program, served.url, key_of(acme)) == ["TypeError"] * 9


async def test_verify_finds_the_header_in_any_case(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const capital = { Authorization: `Bearer ${apiKey}` };
        const twice = { ...capital, ...request(apiKey).headers };
        print([(await tenantry.auth.verify({ headers: capital }, null)).orgId,
            (await rejection(tenantry.auth.verify({ headers: twice }, null))).statusCode]);
    """
    assert await package.result_of(program, served.url, key_of(acme)) == [acme.id, 401]


async def test_verify_rejects_when_tenantry_is_unreachable(
    package: Package, served: Served, acme: Organization, nowhere: str
) -> None:
    program = """
        const error = await rejection(tenantry.auth.verify(request(apiKey), null, { timeout: 300 }));
        print([error.statusCode, error.code, JSON.parse(error.content).status, error.headersToPassOn["Retry-After"]]);
    """
    expected = [503, "auth_unavailable", 503, "1"]
    assert await package.result_of(program, nowhere, key_of(acme)) == expected
    lost = (Fault.RESET_AFTER, Fault.TRUNCATED_HEAD, Fault.GARBAGE)
    for fault in (Fault.SILENT, Fault.UNAVAILABLE_AFTER, *lost):
        async with faulty_proxy(served.url, lambda fault=fault: fault) as (url, proxy):  # type: ignore[misc]
            assert await package.result_of(program, url, key_of(acme)) == expected, fault
        assert len(proxy.met) == (2 if fault in lost else 1)


async def test_verify_retries_a_lost_connection_once(
    package: Package, served: Served, acme: Organization
) -> None:
    faults = iter([Fault.RESET_BEFORE, Fault.NONE])
    async with faulty_proxy(served.url, lambda: next(faults)) as (url, proxy):
        program = "print((await tenantry.auth.verify(request(apiKey), null)).orgId);"
        assert await package.result_of(program, url, key_of(acme)) == acme.id
    assert len(proxy.met) == 2


async def test_verify_rejects_when_another_server_answers(
    package: Package, served: Served, acme: Organization
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const names = ["tenant-id", "principal-id", "principal-kind", "mode", "plan", "subscription-status", "access",
            "effective-plan"];
        const identity = Object.fromEntries(names.map((name) => [`x-${name}`, "x"]));
        const answers = [[200, {}], [200, { "x-tenant-id": "acme" }], [204, identity], [201, identity],
            [302, { location: "/granted" }], [307, { ...identity, location: "/granted" }],
            [401, {}], [404, {}], [500, {}]];
        let answer;
        const codes = [];
        for (const [status, headers] of answers) {
            answer = ({ url }, response) => {
                const granted = url === "/granted"; // where a redirect leads
                response.writeHead(granted ? 200 : status, granted ? identity : headers).end();
            };
            codes.push((await rejection(elsewhere.auth.verify(request(apiKey), null)))?.code);
        }
        answer = (_, response) => response.writeHead(200, identity).end();
        print([codes, (await elsewhere.auth.verify(request(apiKey), null)).orgId]);
        server.close();
    """
    )
    codes, accepted = await package.result_of(program, served.url, key_of(acme))
    assert codes == ["auth_unavailable"] * 9
    assert accepted == "x"  # what is rejected above is not the identity


@asynccontextmanager
async def express_service(package: Package, base_url: str) -> AsyncIterator[str]:
    """The example's address, while it runs."""
    shutil.copy(EXAMPLE, package.folder / "server.js")
    process = await asyncio.create_subprocess_exec(
        node(),
        "server.js",
        cwd=package.folder,
        env={"TENANTRY_BASE_URL": base_url, "PORT": "0"},
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.communicate()


async def test_express_example_lets_only_callers_with_the_scope_in(
    package: Package, served: Served, acme: Organization, nowhere: str
) -> None:
    reader = await served.service.key(acme.owner, acme.id, "reports:read")
    other = await served.service.key(acme.owner, acme.id, "projects:read")
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def ask(url: str, credential: str | None) -> httpx2.Response:
            return await client.get(
                url, headers={"Authorization": f"Bearer {credential}"} if credential else {}
            )

        async with express_service(package, served.url) as url:
            assert (await ask(url, reader.caller.credential)).json() == {
                "tenant": acme.id,
                "reports": [],
            }
            missing = await ask(url, None)
            assert missing.headers["www-authenticate"] == 'Bearer realm="api"'
            assert missing.headers["content-type"].startswith("application/problem+json")
            assert missing.json()["code"] == "missing_credential"
            assert (await ask(url, other.caller.credential)).json()["code"] == "insufficient_scope"
            two = [
                ("Authorization", f"Bearer {caller.credential}")
                for caller in (reader.caller, other.caller)
            ]
            assert (await client.get(url, headers=two)).json()["code"] == "invalid_credential"
            await acme.owner.delete(reader.path)
            assert (await ask(url, reader.caller.credential)).json()["code"] == "api_key_revoked"
        async with express_service(package, nowhere) as url:
            unavailable = await ask(url, other.caller.credential)
            assert (unavailable.status_code, unavailable.headers["retry-after"]) == (503, "1")
