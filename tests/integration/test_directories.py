"""A service whose identity provider has an issuer for each directory, as Microsoft Entra ID."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from tests.support.app import running_app
from tests.support.billing import until_blocked
from tests.support.emptying import SharedDatabase
from tests.support.issuer import DISCOVERY, JWKS, Answer, running_issuer
from tests.support.members import accept_path, path_of
from tests.support.service import (
    KEYS,
    TENANTS,
    WHOAMI,
    Caller,
    JsonObject,
    ManualClock,
    Service,
    identity_settings,
    refusal,
)

MEMBERS = "/api/v1/members"
FIRST, SECOND = "dir-1", "dir-2"


@asynccontextmanager
async def serving(conninfo: str, directories: str) -> AsyncIterator[Service]:
    """A service that accepts the users of these directories."""
    clock = ManualClock()
    async with running_issuer() as issuer:
        template = issuer.url + "/{tenantid}/v2.0"
        document = {"issuer": template, "jwks_uri": issuer.url + JWKS}
        issuer.answers["/organizations/v2.0" + DISCOVERY] = Answer(
            200, json.dumps(document).encode()
        )
        settings = {
            **identity_settings(issuer),
            "OIDC_ISSUER": template,
            "OIDC_DIRECTORIES": directories,
        }
        async with running_app(conninfo, clock=clock, **settings) as client:
            yield Service(client, clock, issuer, conninfo)


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with serving(shared_database.conninfo, f"{FIRST},{SECOND}") as service:
        yield service


@pytest.fixture(scope="module")
async def open_service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """A service that accepts the users of every directory."""
    async with serving(shared_database.conninfo, "*") as service:
        yield service


def user(
    service: Service,
    directory: str,
    sub: str,
    *,
    org: str | None = None,
    role: str | None = None,
    asks_for: str | None = None,
    **claims: Any,
) -> Caller:
    """A user of a directory."""
    issuer = f"{service.issuer.url}/{directory}/v2.0"
    return service.user(
        sub, org=org, role=role, asks_for=asks_for, iss=issuer, tid=directory, **claims
    )


async def tenant(service: Service, name: str) -> Caller:
    """The owner of a new tenant with this id, of the first directory."""
    answer = await service.operator.put(
        f"{TENANTS}/{name}", {"name": name, "ownerEmail": "owner@x.example"}
    )
    assert answer.status_code == 201
    return user(service, FIRST, "owner", org=name, role="owner")


async def founded(service: Service, name: str, founder: str = "ada") -> Caller:
    """The owner of a new tenant with this id, a member of the first directory who has created
    it.
    """
    owner = user(service, FIRST, founder, org=name, role="owner")
    answer = await owner.post(TENANTS, {"name": name, "ownerEmail": "ada@x.example"})
    assert answer.status_code == 201, answer.text
    return owner


async def own_id(caller: Caller, user_id: str) -> str:
    """The id of a user's membership in the caller's tenant."""
    (member,) = (await caller.get(f"{MEMBERS}?userId={user_id}")).json()["data"]
    return str(member["id"])


async def last_key(owner: Caller, name: str) -> str:
    """The path of the only OWNER key of a tenant."""
    body = {"orgId": name, "name": "key", "scopes": [], "accessLevel": "OWNER"}
    answer = await owner.post(KEYS, body)
    assert answer.status_code == 201, answer.text
    return f"{KEYS}/{answer.json()['id']}"


async def add(author: Caller, user_id: str, role: str = "admin") -> JsonObject:
    """The member whom this caller adds."""
    answer = await author.post(MEMBERS, {"userId": user_id, "role": role})
    assert answer.status_code == 201, answer.text
    added: JsonObject = answer.json()
    return added


async def test_users_of_every_listed_directory_are_accepted(service: Service) -> None:
    await tenant(service, "open")
    for directory in (FIRST, SECOND):
        answer = await user(service, directory, "ann", org="open").get(WHOAMI)
        assert (answer.status_code, answer.json()["id"]) == (200, "ann")
    assert refusal(await user(service, "dir-3", "ann", org="open").get(WHOAMI)) == (
        401,
        "invalid_credential",
    )


async def test_added_member_is_a_user_of_the_authors_directory(service: Service) -> None:
    owner = await tenant(service, "ours")
    member = await add(owner, "ann")
    ours, theirs = user(service, FIRST, "ann"), user(service, SECOND, "ann")
    assert (await ours.post(accept_path(member))).status_code == 200
    assert (await ours.get(WHOAMI)).json()["orgId"] == "ours"
    assert refusal(await theirs.get(WHOAMI)) == (403, "no_organization")
    assert refusal(await theirs.delete(f"/api/v1/me/memberships/{member['id']}")) == (
        404,
        "not_found",
    )


async def test_idempotency_keys_of_users_with_the_same_subject_are_apart(service: Service) -> None:
    owner = await tenant(service, "apart")
    namesake = user(service, SECOND, "owner", org="apart", role="owner")
    answers = [
        await caller.post(MEMBERS, {"userId": "new", "role": "member"}, idempotency_key="once")
        for caller in (owner, namesake, owner)
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    first, second, again = [answer.json()["id"] for answer in answers]
    assert first == again != second


async def test_members_of_all_directories_are_listed_and_managed(service: Service) -> None:
    owner = await tenant(service, "mixed")
    await add(owner, "ann")
    other = user(service, SECOND, "boss", org="mixed", role="owner")
    await add(other, "ann", "member")
    listed = (await owner.get(f"{MEMBERS}?userId=ann")).json()["data"]
    assert [(each["userId"], each["role"]) for each in listed] == [
        ("ann", "member"),
        ("ann", "admin"),
    ]
    for each in listed:
        assert (await owner.delete(path_of(each))).status_code == 204


async def test_key_adds_no_member_because_it_has_no_directory(service: Service) -> None:
    owner = await tenant(service, "keyed")
    body = {"orgId": "keyed", "name": "key", "scopes": [], "accessLevel": "OWNER"}
    key = service.caller((await owner.post("/api/v1/api-keys", body)).json()["secret"])
    answer = await key.post(MEMBERS, {"userId": "ann", "role": "member"})
    assert refusal(answer) == (422, "validation_failed")
    assert "repeat this with the token of a user" in answer.text


async def test_waiting_request_of_a_removed_member_is_rejected(service: Service) -> None:
    """A change is authorized again under the tenant's lock, with the issuer of the caller's
    token.
    """
    owner = await tenant(service, "locked")
    member = await add(owner, "mallory")
    mallory = user(service, FIRST, "mallory", asks_for="locked")
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute("SELECT 1 FROM tenants WHERE id = 'locked' FOR NO KEY UPDATE")
        removal = asyncio.ensure_future(owner.delete(path_of(member)))
        await until_blocked(service.conninfo, 1)
        comeback = asyncio.ensure_future(
            mallory.post(MEMBERS, {"userId": "mallory", "role": "admin"})
        )
        await until_blocked(service.conninfo, 2)
    assert (await removal).status_code == 204
    assert refusal(await comeback) == (403, "no_organization")


async def test_owner_of_another_directory_counts_as_an_owner(service: Service) -> None:
    owner = await tenant(service, "two-owners")
    theirs = user(service, SECOND, "boss", org="two-owners", role="owner")
    for author, name in ((owner, "owner"), (theirs, "boss")):
        await add(author, name, "owner")
    (member,) = (await owner.get(f"{MEMBERS}?userId=owner")).json()["data"]
    assert (await owner.delete(path_of(member))).status_code == 204
    (last,) = (await theirs.get(f"{MEMBERS}?userId=boss")).json()["data"]
    assert refusal(await theirs.delete(path_of(last))) == (409, "last_owner")


async def test_owner_of_another_directory_lets_an_owner_leave(service: Service) -> None:
    await founded(service, "leaving")
    theirs = user(service, SECOND, "bob", org="leaving", role="owner")
    await add(theirs, "bob", "owner")
    bob = await own_id(theirs, "bob")
    assert (await theirs.delete(f"/api/v1/me/memberships/{bob}")).status_code == 204


async def test_user_of_another_directory_with_the_owners_subject_is_a_member_like_others(
    service: Service,
) -> None:
    owner = await founded(service, "namesake")
    theirs = user(service, SECOND, "ada", org="namesake", role="owner")
    namesake = await add(theirs, "ada", "member")
    assert namesake["role"] == "member"
    assert (await owner.delete(path_of(namesake))).status_code == 204
    (listed,) = (await owner.get(f"{MEMBERS}?userId=ada&status=active")).json()["data"]
    assert refusal(await owner.delete(path_of(listed))) == (409, "last_owner")


async def test_transfer_ends_the_ownership_of_a_user_of_another_directory(service: Service) -> None:
    await founded(service, "handed-over")
    theirs = user(service, SECOND, "bob", org="handed-over", role="owner")
    await add(theirs, "bob", "owner")
    body = {"userId": "bob", "ownerEmail": "bob@x.example"}
    assert (await theirs.post(f"{TENANTS}/handed-over/transfer", body)).status_code == 200
    members = (await theirs.get(MEMBERS)).json()["data"]
    assert {each["userId"]: each["role"] for each in members} == {"bob": "owner", "ada": "admin"}


async def test_transfer_keeps_the_owner_of_another_directory_with_the_same_subject(
    service: Service,
) -> None:
    owner = await founded(service, "same-subject")
    theirs = user(service, SECOND, "ada", org="same-subject", role="owner")
    await add(theirs, "ada", "owner")
    body = {"userId": "ada", "ownerEmail": "ada@x.example"}
    assert (await theirs.post(f"{TENANTS}/same-subject/transfer", body)).status_code == 200
    members = (await owner.get(MEMBERS)).json()["data"]
    assert [(each["userId"], each["role"]) for each in members] == [
        ("ada", "owner"),
        ("ada", "owner"),
    ]


async def test_owner_of_any_directory_counts_where_every_directory_is_accepted(
    open_service: Service,
) -> None:
    owner = await founded(open_service, "any-directory")
    assert (await owner.delete(await last_key(owner, "any-directory"))).status_code == 204


async def test_owner_of_a_former_provider_counts_no_more_where_every_directory_is_accepted(
    open_service: Service,
) -> None:
    owner = await founded(open_service, "any-moved")
    path = await last_key(owner, "any-moved")
    async with await psycopg.AsyncConnection.connect(open_service.conninfo) as connection:
        await connection.execute(
            "UPDATE memberships SET issuer = 'https://former.example' WHERE tenant_id = 'any-moved'"
        )
    assert (await owner.get(MEMBERS)).json()["data"] == []
    assert refusal(await owner.delete(path)) == (409, "last_owner")


async def test_owners_address_follows_the_owner_and_no_user_of_that_subject_elsewhere(
    shared_database: SharedDatabase,
) -> None:
    async with serving(shared_database.conninfo, f"{FIRST},{SECOND}") as service:
        for name in ("kept", "moved"):
            ada = user(
                service,
                FIRST,
                "ada",
                org=name,
                role="owner",
                email="old@x.example",
                email_verified=True,
            )
            assert (await ada.post(TENANTS, {"name": name})).status_code == 201
        service.clock.advance(seconds=1)  # a newer token
        new: dict[str, Any] = {"email": "new@x.example", "email_verified": True}
        assert (
            await user(service, SECOND, "ada", org="kept", **new).get(WHOAMI)
        ).status_code == 200
        assert (
            await user(service, FIRST, "ada", org="moved", **new).get(WHOAMI)
        ).status_code == 200
    # The service has written what it had noticed when it stopped.
    assert await addresses(shared_database.conninfo, "kept", "moved") == [
        "old@x.example",
        "new@x.example",
    ]


async def addresses(conninfo: str, *tenants: str) -> list[str]:
    """The owners' addresses of these tenants, in the order of their ids."""
    query = "SELECT owner_email FROM tenants WHERE id = ANY(%s) ORDER BY id"
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        return [
            email
            for (email,) in await (await connection.execute(query, (list(tenants),))).fetchall()
        ]
