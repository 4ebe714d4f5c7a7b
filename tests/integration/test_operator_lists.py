"""The operator's view of all tenants: lists with filters, keys, and events that belong to no
tenant.
"""

from collections.abc import Sequence
from datetime import timedelta
from itertools import product
from typing import Any, Final

import msgspec
import psycopg
import pytest

from tenantry.accounts.tenant_directory import TenantDirectory
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.operator_keys import OperatorKeyService
from tenantry.db.database import Database
from tenantry.domain.access import AccessPhase
from tenantry.domain.api_keys import Pepper
from tenantry.domain.plans import Catalog, parse_catalog
from tenantry.domain.tenant_search import TenantFilter
from tests.support import events
from tests.support.billing import Provider
from tests.support.cases import cases
from tests.support.issuer import NOW
from tests.support.patience import patient_database
from tests.support.service import KEYS, PROJECTS, TENANTS, Service, refusal

OPERATOR: Final = "/api/v1/operator"
ALL: Final = f"{OPERATOR}/tenants"
OPERATOR_KEYS: Final = f"{OPERATOR}/api-keys"
PARKED: Final = f"{OPERATOR}/parked-events"
LATER: Final = timedelta(hours=1)
CATALOGS: Final = {
    "default": parse_catalog('[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\n'),
    "overriding": parse_catalog(
        '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\n[access]\npast_due = "none"\nunpaid = "grace"\nodd = "full"\n'
    ),
}
STATUSES: Final = (
    "none",
    "active",
    "trialing",
    "past_due",
    "unpaid",
    "canceled",
    "incomplete",
    "odd",
)


def directory(
    conninfo: str, catalog: Catalog, after: timedelta = timedelta()
) -> tuple[Database, TenantDirectory]:
    database = patient_database(conninfo, 1)

    def clock() -> Any:
        return NOW + after

    keys = OperatorKeyService(ApiKeyService(database, catalog, Pepper(b"pepper"), clock))
    return database, TenantDirectory(database, catalog, keys, clock)


def phases(plan: str) -> Sequence[Sequence[AccessPhase]]:
    """Every kind of stored access: none, one that ends soon, has ended, or never ends."""
    soon, past = int((NOW + LATER / 2).timestamp()), int((NOW - LATER).timestamp())
    none = AccessPhase("none", "free", "over")
    return (
        (),
        (AccessPhase("grace", plan, "due", soon), none),
        (
            AccessPhase("full", plan, "paid", past),
            AccessPhase("grace", plan, "due", soon),
            none,
        ),
        (
            AccessPhase("full", plan, "paid", past),
            AccessPhase("grace", plan, "due", past + 1),
            none,
        ),
        (AccessPhase("full", plan, "paid"),),
        (AccessPhase("full", plan, "paid", soon), AccessPhase("grace", plan, "due", past)),
    )


async def store_tenants(conninfo: str) -> int:
    """Store a tenant of each plan, status and kind of stored access; return their number."""
    rows = []
    for plan, status in product(("free", "pro"), STATUSES):
        for number, stored in enumerate(phases(plan)):
            access = msgspec.json.encode(stored).decode() if stored else None
            rows.append((f"{plan}-{status}-{number}", plan, status, access))
    async with (
        await psycopg.AsyncConnection.connect(conninfo) as connection,
        connection.cursor() as cursor,
    ):
        await cursor.executemany(
            "INSERT INTO tenants (id, name, owner_id, owner_email, verified_email, plan, subscription_status, access) "
            "VALUES (%s, 'x', 'x', 'x@x.example', '', %s, %s, %s)",
            rows,
        )
    return len(rows)


