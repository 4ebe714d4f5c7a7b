"""Calls of the TypeScript client: results, errors, lists and ids."""

import json

from tests.sdk.sdk_support import Served
from tests.support.app import OPERATOR_TOKEN
from tests.support.service import Organization
from tests.support.typescript_client import ANOTHER_SERVER, Package, key_of


async def test_a_key_is_created_listed_rotated_and_rejected_once_it_is_revoked(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { orgId } = await tenantry.auth.whoami();
        const names = ["Zoë", "名前", "a/b?c", "🔑", "last"];
        for (const name of names) await tenantry.apiKeys.create({ orgId, name, scopes: ["projects:read"] });
        const listed = [];
        for await (const key of tenantry.apiKeys.list({ orgId, limit: 2 })) listed.push(key);
        const rotated = await tenantry.apiKeys.rotate({ keyId: listed[0].id, overlapSeconds: 60 });
        const caller = new Tenantry({ baseUrl, tokens: async () => `${rotated.secret.reveal()}\\n` });
        const before = await caller.projects.list().firstPage();
        await tenantry.apiKeys.delete({ keyId: rotated.id });
        const { statusCode, code } = await rejection(caller.projects.list().firstPage());
        const isOfFirst = rotated.rotatedFrom === listed[0].id;
        print({ names: listed.map(({ name }) => name), isOfFirst, before, statusCode, code });
    """
    assert await package.result_of(program, served.url, key_of(acme)) == {
        "names": ["last", "🔑", "a/b?c", "名前", "Zoë", "key"],
        "isOfFirst": True,
        "before": {"data": [], "nextCursor": None},
        "statusCode": 401,
        "code": "api_key_revoked",
    }


async def test_rejection_is_an_error_with_the_problem_document(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const error = await rejection(tenantry.projects.create({ name: "" }));
        print({ typed: error instanceof APIError && error instanceof TenantryError, ...error, text: error.message });
    """
    error = await package.result_of(program, served.url, key_of(acme))
    assert error["typed"]
    assert (error["statusCode"], error["code"]) == (422, "validation_failed")
    assert error["document"]["type"] == "urn:tenantry:problem:validation_failed"
    assert error["detail"] == error["document"]["detail"]
    assert [fault["location"] for fault in error["errors"]] == ["name"]
    assert error["requestId"] == error["document"]["requestId"] == error["headers"]["x-request-id"]
    assert json.loads(error["content"]) == error["document"]
    assert error["requestId"] in error["text"]


async def test_audit_trail_is_exported_as_text(
    package: Package, served: Served, acme: Organization
) -> None:
    exported = await package.result_of(
        "print(await tenantry.auditEvents.export());", served.url, key_of(acme)
    )
    assert [json.loads(line)["action"] for line in exported.splitlines()] == [
        "api_key.created",
        "tenant.created",
    ]


async def test_list_iterates_over_items_and_pages_again_and_again(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        for (const name of ["a", "b", "c"]) await tenantry.projects.create({ name });
        const list = tenantry.projects.list({ limit: 2 });
        const names = async (items) => {
            const found = [];
            for await (const { name } of items) found.push(name);
            return found;
        };
        const pages = [];
        for await (const page of list.pages()) pages.push([page.data.length, page.nextCursor !== null, page.hasNext]);
        const first = await list.firstPage();
        const second = await first.next();
        const there = await tenantry.projects.list({ cursor: first.nextCursor }).firstPage();
        const plans = await names(tenantry.plans.list());
        print({ once: await names(list), again: await names(list), pages, second: second.data, there: there.data,
            end: (await rejection(second.next())).name, isPager: list instanceof Pager, plans: plans.length > 0,
            json: Object.keys(JSON.parse(JSON.stringify(first))) });
    """
    result = await package.result_of(program, served.url, key_of(acme))
    assert result["once"] == result["again"] == ["c", "b", "a"]
    assert result["pages"] == [[2, True, True], [1, False, False]]
    assert (
        [one["name"] for one in result["second"]]
        == [one["name"] for one in result["there"]]
        == ["a"]
    )
    assert (result["end"], result["isPager"], result["plans"]) == ("RangeError", True, True)
    assert result["json"] == ["data", "nextCursor"]


async def test_pages_are_fetched_on_demand(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        for (const name of ["a", "b", "c"]) await tenantry.projects.create({ name });
        let asked = 0;
        const counting = (...request) => { asked++; return fetch(...request); };
        const caller = new Tenantry({ baseUrl, apiKey, fetch: counting });
        const list = caller.projects.list({ limit: 1 });
        const counts = [asked];
        for await (const _ of list) {
            counts.push(asked);
            if (counts.length === 3) break;
        }
        print(counts);
    """
    assert await package.result_of(program, served.url, key_of(acme)) == [0, 1, 2]


async def test_creation_takes_an_idempotency_key(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const idempotencyKey = crypto.randomUUID();
        const create = () => tenantry.projects.create({ name: "x", idempotencyKey });
        print((await create()).id === (await create()).id);
    """
    assert await package.result_of(program, served.url, key_of(acme)) is True


async def test_ids_stay_within_their_part_of_the_path(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const ids = ["..", ".", "", "../api-keys", "%2e%2e", "x?y#z"];
        const failed = await Promise.all(ids.map((keyId) => rejection(tenantry.apiKeys.get({ keyId }))));
        failed.push(await rejection(tenantry.apiKeys.get({ id: "key_1" })));
        print(failed.map((error) => error.code ?? error.message));
    """
    assert await package.result_of(program, served.url, key_of(acme)) == [
        *["keyId is not an id"] * 3,
        *["not_found"] * 3,
        "there is no parameter id",
    ]


async def test_page_of_another_service_is_no_result(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const answers = [
            (response) => response.writeHead(200, { "content-type": "text/html" }).end("<h1>Welcome"),
            (response) => response.writeHead(204).end(),
            (response) => response.writeHead(302, { location: baseUrl }).end(),
            (response) => response.writeHead(404, { "content-type": "text/html" }).end("<h1>\\u0000Nothing\\nhere"),
        ];
        let answer;
        const errors = [];
        for (const one of answers) {
            answer = (_, response) => one(response);
            errors.push(await rejection(elsewhere.projects.list().firstPage()));
        }
        print(errors.map((error) => [error.name, error.message]));
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        [
            "UnreadableAnswerError",
            "The response (200, text/html) is not one of tenantry: check baseUrl.",
        ],
        [
            "UnreadableAnswerError",
            "The response (204, no type) is not one of tenantry: check baseUrl.",
        ],
        ["APIError", "302 http_302: The response gives no reason."],
        [
            "NotFoundError",
            "404 http_404: baseUrl is not the address of tenantry: another server answered. <h1> Nothing here",
        ],
    ]


async def test_response_is_empty_where_the_api_says_so(package: Package, nowhere: str) -> None:
    program = """
        const headers = { "content-type": "application/json" };
        const answers = [[204, null], [200, "{}"]];
        const found = [];
        for (const [status, body] of answers) {
            const fetch = async () => new Response(body, { status, headers: body === null ? {} : headers });
            const { tenants, invitations, members } = new Tenantry({ baseUrl, apiKey, fetch });
            const calls = [tenants.end({ tenantId: "acme", name: "Acme" }), members.delete({ memberId: "m" }),
                invitations.requestConfirmation({ token: "t" })];
            const results = await Promise.allSettled(calls);
            found.push(results.map(({ reason, value }) => reason?.name ?? value ?? null));
        }
        print(found);
    """
    assert await package.result_of(program, nowhere, "svc_live_x") == [
        [None] * 3,
        ["UnreadableAnswerError"] * 3,
    ]


async def test_prefix_of_the_api_is_no_part_of_the_address(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const found = [];
        for (const end of ["/api/v1", "/api/v1/", "/"]) {
            const client = new Tenantry({ baseUrl: baseUrl + end, apiKey });
            const received = { headers: { authorization: `Bearer ${apiKey}` } };
            found.push([(await client.auth.whoami()).orgId, (await client.auth.verify(received, null)).orgId]);
        }
        print(found);
    """
    expected = [[acme.id, acme.id]] * 3
    assert await package.result_of(program, served.url, key_of(acme)) == expected


async def test_operator_sets_lists_and_ends_grants(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { grants } = tenantry.operator;
        const made = await grants.put({ tenantId: ORG, name: "contract", plan: "pro", reason: "By contract." });
        const listed = [];
        for await (const { name } of grants.list({ tenantId: ORG })) listed.push(name);
        await grants.delete({ tenantId: ORG, name: "contract" });
        const { data } = await grants.list({ tenantId: ORG }).firstPage();
        print([made.plan, listed, data]);
    """.replace("ORG", f'"{acme.id}"')
    assert await package.result_of(program, served.url, OPERATOR_TOKEN) == [
        "pro",
        ["contract"],
        [],
    ]


async def test_operator_acts_for_a_tenant(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const operator = new Tenantry({ baseUrl, operatorToken: apiKey });
        const acting = operator.tenant(ORG, { onBehalfOf: "signup", mode: "test" });
        const { kind, orgId, mode } = await acting.auth.whoami();
        const made = await acting.projects.create({ name: "Storefront" });
        const [entry] = (await operator.tenant(ORG).auditEvents.list().firstPage()).data;
        const unnamed = await rejection(operator.auth.whoami());
        const unknown = await rejection(operator.tenant("org-none").auth.whoami());
        const codes = [unnamed, unknown].map(({ statusCode, code }) => [statusCode, code]);
        print([kind, orgId, mode, made.mode, entry.actorKind, entry.onBehalfOf, codes]);
    """.replace("ORG", json.dumps(acme.id))
    assert await package.result_of(program, served.url, OPERATOR_TOKEN) == [
        "operator",
        acme.id,
        "test",
        "test",
        "operator",
        "signup",
        [[400, "organization_required"], [404, "not_found"]],
    ]


async def test_only_a_client_of_the_operator_names_a_tenant_in_its_requests(
    package: Package, served: Served
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const asked = [];
        const names = ["authorization", "x-act-as-organization", "x-act-in-mode", "x-on-behalf-of"];
        const answer = (request, response) => {
            asked.push(names.map((name) => request.headers[name] ?? null));
            response.writeHead(404).end();
        };
        const { baseUrl: there } = { baseUrl: `http://127.0.0.1:${server.address().port}` };
        const operator = new Tenantry({ baseUrl: there, operatorToken: "op" });
        for (const client of [elsewhere, operator, operator.tenant("acme", { onBehalfOf: "a" })]) {
            await rejection(client.auth.whoami());
        }
        const wrong = [() => elsewhere.tenant("acme"), () => operator.tenant("a b"), () => operator.tenant(""),
            () => new Tenantry({ baseUrl: there, apiKey: "k", operatorToken: "op" })];
        const errors = wrong.map((each) => { try { each(); } catch (error) { return error.constructor.name; } });
        print([asked, errors]);
        server.close();
    """
    )
    asked, errors = await package.result_of(program, served.url, "svc_live_x")
    assert asked == [
        ["Bearer svc_live_x", None, None, None],
        ["Bearer op", None, None, None],
        ["Bearer op", "acme", None, "a"],
    ]
    assert errors == ["ConfigurationError", "TypeError", "TypeError", "ConfigurationError"]
