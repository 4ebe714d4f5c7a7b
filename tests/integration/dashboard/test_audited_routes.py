"""Every route that changes something writes an audit entry with the actor."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenantry_devkit.identity_tokens import DemoUser
from tests.integration.dashboard.keys import CI
from tests.support.dashboard import (
    ADAM,
    AT_ACME,
    BERTA,
    OLIVIA,
    Dashboard,
    Person,
    running_with_provider,
)
from tests.support.routes import changing_routes

WITHOUT_AUDIT_ENTRY: Final = {
    "POST /api/v1/entitlements/{feature}/consume": "use is counted, not audited",
    **dict.fromkeys(
        (
            "DELETE /api/v1/entitlements/{feature}/consumptions",
            "DELETE /api/v1/entitlements/{feature}/consumptions/{idempotency_key}",
        ),
        "as consuming",
    ),
    "POST /sign-out": "a session is the user's, not the tenant's",
    "POST /account/end-other-sessions": "sessions are the user's, not the tenant's",
    "POST /orgs/{org_id}/settings/owner-address/send-confirmation": "a mail; by the operator an act",
    "POST /api/v1/invitations/confirmation": "a mail alone",
    "POST /invitation/confirmation": "a mail alone",
    **dict.fromkeys(
        (
            f"POST {path}/{{name}}/{action}"
            for path in (
                "/api/v1/operator/webhook-endpoints",
                "/operator/installation/webhooks",
            )
            for action in ("test", "enable", "resend")
        ),
        "endpoints are the deployment's, not a tenant's: the operator's trail has the entry",
    ),
    "POST /api/v1/tenants/{tenant_id}/api-keys/preview-import": "writes nothing",
    "POST /operator/orgs/{org_id}/events/check": "changes no tenant: `test_tenant_runs` looks at its act",
    "POST /operator/installation/checks": "changes nothing",
    "POST /confirm-address": "needs the mailed link: `test_mail_abuse` looks at its entry",
}
TESTED_SEPARATELY: Final = {
    "PUT /api/v1/operator/customers/{customer_id}",
    "DELETE /api/v1/operator/customers/{customer_id}",
    "POST /operator/installation/link",
    "POST /api/v1/tenants/{tenant_id}/verify-owner-address",
    "POST /api/v1/operator/tenants/{tenant_id}/suspend",
    "POST /api/v1/operator/tenants/{tenant_id}/resume",
    "POST /orgs/{org_id}/settings/general/delete",
    "POST /account/new-organization",
    "POST /operator/orgs/{org_id}/events/repair",
    "POST /api/v1/memberships/{membership_id}/accept",
    "DELETE /api/v1/me/memberships/{membership_id}",
    "POST /api/v1/invitations",
    "DELETE /api/v1/invitations/{invitation_id}",
    "POST /api/v1/invitations/{invitation_id}/resend",
    "POST /api/v1/invitations/accept",
    "POST /invitation/accept",
    "POST /orgs/{org_id}/settings/members/invitations/new",
    "POST /orgs/{org_id}/settings/members/invitations/{invitation_id}/resend",
    "POST /orgs/{org_id}/settings/members/invitations/{invitation_id}/withdraw",
    "POST /account/memberships/{membership_id}/accept",
    "POST /account/memberships/{membership_id}/decline",
    "POST /account/memberships/{membership_id}/leave",
    "POST /operator/orgs/{org_id}/suspend",
    "POST /operator/orgs/{org_id}/resume",
    "POST /operator/orgs/{org_id}/verify-owner-address",
    "POST /operator/orgs/{org_id}/billing/customers/new",
    "POST /operator/orgs/{org_id}/billing/customers/{customer_id}/move",
    "POST /operator/orgs/{org_id}/billing/customers/{customer_id}/unlink",
    "POST /operator/orgs/{org_id}/billing/grants/new",
    "POST /operator/orgs/{org_id}/billing/grants/{name}/edit",
    "POST /operator/orgs/{org_id}/billing/grants/{name}/end",
}
"""`test_operator_support.py` checks the entries of customers and verified addresses,
`test_operator_installation.py` that of a customer linked on the operator's page,
`test_invitations.py` those of the user's own memberships, `test_mail_invitations.py` and
`test_member_invitation_pages.py` those of invitations by mail, `test_general_page.py` those of the
beginning and the end of a tenant, `test_tenant_runs.py` those of repairs, and
`test_operator_customer.py` and `test_operator_billing.py` those of the operator's pages.
"""
NORA: Final = DemoUser("nora", "Nora New", "nora@new.example", None, None)
LIVE: Final = "/orgs/{org_id}/settings"
LIVE_POST: Final = f"POST {LIVE}"

Step = tuple[str, tuple[str, ...], Callable[[], Awaitable[object]]]


@pytest.fixture
async def dashboard(conninfo: str, people: Path) -> AsyncIterator[Dashboard]:
    async with running_with_provider(conninfo, people) as dashboard:
        yield dashboard


class Entries:
    """The trail of all tenants."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._known: set[str] = set()

    async def new(self) -> list[tuple[str, str, str | None]]:
        """Return the action, actor kind and actor of each entry since the last call."""
        async with await psycopg.AsyncConnection.connect(self._conninfo) as connection:
            cursor = await connection.execute(
                "SELECT id, action, actor_kind, actor_id FROM audit_events WHERE id <> ALL(%s) ORDER BY action",
                (list(self._known),),
            )
            rows = await cursor.fetchall()
        self._known |= {row[0] for row in rows}
        return [row[1:] for row in rows]


