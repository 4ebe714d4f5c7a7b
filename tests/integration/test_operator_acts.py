"""The operator acts for a tenant (CONTRACT 11.1): every route, and what its token may do there."""

from collections.abc import Iterator
from typing import Final

from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute

from tenantry.api.guards import Credential, OperatorRight, RouteGuard
from tenantry.app import litestar_routes
from tenantry.common.clock import Timeouts
from tests.support.app import OPERATOR_TOKEN, running_app
from tests.support.cases import cases
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    VERIFY,
    WHOAMI,
    Caller,
    Service,
    refusal,
)

ACT_AS: Final = "X-Act-As-Organization"
AUDIT: Final = "/api/v1/audit-events"
MEMBERS: Final = "/api/v1/members"
MISSING: Final = (400, "organization_required")
USER_NEEDED: Final = (403, "user_token_required")
NOT_FOUND: Final = (404, "not_found")
WRONG: Final = (401, "invalid_credential")
OF_TENANT: Final = "of a tenant"
OF_PERSON: Final = "of a person"
OF_OWN_TOKEN: Final = "of a tenant, by a person"
OF_OPERATOR: Final = "of the operator"
OF_ALL: Final = "of all"
MISMATCH: Final = (403, "org_mismatch")
USES: Final = (
    "/api/v1/entitlements/x/consume",
    "/api/v1/billing/checkout-sessions",
    "/api/v1/billing/portal-sessions",
)
SUSPENDED: Final = {"name": "n", "ownerEmail": "o@x.example", "suspended": True}


def kind_of(guard: RouteGuard) -> str:
    """Who may use a route."""
    if guard.credential is Credential.OPERATOR:
        return OF_OPERATOR
    if guard.operator is not OperatorRight.NEVER:
        return OF_ALL if guard.operator is OperatorRight.ALWAYS else OF_TENANT
    return OF_PERSON if guard.scope is None else OF_OWN_TOKEN


def routes() -> Iterator[tuple[str, str, str]]:
    """Method, path template and kind of every route of the API with a guard."""
    for route in litestar_routes().routes:
        if not isinstance(route, HTTPRoute) or not route.path_format.startswith("/api/v1/"):
            continue
        for handler in route.route_handlers:
            yield from methods(route.path_format, handler)


def methods(path: str, handler: HTTPRouteHandler) -> Iterator[tuple[str, str, str]]:
    for guard in handler.resolve_guards():
        if isinstance(guard, RouteGuard):
            yield from ((method, path, kind_of(guard)) for method in handler.http_methods)


ROUTES: Final = sorted(set(routes()) - {("OPTIONS", "", "")})


def filled(path: str, org: str) -> str:
    """A path whose parameters are a tenant and objects that it does not have."""
    parts = ("x" if part.startswith("{") else part for part in path.split("/"))
    return "/".join(parts).replace(f"{TENANTS}/x", f"{TENANTS}/{org}")


def acting(service: Service, org: str, **headers: str) -> Caller:
    """The operator, who acts for this tenant."""
    return service.caller(OPERATOR_TOKEN, X_Act_As_Organization=org, **headers)


async def answers(caller: Caller, org: str, kinds: set[str]) -> list[tuple[str, tuple[int, str]]]:
    """What a caller gets from all routes of these kinds."""
    found = []
    for method, path, kind in ROUTES:
        if kind in kinds:
            body: dict[str, str] | None = {} if method in {"POST", "PUT", "PATCH"} else None
            answer = await caller.call(method, filled(path, org), body)
            is_error = answer.status_code >= 400
            found.append(
                (f"{method} {path}", refusal(answer) if is_error else (answer.status_code, ""))
            )
    return found


def test_table_has_every_kind_of_route() -> None:
    kinds = {kind for _, _, kind in ROUTES}
    assert kinds == {OF_TENANT, OF_PERSON, OF_OWN_TOKEN, OF_OPERATOR, OF_ALL}
    assert sum(kind == OF_TENANT for _, _, kind in ROUTES) == 42


async def test_operator_with_a_tenant_is_an_owner_of_it(service: Service) -> None:
    org = await service.organization()
    for route, (status, code) in await answers(acting(service, org.id), org.id, {OF_TENANT}):
        assert status not in {400, 401, 403}, (route, code)