async def listed(directory: TenantDirectory, wanted: TenantFilter) -> dict[str, str]:
    """Return the access of the tenants that match, by id."""
    found = dict[str, str]()
    cursor = None
    while True:
        page = await directory.list_page(wanted, 50, cursor)
        found |= {tenant.id: tenant.access.state for tenant in page.data}
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("after", [timedelta(), LATER], ids=["now", "later"])
@pytest.mark.parametrize("catalog", CATALOGS.values(), ids=CATALOGS)
async def test_filter_by_access_agrees_with_the_record(
    conninfo: str, catalog: Catalog, after: timedelta
) -> None:
    number = await store_tenants(conninfo)
    database, tenants = directory(conninfo, catalog, after)
    async with database:
        everything = await listed(tenants, TenantFilter())
        assert len(everything) == number
        assert set(everything.values()) == {"full", "grace", "none"}
        for state in ("full", "grace", "none"):
            expected = {
                tenant_id: access for tenant_id, access in everything.items() if access == state
            }
            assert await listed(tenants, TenantFilter(access=state)) == expected


async def ids(service: Service, **parameters: str) -> list[str]:
    """Return the tenants that match, newest first."""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    answer = await service.operator.get(f"{ALL}?limit=100&{query}")
    assert answer.status_code == 200, answer.text
    return [tenant["id"] for tenant in answer.json()["data"]]


async def test_tenants_are_listed_page_by_page_newest_first(service: Service) -> None:
    made = [(await service.organization()).id for _ in range(3)]
    await service.operator.delete(f"{TENANTS}/{made[1]}")
    first = (await service.operator.get(f"{ALL}?limit=1")).json()
    second = (await service.operator.get(f"{ALL}?limit=1&cursor={first['nextCursor']}")).json()
    assert [first["data"][0]["id"], second["data"][0]["id"]] == [made[2], made[0]]
    single = (await service.operator.get(f"{ALL}/{made[0]}")).json()
    assert second["data"][0] == single
    assert (single["ownerEmail"], single["suspended"]) == ("owner@x.example", False)


async def test_search_finds_parts_of_name_id_customer_and_address(service: Service) -> None:
    fields = {
        "name": "Käse_50% Ltd",
        "ownerEmail": "Ada@Käse.example",
        "stripeCustomerId": "cus_SearchMe",
    }
    found = (await service.organization(**fields)).id
    other = (await service.organization(name="Kase 50x")).id
    for text in (found.upper(), "käse_50%25", "KÄSE_50", "ada@k", "searchme"):
        assert found in await ids(service, search=text), text
        assert other not in await ids(service, search=text), text
    assert await ids(service, search="%25") == [found]
    assert await ids(service, search="nothing") == []


@cases(
    "name",
    ["\u039f\u0394\u03a5\u03a3\u03a3\u0395\u038e\u03a3", "\u0130stanbul", "\u01c5", "Stra\u00dfe"],
)
async def test_search_finds_each_name_by_itself(service: Service, name: str) -> None:
    found = (await service.organization(name=name)).id
    assert found in await ids(service, search=name)
    assert found in await ids(service, search=name.swapcase()) or len(name.swapcase()) != len(name)


async def test_search_for_a_whole_secret_is_refused(service: Service) -> None:
    secret = str((await service.organization()).owner.credential)
    answer = await service.operator.get(f"{ALL}?search={secret}")
    assert (answer.status_code, secret in answer.text) == (422, False)


async def test_filters_narrow_together(service: Service) -> None:
    provider = Provider(service)
    paying, free = await provider.subscriber(), await provider.subscriber()
    await provider.send(events.updated(**paying.names))
    assert paying.id in await ids(service, plan="pro", status="active", access="full")
    assert free.id not in await ids(service, plan="pro")
    assert free.id in await ids(service, plan="free", status="none", access="none")
    assert await ids(service, plan="pro", search=free.id) == []


async def test_record_and_filter_tell_that_a_tenant_is_suspended(service: Service) -> None:
    org = await service.organization()
    body = {"name": "x", "ownerEmail": "owner@x.example", "suspended": True}
    assert (await service.operator.put(org.path, body)).json()["suspended"] is True
    assert await ids(service, suspended="true", search=org.id) == [org.id]
    assert await ids(service, suspended="false", search=org.id) == []
    assert (await service.operator.get(f"{ALL}/{org.id}")).json()["suspended"] is True