async def test_every_changing_route_writes_an_audit_entry(dashboard: Dashboard) -> None:
    olivia = await dashboard.sign_in(OLIVIA)
    entries = Entries(dashboard.conninfo)
    steps = [*api_steps(dashboard), *page_steps(dashboard, olivia)]
    await dashboard.call("POST", "/members", {"userId": "bob", "role": "owner"}, BERTA)
    await dashboard.accept_invitations()
    await entries.new()
    for route, actions, act in steps:
        await act()
        found = await entries.new()
        assert [action for action, _, _ in found] == sorted(actions), route
        by = {
            "POST /api/v1/api-keys/report-leak": ("anybody", None),
            "PUT /api/v1/tenants/{tenant_id}": ("operator", None),
            "DELETE /api/v1/tenants/{tenant_id}": ("operator", None),
            "POST /api/v1/tenants/{tenant_id}/api-keys/import": ("operator", None),
            "PUT /api/v1/tenants/{tenant_id}/grants/{name}": ("operator", None),
            "DELETE /api/v1/tenants/{tenant_id}/grants/{name}": ("operator", None),
            "DELETE /api/v1/operator/api-keys/{key_id}": ("operator", None),
            "POST /api/v1/tenants": ("user", NORA.sub),
            "POST /api/v1/tenants/{tenant_id}/end": ("user", NORA.sub),
            "POST /api/v1/tenants/{tenant_id}/transfer": ("user", BERTA.sub),
        }.get(route, ("user", OLIVIA.sub))
        assert {(kind, actor) for _, kind, actor in found} == ({by} if actions else set()), route
    requested = {route for route, _, _ in steps}
    known = requested | set(WITHOUT_AUDIT_ENTRY) | TESTED_SEPARATELY
    # the same handlers, with the author that test_operator_access looks at
    operators = {f"POST /operator{route.removeprefix('POST ')}" for route in known}
    assert known == changing_routes() - operators


