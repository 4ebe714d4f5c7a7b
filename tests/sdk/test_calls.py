"""Both clients against the service."""

import asyncio
import contextlib
import secrets
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from tenantry_sdk import AsyncTenantry, Secret, Tenantry, errors, record_responses
from tests.sdk.sdk_support import Flavour, Served, answered_by
from tests.support.app import OPERATOR_TOKEN
from tests.support.cases import cases
from tests.support.issuer import NOW


async def test_key_is_made_used_rotated_and_ended(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    ends = NOW + timedelta(days=30)
    async with flavour.client_of(served, organization) as owner:
        made = await owner.api_keys.create(
            org_id=organization.id, name="CI", scopes=["projects:read"], expires_at=ends
        )
        async with flavour.client(made.secret, base_url=served.url) as ci:
            assert (await ci.auth.whoami()).scopes == ["projects:read"]
            renamed = await owner.api_keys.update(made.id, name="CI of the app")
            rotated = await owner.api_keys.rotate(made.id)
            with pytest.raises(errors.AuthenticationError) as revoked:
                await ci.auth.whoami()
        await owner.api_keys.delete(rotated.id)
        shown = await owner.api_keys.get(rotated.id)
    assert (renamed.name, renamed.expires_at, renamed.scopes) == (
        "CI of the app",
        ends,
        ["projects:read"],
    )
    assert (rotated.rotated_from, rotated.secret == made.secret) == (made.id, False)
    assert revoked.value.code == "api_key_revoked"
    assert revoked.value.request_id is not None
    assert (shown.status, shown.revoked_at is not None) == ("revoked", True)


async def test_key_has_an_external_id_and_metadata(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        made = await owner.api_keys.create(
            name="CI", scopes=["projects:read"], external_id="cus_4711", metadata={"team": "growth"}
        )
        listed = [key.id async for key in owner.api_keys.list(external_id="cus_4711")]
        async with flavour.client(made.secret, base_url=served.url) as ci:
            caller = await ci.auth.whoami()
        changed = await owner.api_keys.update(made.id, metadata={"tier": "gold"})
        cleared = await owner.api_keys.update(made.id, external_id=None, metadata=None)
    assert listed == [made.id]
    assert (caller.external_id, caller.metadata) == ("cus_4711", {"team": "growth"})
    assert (changed.external_id, changed.metadata) == ("cus_4711", {"tier": "gold"})
    assert (cleared.external_id, cleared.metadata) == (None, {})


async def test_list_iterates_over_all_pages(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        made = [(await owner.projects.create(name=f"Project {number}")).id for number in range(3)]
        listed = [project.id async for project in owner.projects.list(limit=2)]
        pages = [len(page.data) async for page in owner.projects.list(limit=2).pages()]
        first = await owner.projects.list(limit=2).first_page()
        rest = [project.id async for project in owner.projects.list(cursor=first.next_cursor)]
    assert listed == made[::-1]
    assert pages == [2, 1]
    assert rest == made[:1]


async def test_operator_reads_and_revokes_across_tenants(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    record = organization.key.record
    async with flavour.client(OPERATOR_TOKEN, base_url=served.url) as client:
        operator = client.operator
        wanted = operator.tenants.list(search=organization.id, access="none", suspended=False)
        [tenant] = [tenant async for tenant in wanted]
        assert tenant == await operator.tenants.get(organization.id)
        keys = [
            key
            async for key in operator.api_keys.list(search=f"{record['start']}...{record['last4']}")
        ]
        old = {
            "digest": secrets.token_hex(32),
            "name": "old",
            "scopes": ["projects:read"],
            "externalId": "1",
        }
        for status in ("created", "exists"):
            done = await operator.api_keys.import_keys(
                organization.id, algorithm="sha256", keys=[old]
            )
            assert [(key.external_id, key.status) for key in done.data] == [("1", status)]
        await operator.api_keys.delete(organization.key.id, force=True)
        parked = [event async for event in operator.parked_events.list()]
    assert (tenant.id, tenant.owner_email, tenant.suspended) == (
        organization.id,
        "owner@x.example",
        False,
    )
    assert [(key.id, key.org_id) for key in keys] == [(organization.key.id, organization.id)]
    assert parked == []
    async with flavour.client_of(served, organization) as owner:
        with pytest.raises(errors.AuthenticationError):
            await owner.auth.whoami()


async def test_operator_sets_lists_and_ends_a_grant(served: Served, flavour: Flavour) -> None:
    org = await served.service.organization()
    until = datetime(2099, 1, 1, tzinfo=UTC)
    async with flavour.client(OPERATOR_TOKEN, base_url=served.url) as client:
        grants = client.operator.grants
        made = await grants.put(
            org.id,
            "contract",
            reason="by invoice",
            plan="pro",
            limits={"apiKeys": 500},
            until=until,
        )
        listed = [grant async for grant in grants.list(tenant_id=org.id)]
        ended = await grants.delete(org.id, "contract")
        left = [grant async for grant in grants.list(tenant_id=org.id)]
    assert (made.plan, made.limits, made.until) == ("pro", {"apiKeys": 500}, until)
    assert (listed, left) == ([made], [])
    assert (ended.name, ended.ended_at is None) == ("contract", False)


async def test_list_can_be_iterated_again(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        keys = owner.api_keys.list(status="active")
        before = [key.id async for key in keys]
        await owner.api_keys.create(org_id=organization.id, name="new", scopes=["projects:read"])
        after = [key.id async for key in keys]
    assert (len(before), len(after)) == (1, 2)


async def test_project_is_changed_and_deleted(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        made = await owner.projects.create(name="Zoë", description="First")
        renamed = await owner.projects.update(made.id, name="Zoé")
        cleared = await owner.projects.update(made.id, description=None)
        await owner.projects.delete(made.id)
        with pytest.raises(errors.NotFoundError):
            await owner.projects.get(made.id)
    assert (renamed.name, renamed.description) == ("Zoé", "First")
    assert (cleared.name, cleared.description) == ("Zoé", None)


async def test_operator_sets_exports_and_ends_a_tenant(served: Served, flavour: Flavour) -> None:
    acme, customer = f"acme-{flavour.name}", f"cus_{flavour.name}"
    async with flavour.client(OPERATOR_TOKEN, base_url=served.url) as operator:
        made = await operator.tenants.put(acme, name="Acme", owner_email="owner@acme.example")
        suspended = await operator.tenants.put(
            acme,
            name="Acme Inc.",
            owner_email="owner@acme.example",
            suspended=True,
            stripe_customer_id=customer,
        )
        exported = await operator.tenants.export(acme)
        await operator.tenants.delete(acme)
        with pytest.raises(errors.ConflictError) as ended:
            await operator.tenants.put(acme, name="Acme", owner_email="owner@acme.example")
    assert (made.plan, made.subscription_status, made.stripe_customer_id) == ("free", "none", None)
    assert (suspended.name, suspended.stripe_customer_id) == ("Acme Inc.", customer)
    assert (exported.tenant.id, exported.suspended, exported.customers) == (acme, True, [customer])
    assert ended.value.code == "tenant_deleted"


async def test_user_makes_a_tenant_and_hands_it_over(served: Served, flavour: Flavour) -> None:
    owner = served.service.user(
        f"olivia-{flavour.name}", email="olivia@x.example", email_verified=True
    )
    async with flavour.client(owner.credential, base_url=served.url) as user:
        made = await user.tenants.create(name="Olivia's", owner_email="olivia@x.example")
        async with flavour.client(
            owner.credential, base_url=served.url, organization=made.id
        ) as olivia:
            member = await olivia.members.create(user_id="mia", role="member")
            mia = served.service.user("mia", email="mia@x.example")
            async with flavour.client(mia.credential, base_url=served.url) as invited:
                offered = [one async for one in invited.memberships.list(status="invited")]
                accepted = await invited.memberships.accept(member.id)
            admin = await olivia.members.update(member.id, role="admin")
            renamed = await olivia.tenants.update(made.id, name="Mia's", time_zone="Asia/Tokyo")
            billed = await olivia.tenants.owner_address(made.id)
            listed = [one.user_id async for one in olivia.members.list()]
            handed = await olivia.tenants.transfer(
                made.id, user_id="mia", owner_email="mia@x.example"
            )
    assert made.owner_id == f"olivia-{flavour.name}"
    assert (member.id, made.id, "Olivia's", "invited") in {
        (one.id, one.org_id, one.org_name, one.status) for one in offered
    }
    assert accepted.status == "active"
    assert (admin.role, renamed.name) == ("admin", "Mia's")
    assert (renamed.time_zone, made.time_zone) == ("Asia/Tokyo", None)
    assert (billed.email, billed.verified) == ("olivia@x.example", True)
    assert sorted(listed) == ["mia", f"olivia-{flavour.name}"]
    assert handed.owner_id == "mia"


async def test_owner_ends_a_tenant(served: Served, flavour: Flavour) -> None:
    owner = served.service.user(f"ender-{flavour.name}")
    async with flavour.client(owner.credential, base_url=served.url) as user:
        made = await user.tenants.create(name="Brief", owner_email="e@x.example")
        with pytest.raises(errors.ValidationFailedError):
            await user.tenants.end(made.id, name="Other")
        await user.tenants.end(made.id, name="Brief")
        with pytest.raises(errors.PermissionDeniedError):
            await user.tenants.get(made.id)


async def test_user_declines_and_leaves(served: Served, flavour: Flavour) -> None:
    organization, user_id = await served.service.organization(), f"leaver-{flavour.name}"
    user = served.service.user(user_id)
    async with (
        flavour.client_of(served, organization) as owner,
        flavour.client(user.credential, base_url=served.url) as invited,
    ):
        declined = await owner.members.create(user_id=user_id, role="member")
        await invited.memberships.delete(declined.id)
        assert [one async for one in invited.memberships.list()] == []
        member = await owner.members.create(user_id=user_id, role="member")
        await invited.memberships.accept(member.id)
        await invited.memberships.delete(member.id)
        assert (await owner.members.get(member.id)).status == "removed"
        with pytest.raises(errors.ConflictError) as raised:
            await invited.memberships.accept(member.id)
        with pytest.raises(errors.ValidationFailedError) as refused:
            await owner.members.create(user_id="grace@acme.example", role="member")
    assert raised.value.code == "member_not_active"
    assert "is an e-mail address" in refused.value.errors[0].message


async def test_roles_are_listed(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        roles = {role.id: role async for role in owner.roles.list()}
    assert list(roles) == ["owner", "admin", "member"]
    assert roles["admin"].gives == ["admin", "member"]
    assert roles["owner"].assignable


async def test_plans_events_and_trail_are_read(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        plans = {plan.id async for plan in owner.plans.list()}
        events = [event.id async for event in owner.billing.events.list()]
        actions = {
            entry.action async for entry in owner.audit_events.list(since=NOW - timedelta(days=1))
        }
        with pytest.raises(errors.NotConfiguredError) as raised:
            await owner.billing.checkout_sessions.create(plan="pro")
    assert {"free", "pro", "business"} <= plans
    assert events == []
    assert "api_key.created" in actions
    assert raised.value.code == "provider_not_configured"


async def test_checkout_orders_a_price_a_quantity_and_addons(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        with pytest.raises(errors.ValidationFailedError) as raised:
            await owner.billing.checkout_sessions.create(
                plan="pro", price="price_business", quantity=10_001, addons={"storage": 2}
            )
        assert raised.value.errors[0].location == "quantity"
        with pytest.raises(errors.ValidationFailedError) as raised:
            await owner.billing.checkout_sessions.create(plan="pro", currency="euros")
    assert raised.value.errors[0].location == "currency"


async def test_invalid_fields_are_named(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        with pytest.raises(errors.ValidationFailedError) as raised:
            await owner.api_keys.create(org_id=organization.id, name="", scopes=["Projects"])
    assert {fault.location for fault in raised.value.errors} >= {"name"}


async def test_finder_of_a_leaked_key_revokes_it(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        leaked = await owner.api_keys.create(
            org_id=organization.id, name="CI", scopes=["projects:read"]
        )
        ended = await owner.api_keys.report_leak(leaked.secret)
    assert (ended.id, ended.status) == (leaked.id, "revoked")


async def test_create_under_a_key_of_ones_own_is_made_once(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        once = {"name": "Once", "idempotency_key": "order-17"}
        assert await owner.projects.create(**once) == await owner.projects.create(**once)
        key = {
            "org_id": organization.id,
            "name": "CI",
            "scopes": ["projects:read"],
            "idempotency_key": "order-18",
        }
        made = await owner.api_keys.create(**key)
        with pytest.raises(errors.ConflictError) as raised:
            await owner.api_keys.create(**key)
    assert (raised.value.code, raised.value.document["id"]) == ("idempotency_replay", made.id)


@cases(
    "answer",
    [
        httpx2.Response(500),
        httpx2.Response(201, json={}),
        httpx2.Response(201, headers={"content-type": "application/json"}, content=b"{"),
    ],
    ids=["rejected", "not tenantry's", "incomplete"],
)
async def test_error_of_a_creation_has_its_idempotency_key(
    flavour: Flavour, answer: httpx2.Response
) -> None:
    sent = list[str]()

    def upstream(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["Idempotency-Key"])
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    async with answered_by(flavour, upstream, retries=0) as client:
        with pytest.raises(errors.TenantryError) as raised:
            await client.projects.create(name="First")
    assert [raised.value.idempotency_key] == sent


async def test_error_has_no_idempotency_key_of_the_programs_http_client(flavour: Flavour) -> None:
    headers = {"Idempotency-Key": "default"}
    async with answered_by(
        flavour, lambda _: httpx2.Response(500), retries=0, http_headers=headers
    ) as client:
        with pytest.raises(errors.ServerError) as raised:
            await client.projects.get("prj_1")
    assert raised.value.idempotency_key is None


async def test_answers_are_at_hand_as_they_came(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        with record_responses() as responses:
            made = await owner.projects.create(name="First")
            answer = await owner.request("GET", f"/api/v1/projects/{made.id}")
    assert [response.status_code for response in responses] == [201, 200]
    assert responses[0].headers["location"].endswith(made.id)
    assert responses[0].request_id not in {None, responses[1].request_id}
    assert answer.json()["name"] == "First"


@cases("org_id", ["../tenants", "a/b", "ä", "x?y"])
def test_id_is_one_segment_of_the_address(org_id: str) -> None:
    from tenantry_sdk._request import path  # noqa: PLC0415

    assert path("/api/v1/tenants/{}", org_id).count("/") == 4
    assert "?" not in path("/api/v1/tenants/{}", org_id)


async def test_time_without_a_zone_is_refused_before_it_is_sent(flavour: Flavour) -> None:
    async with flavour.client("key") as client:
        with pytest.raises(ValueError, match="time zone"):
            await client.api_keys.create(org_id="acme", name="CI", expires_at=datetime(2027, 1, 1))  # noqa: DTZ001


@cases("zone", [UTC, None])
async def test_secret_may_be_passed_as_it_came(
    served: Served, flavour: Flavour, zone: object
) -> None:
    organization = await served.service.organization()
    credential = (
        Secret(str(organization.owner.credential)) if zone else str(organization.owner.credential)
    )
    async with flavour.client(credential, base_url=f"{served.url}/") as client:
        assert (await client.auth.whoami()).org_id == organization.id


async def test_deletion_that_something_else_answers_is_no_success(flavour: Flavour) -> None:
    async with answering(
        flavour, 200, "<html>Sign in</html>", **{"content-type": "text/html"}
    ) as client:
        with pytest.raises(errors.UnreadableAnswerError):
            await client.api_keys.delete("key_1")


@cases("path", [".evil.example/api/v1/x", "@evil.example/", "api/v1/projects", ""])
async def test_call_reaches_only_the_service(flavour: Flavour, path: str) -> None:
    async with flavour.client("key") as client:
        with pytest.raises(ValueError, match="begin with /"):
            await client.request("GET", path)


async def test_query_in_a_path_is_sent(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        assert (
            len((await owner.request("GET", "/api/v1/api-keys?status=revoked")).json()["data"]) == 0
        )


@cases("wrong", ["", "a b", "line\nbreak", "ü", "x" * 256])
async def test_idempotency_key_that_no_header_carries_is_refused(
    flavour: Flavour, wrong: str
) -> None:
    async with flavour.client("key") as client:
        with pytest.raises(ValueError, match="visible ASCII"):
            await client.projects.create(name="x", idempotency_key=wrong)
        with pytest.raises(ValueError, match="visible ASCII"):
            flavour.make("key", organization=wrong)


async def test_scopes_as_one_text_are_refused(flavour: Flavour) -> None:
    async with flavour.client("key") as client:
        with pytest.raises(TypeError, match="list of strings"):
            await client.api_keys.create(org_id="acme", name="x", scopes="projects:read")


@cases(
    "address",
    [
        "https://u:hunter2@x.example",
        "https://:hunter2@x.example",
        "x.example",
        "ftp://x",
        "http://x.example",
    ],
)
def test_address_that_cannot_be_is_refused_without_its_password(
    flavour: Flavour, address: str
) -> None:
    with pytest.raises(errors.ConfigurationError) as raised:
        flavour.make("key", base_url=address)
    assert str(raised.value).startswith("base_url: ")
    assert "hunter2" not in str(raised.value)


@cases("key", ["", "a b", "k\u00e9y"])
def test_invalid_key_is_an_error_that_names_the_argument(flavour: Flavour, key: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"^api_key: the API key"):
        flavour.make(key)


async def test_scopes_as_one_string_are_a_type_error(flavour: Flavour) -> None:
    with pytest.raises(TypeError, match="scopes must be a list of strings, not the string 'a:b'"):
        await flavour.make("key").api_keys.create(name="CI", scopes="a:b")


@pytest.mark.parametrize("kind", [Tenantry, AsyncTenantry])
def test_address_of_a_client_is_public(kind: type[Tenantry | AsyncTenantry]) -> None:
    for given, used in (
        ("https://accounts.example.com/", "https://accounts.example.com"),
        ("https://accounts.example.com/api/v1", "https://accounts.example.com"),
        ("https://example.com/accounts/api/v1/", "https://example.com/accounts"),
        ("https://example.com/api/v10", "https://example.com/api/v10"),
        ("https://api/v1", "https://api/v1"),
    ):
        assert kind("key", base_url=given).base_url == used


async def test_closed_client_raises_a_clear_error(served: Served, flavour: Flavour) -> None:
    client = flavour.make("key", base_url=served.url)
    await client.aclose()
    with pytest.raises(errors.ConfigurationError, match="closed"):
        await client.auth.whoami()


async def test_endless_answer_is_aborted(flavour: Flavour) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(b" " * 1_000_000)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with flavour.client("key", base_url=url, timeout=60, attempt_timeout=60) as client:
            with pytest.raises(errors.UnreadableAnswerError, match="too large"):
                await client.auth.whoami()


def answering(
    flavour: Flavour, status: int, content: str, **headers: str
) -> AbstractAsyncContextManager[Any]:
    """A client of something that always answers the same."""
    return answered_by(flavour, lambda _: httpx2.Response(status, text=content, headers=headers))