@cases(
    "headers",
    [
        {},
        {ACT_AS: ""},
        {ACT_AS: "a, b"},
        {"X-Organization-Id": "{org}"},
    ],
)
async def test_tenant_must_be_named_once(service: Service, headers: dict[str, str]) -> None:
    org = await service.organization()
    named = {name: text.format(org=org.id) for name, text in headers.items()}
    caller = service.caller(OPERATOR_TOKEN, **named)
    for route, answer in await answers(caller, org.id, {OF_TENANT}):
        assert answer == MISSING, route


async def test_tenant_is_not_named_in_both_headers(service: Service) -> None:
    org = await service.organization()
    caller = acting(service, org.id, X_Organization_Id=org.id)
    for route, answer in await answers(caller, org.id, {kind for _, _, kind in ROUTES}):
        assert answer == MISSING, route


async def test_header_twice_is_refused(service: Service) -> None:
    org = await service.organization()
    twice = [(b"Authorization", f"Bearer {OPERATOR_TOKEN}".encode())]
    twice += [(ACT_AS.encode(), org.id.encode())] * 2
    for path in (PROJECTS, KEYS, WHOAMI):
        answer = await service.client.get(path, headers=twice)
        assert refusal(answer) == MISSING


@cases("org", ["org-none", "a b", "x" * 65, "\xe4"])
async def test_unknown_tenant_is_not_found(service: Service, org: str) -> None:
    for route, answer in await answers(acting(service, org), "x", {OF_TENANT}):
        assert answer == (MISMATCH if "{tenant_id" in route else NOT_FOUND), route


async def test_ended_tenant_is_not_found(service: Service) -> None:
    org = await service.organization()
    assert (await service.operator.delete(org.path)).status_code == 204
    for route, answer in await answers(acting(service, org.id), org.id, {OF_TENANT}):
        assert answer == NOT_FOUND, route


async def test_suspended_tenant_can_be_read_and_repaired(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "a:b")
    assert (await service.operator.put(org.path, SUSPENDED)).is_success
    assert refusal(await org.owner.get(KEYS)) == (403, "org_suspended")
    caller = acting(service, org.id)
    for route, (status, code) in await answers(caller, org.id, {OF_TENANT}):
        is_use = route.removeprefix("POST ").replace("{feature}", "x") in USES
        assert (status in {400, 401, 403}) == is_use, (route, code)
    revoked = await caller.delete(key.path)
    made = await caller.post(KEYS, {"orgId": org.id, "name": "new", "scopes": ["a:b"]})
    assert (revoked.status_code, made.status_code) == (204, 201)


async def test_routes_of_a_person_need_the_persons_token(service: Service) -> None:
    org = await service.organization()
    for caller in (acting(service, org.id), service.operator):
        for route, answer in await answers(caller, org.id, {OF_PERSON}):
            assert answer == USER_NEEDED, route
    ended = await acting(service, org.id).post(f"{org.path}/end", {"name": org.id})
    assert refusal(ended) == USER_NEEDED


async def test_routes_of_the_operator_and_the_plans_need_no_tenant(service: Service) -> None:
    for caller in (service.operator, acting(service, "x")):
        for route, (status, code) in await answers(caller, "x", {OF_OPERATOR, OF_ALL}):
            assert (status, code) != MISSING, route
            assert status not in {401, 403}, (route, code)