def api_steps(dashboard: Dashboard) -> list[Step]:
    """Call each route of the API once."""
    ids: dict[str, str] = {}
    new_key = {"orgId": "acme", "name": "CI", "scopes": ["projects:read"]}

    async def make(kind: str, path: str, body: object) -> None:
        made = await dashboard.call("POST", path, body)
        ids.update({kind: made["id"], f"{kind} secret": made.get("secret", "")})

    async def leak() -> None:
        answer = await dashboard.api.post(
            "/api/v1/api-keys/report-leak", json={"secret": ids["leaked secret"]}
        )
        assert answer.status_code == 200

    def call(method: str, path: str, body: object = None) -> Callable[[], Awaitable[object]]:
        return lambda: dashboard.call(method, path.format(**ids), body)

    async def found_gamma() -> None:
        made = await dashboard.call("POST", "/tenants", gamma, NORA)
        ids["gamma"] = made["id"]

    contract = {"plan": "pro", "reason": "Contract 2027-014"}
    gamma = {"name": "Gamma", "ownerEmail": "g@gamma.example"}
    old_key = {"digest": "ab" * 32, "name": "Old", "scopes": ["projects:read"]}
    old_keys = {"algorithm": "sha256", "keys": [old_key]}
    api = "/api/v1"
    return [
        (
            f"POST {api}/projects",
            ("project.created",),
            lambda: make("project", "/projects", {"name": "One"}),
        ),
        (
            f"PATCH {api}/projects/{{project_id}}",
            ("project.updated",),
            call("PATCH", "/projects/{project}", {"name": "Two"}),
        ),
        (
            f"PATCH {api}/projects/{{project_id}}",
            (),
            call("PATCH", "/projects/{project}", {"name": "Two"}),
        ),
        (
            f"DELETE {api}/projects/{{project_id}}",
            ("project.deleted",),
            call("DELETE", "/projects/{project}"),
        ),
        (f"POST {api}/api-keys", ("api_key.created",), lambda: make("key", "/api-keys", new_key)),
        (
            f"PATCH {api}/api-keys/{{key_id}}",
            ("api_key.updated",),
            call("PATCH", "/api-keys/{key}", {"name": "Builds"}),
        ),
        (
            f"POST {api}/api-keys/{{key_id}}/rotate",
            ("api_key.created", "api_key.rotated"),
            call("POST", "/api-keys/{key}/rotate", {"overlapSeconds": 60}),
        ),
        (
            f"DELETE {api}/api-keys/{{key_id}}",
            ("api_key.revoked",),
            call("DELETE", "/api-keys/{key}"),
        ),
        (
            f"POST {api}/api-keys",
            ("api_key.created",),
            lambda: make("leaked", "/api-keys", new_key),
        ),
        (f"POST {api}/api-keys/report-leak", ("api_key.leak_reported",), leak),
        (
            f"POST {api}/api-keys",
            ("api_key.created",),
            lambda: make("stolen", "/api-keys", new_key),
        ),
        (
            f"DELETE {api}/operator/api-keys/{{key_id}}",
            ("api_key.revoked",),
            lambda: dashboard.operate("DELETE", f"/operator/api-keys/{ids['stolen']}"),
        ),
        (
            f"POST {api}/members",
            ("member.invited",),
            lambda: make("member", "/members", {"userId": "zoe", "role": "member"}),
        ),
        (
            f"PATCH {api}/members/{{member_id}}",
            ("member.updated",),
            call("PATCH", "/members/{member}", {"role": "admin"}),
        ),
        (
            f"DELETE {api}/members/{{member_id}}",
            ("member.removed",),
            call("DELETE", "/members/{member}"),
        ),
        (
            f"PATCH {api}/tenants/{{tenant_id}}",
            ("tenant.updated",),
            call("PATCH", "/tenants/acme", {"name": "Acme Inc."}),
        ),
        (
            f"POST {api}/tenants",
            ("member.added", "tenant.created"),
            found_gamma,
        ),
        (
            f"POST {api}/tenants/{{tenant_id}}/end",
            ("tenant.ended",),
            lambda: dashboard.call("POST", f"/tenants/{ids['gamma']}/end", {"name": "Gamma"}, NORA),
        ),
        (
            f"PUT {api}/tenants/{{tenant_id}}",
            ("tenant.created",),
            lambda: dashboard.operate("PUT", "/tenants/delta", gamma),
        ),
        (
            f"PUT {api}/tenants/{{tenant_id}}/grants/{{name}}",
            ("grant.set",),
            lambda: dashboard.operate("PUT", "/tenants/delta/grants/contract", contract),
        ),
        (
            f"PUT {api}/tenants/{{tenant_id}}/grants/{{name}}",
            (),
            lambda: dashboard.operate("PUT", "/tenants/delta/grants/contract", contract),
        ),
        (
            f"DELETE {api}/tenants/{{tenant_id}}/grants/{{name}}",
            ("grant.ended",),
            lambda: dashboard.operate("DELETE", "/tenants/delta/grants/contract"),
        ),
        (
            f"POST {api}/tenants/{{tenant_id}}/api-keys/import",
            ("api_key.imported",),
            lambda: dashboard.operate("POST", "/tenants/delta/api-keys/import", old_keys),
        ),
        (
            f"DELETE {api}/tenants/{{tenant_id}}",
            ("tenant.ended",),
            lambda: dashboard.operate("DELETE", "/tenants/delta"),
        ),
        (
            f"POST {api}/tenants/{{tenant_id}}/transfer",
            ("member.updated", "tenant.transferred"),
            lambda: dashboard.call(
                "POST",
                "/tenants/beta/transfer",
                {"userId": "bob", "ownerEmail": "bob@beta.example"},
                BERTA,
            ),
        ),
        (
            f"POST {api}/billing/checkout-sessions",
            ("billing.checkout_started",),
            call("POST", "/billing/checkout-sessions", {"plan": "pro"}),
        ),
        (
            f"POST {api}/billing/portal-sessions",
            ("billing.portal_opened",),
            call("POST", "/billing/portal-sessions"),
        ),
    ]


