"""Features and quotas with the TypeScript client."""

from collections.abc import AsyncIterator

import pytest

from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Served, serving
from tests.support.app import OPERATOR_TOKEN
from tests.support.catalogs import catalog_file
from tests.support.feature_catalog import CATALOG, tenant_of
from tests.support.postgres import PostgresServer
from tests.support.service import Organization
from tests.support.typescript_client import Package, key_of


@pytest.fixture(scope="module")
async def selling(postgres: PostgresServer) -> AsyncIterator[Served]:
    """The service with features in its plan catalog."""
    with postgres.database() as conninfo:
        async with serving(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as running:
            yield running


@pytest.fixture
async def basic(selling: Served) -> Organization:
    return await tenant_of(selling.service, "basic")


async def test_entitlements_are_listed_and_read(
    package: Package, selling: Served, basic: Organization
) -> None:
    program = """
        const granted = [];
        for await (const each of tenantry.entitlements.list()) if (each.granted) granted.push(each.feature);
        const { limit, remaining, source } = await tenantry.entitlements.get({ feature: "exports" });
        const unknown = await rejection(tenantry.entitlements.get({ feature: "x" }));
        print([granted, limit, remaining, source, unknown.code]);
    """
    assert await package.result_of(program, selling.url, key_of(basic)) == [
        ["audit-log", "exports"],
        10,
        10,
        "plan",
        "unknown_feature",
    ]


async def test_use_is_counted_until_the_quota_is_exceeded(
    package: Package, selling: Served, basic: Organization
) -> None:
    program = """
        const one = await tenantry.entitlements.consume({ feature: "exports" });
        const once = { feature: "exports", amount: 8, idempotencyKey: "export-7" };
        const used = [await tenantry.entitlements.consume(once), await tenantry.entitlements.consume(once)];
        const errors = [];
        for (const feature of ["exports", "sso"]) {
            const failure = { feature, amount: 2, onUnavailable: "allow" };
            errors.push(await rejection(tenantry.entitlements.consume(failure)));
        }
        print([one.used, one.counted, used.map(({ remaining }) => remaining),
            errors.map((error) => [error.name, error.code, error instanceof EntitlementDeniedError])]);
    """
    assert await package.result_of(program, selling.url, key_of(basic)) == [
        1,
        True,
        [1, 1],
        [
            ["QuotaExceededError", "quota_exceeded", True],
            ["ConflictError", "feature_not_metered", False],
        ],
    ]


async def test_lost_answers_of_consume_count_once(
    package: Package, selling: Served, basic: Organization
) -> None:
    failures = iter([Failure.RESET_AFTER, Failure.UNAVAILABLE_AFTER, Failure.TRUNCATED])
    program = """
        print((await tenantry.entitlements.consume({ feature: "exports", amount: 4 })).used);
    """
    async with faulty_proxy(selling.url, lambda: next(failures, Failure.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(basic)) == 4


async def test_unreachable_service_raises_allows_or_denies(package: Package, nowhere: str) -> None:
    program = """
        const elsewhere = new Tenantry({ baseUrl, apiKey, retries: 0 });
        const consume = (onUnavailable) => elsewhere.entitlements.consume(
            { feature: "exports", idempotencyKey: "once", ...(onUnavailable && { onUnavailable }) });
        const raised = await rejection(consume());
        const allowed = await consume("allow");
        const denied = await rejection(consume("deny"));
        const wrong = await rejection(consume("open"));
        print([raised.name, allowed, denied.name, denied.statusCode, denied.idempotencyKey,
            denied.cause.name, JSON.parse(denied.content).code, wrong.name]);
    """
    assert await package.result_of(program, nowhere, "svc_live_x") == [
        "ConnectionFailedError",
        {"used": None, "remaining": None, "resetsAt": None, "counted": False},
        "EntitlementDeniedError",
        403,
        "once",
        "ConnectionFailedError",
        "entitlement_unavailable",
        "TypeError",
    ]


async def test_check_of_a_caller_needs_the_feature(
    package: Package, selling: Served, basic: Organization
) -> None:
    program = """
        const verify = (feature) => tenantry.auth.verify(request(apiKey), null, { feature });
        const caller = await verify("audit-log");
        const missing = await rejection(verify("sso"));
        const wrong = await rejection(verify("sso/mode/any"));
        const unknown = await rejection(verify("ssso"));
        const codes = [missing.statusCode, unknown.code, unknown instanceof UnknownFeatureError];
        codes.push(unknown instanceof NotFoundError, caller.has("exports"), caller.has("sso"));
        print([caller.features, missing instanceof FeatureNotGrantedError, ...codes, wrong.name]);
    """
    assert await package.result_of(program, selling.url, key_of(basic)) == [
        ["audit-log", "exports"],
        True,
        403,
        "unknown_feature",
        True,
        True,
        True,
        False,
        "TypeError",
    ]


async def test_caller_consumes_by_its_own_credential(
    package: Package, selling: Served, basic: Organization
) -> None:
    program = """
        const { inspect } = await import("node:util");
        const gateway = new Tenantry({ baseUrl });
        const caller = await gateway.auth.verify(request(apiKey), null);
        const once = { feature: "exports", amount: 8, idempotencyKey: "export-7" };
        const used = [await caller.consume(once), await caller.consume(once)];
        const exceeded = await rejection(caller.consume({ feature: "exports", amount: 3 }));
        const shown = [inspect(caller, { depth: 9, showHidden: true }), JSON.stringify(caller)].join();
        print([used.map(({ remaining }) => remaining), exceeded.name, shown.includes(apiKey)]);
    """
    assert await package.result_of(program, selling.url, key_of(basic)) == [
        [2, 2],
        "QuotaExceededError",
        False,
    ]


async def test_operator_consumes_for_a_tenant(
    package: Package, selling: Served, basic: Organization
) -> None:
    program = f"""
        const tenant = new Tenantry({{ baseUrl, operatorToken: apiKey }}).tenant("{basic.id}");
        print((await tenant.entitlements.consume({{ feature: "exports", amount: 2 }})).remaining);
    """
    assert await package.result_of(program, selling.url, OPERATOR_TOKEN) == 8


async def test_operator_gives_back_for_a_tenant(
    package: Package, selling: Served, basic: Organization
) -> None:
    program = f"""
        const {{ entitlements }} = new Tenantry({{ baseUrl, operatorToken: apiKey }}).tenant("{basic.id}");
        const once = {{ feature: "exports", idempotencyKey: "jobs/7?#%2F" }};
        await entitlements.consume({{ ...once, amount: 2 }});
        const returned = [await entitlements.giveBack(once), await entitlements.giveBack(once)];
        const again = await rejection(entitlements.consume(once));
        print([returned.map(({{ used, remaining }}) => [used, remaining]), again.code]);
    """
    assert await package.result_of(program, selling.url, OPERATOR_TOKEN) == [
        [[0, 10], [0, 10]],
        "consumption_given_back",
    ]


async def test_feature_that_was_cut_from_the_list_is_unknown(
    package: Package, nowhere: str
) -> None:
    program = """
        const headers = { "x-principal-kind": "api_key", "x-principal-id": "k", "x-tenant-id": "acme", "x-mode": "live",
            "x-plan": "pro", "x-subscription-status": "active", "x-access": "full", "x-effective-plan": "pro",
            "x-features": "exports,..." };
        const gateway = new Tenantry({ baseUrl, fetch: async () => new Response(null, { headers }) });
        const caller = await gateway.auth.verify(request("x"), null);
        const unknown = await rejection((async () => caller.has("sso"))());
        print([caller.features, caller.featuresCut, caller.has("exports"), unknown.message]);
    """
    assert await package.result_of(program, nowhere) == [
        ["exports"],
        True,
        True,
        'The service named only some of the features: pass feature: "sso" to verify()',
    ]