@cases(
    ("query", "status"),
    [
        ("?cursor=nonsense", 400),
        ("?limit=0", 422),
        ("?limit=101", 422),
        ("?access=some", 422),
        ("?suspended=maybe", 422),
        (f"?search={'x' * 201}", 422),
        ("?search=%00", 422),
        ("?status=%00", 422),
        (f"?plan={'x' * 65}", 422),
    ],
)
async def test_invalid_parameters_are_refused(service: Service, query: str, status: int) -> None:
    assert refusal(await service.operator.get(ALL + query))[0] == status


@cases(
    ("method", "path"),
    [
        ("GET", ALL),
        ("GET", f"{ALL}/acme"),
        ("GET", f"{OPERATOR_KEYS}?search=abcd"),
        ("DELETE", f"{OPERATOR_KEYS}/key_1"),
        ("GET", PARKED),
    ],
)
async def test_only_the_operators_token_is_accepted(
    service: Service, method: str, path: str
) -> None:
    org = await service.organization()
    for caller in (
        service.anonymous,
        service.caller("wrong"),
        org.owner,
        service.user("u", org=org.id, role="owner"),
    ):
        assert (await caller.call(method, path)).status_code == 401


async def test_unknown_tenant_and_key_are_not_found(service: Service) -> None:
    assert refusal(await service.operator.get(f"{ALL}/nobody")) == (404, "not_found")
    assert refusal(await service.operator.delete(f"{OPERATOR_KEYS}/key_nobody")) == (
        404,
        "not_found",
    )


async def test_key_is_found_by_its_id_and_shown_characters(service: Service) -> None:
    org = await service.organization()
    other = await service.organization()
    record = org.key.record
    start, last4 = record["start"], record["last4"]
    both = (f"{start}...{last4}", f"{start[-4:]}\u2026{last4}")
    for hint in (record["id"], start, start[-4:], last4, last4.swapcase(), *both):
        answer = await service.operator.get(f"{OPERATOR_KEYS}?search={hint}")
        found = {key["id"]: key for key in answer.json()["data"]}
        assert found[record["id"]]["orgId"] == org.id, hint
        assert other.key.id not in found, hint
        assert "secret" not in answer.text
    mixed = f"{start}...{other.key.record['last4']}"
    assert (await service.operator.get(f"{OPERATOR_KEYS}?search={mixed}")).json()["data"] == []


async def test_search_for_no_key_or_a_whole_secret_is_refused_and_not_repeated(
    service: Service,
) -> None:
    org = await service.organization()
    secret = str(org.owner.credential)
    answer = await service.operator.get(f"{OPERATOR_KEYS}?search={secret}")
    assert refusal(answer) == (422, "validation_failed")
    assert secret not in answer.text
    for short in ("", "abc", "svc", "key_%00"):
        assert (await service.operator.get(f"{OPERATOR_KEYS}?search={short}")).status_code == 422


async def test_operator_revokes_a_key_also_of_a_suspended_tenant(service: Service) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "owner@x.example", "suspended": True}
    )
    assert (await service.operator.delete(f"{OPERATOR_KEYS}/{key.id}")).status_code == 204
    assert (await service.operator.delete(f"{OPERATOR_KEYS}/{key.id}")).status_code == 204
    assert refusal(await key.caller.get(PROJECTS)) == (401, "api_key_revoked")
    await service.operator.put(
        org.path, {"name": "x", "ownerEmail": "owner@x.example", "suspended": False}
    )
    trail = (
        await org.owner.get(f"/api/v1/audit-events?targetId={key.id}&action=api_key.revoked")
    ).json()["data"]
    assert [entry["actorKind"] for entry in trail] == ["operator"]
    assert trail[0]["address"]