def page_steps(dashboard: Dashboard, olivia: Person) -> list[Step]:
    """Submit one form of each page; the last one transfers the tenant."""
    at: dict[str, str] = {}

    async def send(path: str, **fields: str | Sequence[str]) -> str:
        path = AT_ACME + path.format(**at)
        has_page = path.endswith(("/edit", "/new", "/general"))
        page = await (
            olivia.send(await olivia.open(path), path, **fields)
            if has_page
            else olivia.force(path, **fields)
        )
        assert page.status == 200, page.text
        return page.path.removeprefix(AT_ACME)

    async def project() -> None:
        at["project"] = await send("/projects/new", name="Three")

    async def key() -> None:
        await send("/settings/api-keys/new", **CI)
        at["key"] = (await dashboard.call("GET", "/api-keys?limit=1"))["data"][0]["id"]

    async def member() -> None:
        at["member"] = await send("/settings/members/new", userId="yann", role="member")

    async def join() -> None:
        await dashboard.call("POST", "/members", {"userId": ADAM.sub, "role": "owner"})
        await dashboard.accept_invitations()

    def form(path: str, **fields: str | Sequence[str]) -> Callable[[], Awaitable[object]]:
        return lambda: send(path, **fields)

    org, keys, members = "POST /orgs/{org_id}", f"{LIVE_POST}/api-keys", f"{LIVE_POST}/members"
    return [
        (f"{org}/projects/new", ("project.created",), project),
        (
            f"{org}/projects/{{project_id}}/edit",
            ("project.updated",),
            form("{project}/edit", name="Four"),
        ),
        (
            f"{org}/projects/{{project_id}}/delete",
            ("project.deleted",),
            form("{project}/delete", name="Four"),
        ),
        (f"{keys}/new", ("api_key.created",), key),
        (
            f"{keys}/{{key_id}}/edit",
            ("api_key.updated",),
            form("/settings/api-keys/{key}/edit", **{**CI, "name": "Renamed"}),
        ),
        (
            f"{keys}/{{key_id}}/flags",
            ("api_key.updated",),
            form("/settings/api-keys/{key}/flags", enabled="switched off"),
        ),
        (
            f"{keys}/{{key_id}}/flags",
            ("api_key.updated",),
            form("/settings/api-keys/{key}/flags", enabled=""),
        ),
        (
            f"{keys}/{{key_id}}/rotate",
            ("api_key.created", "api_key.rotated"),
            form("/settings/api-keys/{key}/rotate", overlap="3600"),
        ),
        (
            f"{keys}/{{key_id}}/revoke",
            ("api_key.revoked",),
            form("/settings/api-keys/{key}/revoke", word="Renamed"),
        ),
        (
            f"{LIVE_POST}/general",
            ("tenant.updated",),
            form("/settings/general", name="Acme Inc.", timeZone="Asia/Tokyo"),
        ),
        (
            f"{LIVE_POST}/general/billing-address",
            ("tenant.updated",),
            form("/settings/general/billing-address", ownerEmail="bills@acme.example"),
        ),
        (
            f"{LIVE_POST}/general/key-mails",
            ("tenant.updated",),
            form("/settings/general/key-mails", keyMails="off"),
        ),
        (f"{members}/new", ("member.invited",), member),
        (f"{members}/{{member_id}}/role", ("member.updated",), form("{member}/role", role="admin")),
        (f"{members}/{{member_id}}/remove", ("member.removed",), form("{member}/remove")),
        (
            f"{org}/billing/checkout",
            ("billing.checkout_started",),
            form("/billing/checkout", plan="pro"),
        ),
        (f"{org}/billing/portal", ("billing.portal_opened",), form("/billing/portal")),
        ("POST /api/v1/members", ("member.invited",), join),
        (
            f"{LIVE_POST}/transfer",
            ("member.updated", "tenant.transferred"),
            form(
                "/settings/transfer", userId=ADAM.sub, ownerEmail="a@acme.example", name="Acme Inc."
            ),
        ),
    ]
