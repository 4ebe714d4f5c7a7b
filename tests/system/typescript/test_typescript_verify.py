"""`auth.verify` of the TypeScript client."""

import itertools
import json

from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Served, serving
from tests.support.service import KEYS, Organization
from tests.support.typescript_client import ANOTHER_SERVER, Package, key_of


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
        print([{ ...caller, id: caller.id === key.id }, caller.effectivePlan, ...told]);
    """
    caller, effective_plan, forbidden, revoked = await package.result_of(
        program, served.url, key_of(acme)
    )
    assert caller == {
        "orgId": acme.id,
        "id": True,
        "kind": "api_key",
        "mode": "live",
        "plan": "free",
        "subscriptionStatus": "none",
        "access": {"state": "none", "plan": "free"},
        "externalId": "cus_4711",
        "features": [],
        "featuresCut": False,
    }
    assert effective_plan == "free"
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
    lost = (Failure.RESET_AFTER, Failure.TRUNCATED_HEAD, Failure.GARBAGE)
    for failure in (Failure.SILENT, Failure.UNAVAILABLE_AFTER, *lost):
        async with faulty_proxy(served.url, itertools.repeat(failure).__next__) as (url, proxy):
            assert await package.result_of(program, url, key_of(acme)) == expected, failure
        assert len(proxy.met) == (2 if failure in lost else 1)


async def test_verify_retries_a_lost_connection_once(
    package: Package, served: Served, acme: Organization
) -> None:
    failures = iter([Failure.RESET_BEFORE, Failure.NONE])
    async with faulty_proxy(served.url, lambda: next(failures)) as (url, proxy):
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


async def test_verify_says_whether_the_address_is_known(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const asked = [];
        const answer = (request, response) => {
            asked.push(request.headers["x-forwarded-for"]);
            response.writeHead(401).end();
        };
        for (const clientAddress of [undefined, "", "x\\r\\ny", "2001:db8::1", "192.0.2.7"]) {
            await rejection(elsewhere.auth.verify(request(apiKey), null, { clientAddress }));
        }
        print(asked);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        "unknown",
        "unknown",
        "unknown",
        "2001:db8::1",
        "192.0.2.7",
    ]


async def test_rejection_of_a_consuming_caller_is_for_them(
    package: Package, served: Served, acme: Organization
) -> None:
    key = await key_with(acme, "a:b")
    program = """
        const caller = await new Tenantry({ baseUrl }).auth.verify(request(KEY), "a:b");
        const { id } = await new Tenantry({ baseUrl, apiKey: KEY }).auth.whoami();
        await tenantry.apiKeys.delete({ keyId: id });
        const theirs = await rejection(caller.consume({ feature: "exports" }));
        const ours = await rejection(new Tenantry({ baseUrl, apiKey: KEY }).entitlements.consume({ feature: "x" }));
        let isAway = false;
        const fetch = (...asked) => isAway ? Promise.reject(new TypeError("away")) : globalThis.fetch(...asked);
        const client = new Tenantry({ baseUrl, fetch, retries: 0 });
        const known = await client.auth.verify(request(apiKey), null);
        isAway = true;
        const away = await rejection(known.consume({ feature: "exports" }));
        print([theirs, ours, away].map(({ statusCode, isForCaller }) => [statusCode, isForCaller]));
    """.replace("KEY", json.dumps(key))
    result = await package.result_of(program, served.url, key_of(acme))
    assert result == [[401, True], [401, False], [503, True]]