async def test_member_who_is_called_operator_does_not_limit_the_operator(service: Service) -> None:
    org = await service.organization()
    added = await org.owner.post("/api/v1/members", {"userId": "operator", "role": "member"})
    assert added.status_code == 201
    key = await service.key(org.owner, org.id, "projects:read")
    assert (await service.operator.delete(f"{OPERATOR_KEYS}/{key.id}")).status_code == 204
    record = (await org.owner.get(f"{KEYS}/{key.id}")).json()
    assert record["status"] == "revoked"


async def test_last_owner_key_needs_force(service: Service) -> None:
    org = await service.organization()
    assert refusal(await service.operator.delete(f"{OPERATOR_KEYS}/{org.key.id}")) == (
        409,
        "last_owner",
    )
    assert (
        await service.operator.delete(f"{OPERATOR_KEYS}/{org.key.id}?force=true")
    ).status_code == 204


async def commands(service: Service) -> dict[str, str | None]:
    """Return the commands of the events without a tenant, by the event's id."""
    listed = (await service.operator.get(f"{PARKED}?limit=100")).json()["data"]
    return {event["id"]: event["command"] for event in listed}


async def test_parked_events_are_listed_with_the_command_that_places_each(service: Service) -> None:
    provider = Provider(service)
    subscriber = await provider.subscriber(linked=False)
    unlinked = provider.unlinked()
    failure = events.failed(customer="cus_unknown")
    named = events.updated(**unlinked.names)
    nameless = events.updated(org=None, customer="cus_nameless")
    await provider.send(failure, named, nameless)
    assert (await commands(service))[failure["id"]] == "tenantry admin link cus_unknown --org ORG"
    assert (await commands(service))[nameless["id"]] == "tenantry admin link cus_nameless --org ORG"
    create = f"tenantry admin create-tenant --id {unlinked.id} --name NAME --owner-email EMAIL"
    assert (await commands(service))[named["id"]] == create
    await service.operator.put(
        f"{TENANTS}/{subscriber.id}",
        {"name": "x", "ownerEmail": "o@x.example", "stripeCustomerId": "cus_nameless"},
    )
    assert await provider.state(subscriber) == ("pro", "active")
    left = await commands(service)
    assert nameless["id"] not in left
    assert {failure["id"], named["id"]} <= set(left)


async def test_checkout_without_metadata_is_listed_until_its_customer_is_linked(
    service: Service,
) -> None:
    provider = Provider(service)
    subscriber = await provider.subscriber(linked=False)
    checkout = events.completed(org=None, customer="cus_paid")
    await provider.send(checkout)
    assert (await commands(service))[checkout["id"]] == "tenantry admin link cus_paid --org ORG"
    await service.operator.put(
        f"{TENANTS}/{subscriber.id}",
        {"name": "x", "ownerEmail": "o@x.example", "stripeCustomerId": "cus_paid"},
    )
    assert checkout["id"] not in await commands(service)


async def test_invalid_event_is_listed_without_a_command(service: Service) -> None:
    event = events.updated(org="no; tenant", customer="cus_invalid")
    await Provider(service).send(event)
    assert (await commands(service))[event["id"]] is None


async def test_parked_events_are_paged_the_last_received_first(service: Service) -> None:
    provider = Provider(service)
    sent = [events.failed(customer=f"cus_page_{number}") for number in range(3)]
    for event in sent:
        await provider.send(event)
        service.clock.advance(seconds=1)
    first = (await service.operator.get(f"{PARKED}?limit=2")).json()
    assert [event["id"] for event in first["data"]] == [sent[2]["id"], sent[1]["id"]]
    second = (await service.operator.get(f"{PARKED}?limit=1&cursor={first['nextCursor']}")).json()
    assert [event["id"] for event in second["data"]] == [sent[0]["id"]]
    assert refusal(await service.operator.get(f"{PARKED}?cursor=x")) == (400, "invalid_cursor")