async def test_other_tenants_path_is_refused(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    caller = acting(service, org.id)
    body = {"orgId": other.id, "name": "new", "scopes": ["a:b"]}
    assert refusal(await caller.post(KEYS, body)) == MISMATCH
    of_path = [one for one in ROUTES if "{tenant_id" in one[1]]
    assert len(of_path) > 10
    for method, path, _ in of_path:
        answer = await caller.call(method, filled(path, other.id), {})
        assert refusal(answer) == MISMATCH, (method, path)
    assert (await other.owner.get(other.path)).status_code == 200


async def test_suspended_tenants_use_is_refused_whatever_is_asked(service: Service) -> None:
    org = await service.organization()
    assert (await service.operator.put(org.path, SUSPENDED)).is_success
    for path in USES:
        for body in ({}, {"amount": 1}, {"plan": "pro"}):
            answer = await acting(service, org.id).post(path, body)
            assert refusal(answer) == (403, "org_suspended"), path


async def test_gateways_check_never_takes_the_token(service: Service) -> None:
    org = await service.organization()
    for path in (f"{VERIFY}-", f"{VERIFY}projects:read"):
        assert refusal(await acting(service, org.id).get(path)) == WRONG


@cases("path", [PROJECTS, WHOAMI, KEYS])
async def test_header_means_nothing_with_another_credential(service: Service, path: str) -> None:
    org, other = await service.organization(), await service.organization()
    headers = {"X_Act_As_Organization": other.id, "X_Act_In_Mode": "?", "X_On_Behalf_Of": "a b"}
    key = service.caller(str(org.owner.credential), **headers)
    user = service.caller(str(service.user("ada", org=org.id, role="owner").credential), **headers)
    for caller in (key, user):
        assert (await caller.get(path)).status_code == 200
        assert (await caller.get(WHOAMI)).json()["orgId"] == org.id
    for credential in (OPERATOR_TOKEN[:-1], f"{OPERATOR_TOKEN}x", f"x{OPERATOR_TOKEN}"):
        assert refusal(await service.caller(credential, **headers).get(path)) == WRONG


async def test_token_counts_as_bearer_credential_alone(service: Service) -> None:
    org = await service.organization()
    for name, value in (
        ("X-API-Key", OPERATOR_TOKEN),
        ("Authorization", f"Basic {OPERATOR_TOKEN}"),
        ("Authorization", f"Api-Key {OPERATOR_TOKEN}"),
        ("Authorization", OPERATOR_TOKEN),
        ("Cookie", f"token={OPERATOR_TOKEN}"),
    ):
        answer = await service.client.get(KEYS, headers={name: value, ACT_AS: org.id})
        assert answer.status_code == 401, name


async def test_whoami_is_the_operator(service: Service) -> None:
    org = await service.organization()
    shown = (await acting(service, org.id).get(WHOAMI)).json()
    assert {name: shown[name] for name in ("kind", "id", "orgId", "mode", "scopes")} == {
        "kind": "operator",
        "id": "operator",
        "orgId": org.id,
        "mode": "live",
        "scopes": ["*:*"],
    }


async def test_test_mode(service: Service) -> None:
    org = await service.organization()
    live, test = acting(service, org.id), acting(service, org.id, X_Act_In_Mode="test")
    made = await test.post(PROJECTS, {"name": "Storefront"})
    assert made.json()["mode"] == "test"
    for path in (PROJECTS, f"{PROJECTS}/"):
        assert (await test.get(path)).json() == {"data": [made.json()], "nextCursor": None}
        assert (await live.get(path)).json() == {"data": [], "nextCursor": None}
    assert refusal(await test.patch(org.path, {"name": "x"})) == (403, "mode_mismatch")
    for mode in ("", "Test", "live", "test, test"):
        wrong = acting(service, org.id, X_Act_In_Mode=mode)
        for path in (PROJECTS, WHOAMI):
            assert refusal(await wrong.get(path)) == (400, "invalid_request")


async def test_list_of_projects_has_pages(service: Service) -> None:
    org = await service.organization()
    caller = acting(service, org.id)
    for name in ("a", "b", "c"):
        await caller.post(PROJECTS, {"name": name})
    first = (await caller.get(PROJECTS, limit=2)).json()
    second = (await caller.get(PROJECTS, limit=2, cursor=first["nextCursor"])).json()
    assert [project["name"] for project in first["data"] + second["data"]] == ["c", "b", "a"]
    assert second["nextCursor"] is None
    assert refusal(await caller.get(PROJECTS, limit=0)) == (422, "validation_failed")


async def test_audit_names_the_operator_and_whom_it_represents(service: Service) -> None:
    org = await service.organization()
    for on_behalf_of in (None, "agent_7", f"sk-{org.key.caller.credential}", OPERATOR_TOKEN):
        headers = {} if on_behalf_of is None else {"X_On_Behalf_Of": on_behalf_of}
        caller = acting(service, org.id, **headers)
        await caller.post(KEYS, {"orgId": org.id, "name": "new", "scopes": ["a:b"]})
    found = (await acting(service, org.id).get(AUDIT, limit=4)).json()["data"]
    assert {(entry["actorKind"], entry["actorId"]) for entry in found} == {("operator", None)}
    told = [str(entry["onBehalfOf"])[:7] for entry in found]
    assert told == ["sha256:", "sha256:", "agent_7", "None"]


async def test_audit_of_a_route_of_the_operator_names_whom_it_represents(service: Service) -> None:
    org = await service.organization()
    caller = service.caller(OPERATOR_TOKEN, X_On_Behalf_Of="agent_7")
    assert (await caller.put(org.path, {"name": "Acme", "ownerEmail": "o@x.example"})).is_success
    found = (await org.owner.get(AUDIT, limit=1)).json()["data"]
    assert [(entry["actorKind"], entry["onBehalfOf"]) for entry in found] == [
        ("operator", "agent_7")
    ]


@cases("text", ["", "a b", "\xe4", "x" * 256])
async def test_text_about_whom_it_represents_must_be_visible(service: Service, text: str) -> None:
    org = await service.organization()
    caller = acting(service, org.id, X_On_Behalf_Of=text)
    for path in (PROJECTS, KEYS, WHOAMI):
        assert refusal(await caller.get(path)) == (400, "invalid_request")
    assert refusal(await caller.put(org.path, SUSPENDED)) == (400, "invalid_request")


async def post_once(caller: Caller, name: str) -> tuple[int, str]:
    """The status, and the id or code, that a request with an idempotency key gets."""
    answer = await caller.post(PROJECTS, {"name": name}, idempotency_key="k")
    told = answer.json()
    return answer.status_code, str(told.get("id", told.get("code")))


async def test_idempotency_key_is_of_the_operator_and_the_tenant(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    first = await post_once(acting(service, org.id), "a")
    again = await post_once(acting(service, org.id, X_On_Behalf_Of="b"), "a")
    elsewhere = await post_once(acting(service, other.id), "a")
    of_key = await post_once(org.owner, "a")
    of_test_mode = await post_once(acting(service, org.id, X_Act_In_Mode="test"), "a")
    assert again == first
    assert len({first, elsewhere, of_key, of_test_mode}) == 4
    assert await post_once(acting(service, org.id), "b") == (422, "idempotency_mismatch")


async def test_member_that_the_operator_adds_is_active(service: Service) -> None:
    org = await service.organization()
    made = await acting(service, org.id).post(MEMBERS, {"userId": "una", "role": "admin"})
    assert (made.status_code, made.json()["status"]) == (201, "active")


async def test_no_rate_limit_counts_the_operator(service: Service) -> None:
    org = await service.organization()
    for path in (WHOAMI, PROJECTS, KEYS):
        answer = await acting(service, org.id).get(path)
        assert answer.status_code == 200
        assert "ratelimit" not in answer.headers, path


async def test_caches_learn_what_chooses_the_tenant(service: Service) -> None:
    org = await service.organization()
    for path in (PROJECTS, WHOAMI):
        varying = (await acting(service, org.id).get(path)).headers["vary"]
        assert {"X-Act-As-Organization", "X-Act-In-Mode"} <= {*varying.split(", ")}
        assert "X-Act" not in (await org.owner.get(path)).headers["vary"]


async def test_database_away_is_503(service: Service) -> None:
    soon = Timeouts(connect=0.3)
    async with running_app("host=/nowhere", soon, OPERATOR_TOKEN=OPERATOR_TOKEN) as client:
        caller = Caller(client, OPERATOR_TOKEN, X_Act_As_Organization="acme")
        for path in (PROJECTS, KEYS, WHOAMI):
            assert refusal(await caller.get(path)) == (503, "auth_unavailable")


async def test_browsers_preflight_does_not_allow_the_headers(service: Service) -> None:
    answer = await service.client.options(
        KEYS,
        headers={
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "GET",
            "Access-Control-Request-Headers": ACT_AS,
        },
    )
    allowed = answer.headers.get("access-control-allow-headers", "").lower()
    assert "x-act" not in allowed
    assert "x-on-behalf-of" not in allowed
