"""What a tenant learns of its users from their tokens: name, verified address, last visit."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from tenantry.auth.user_profiles import UserProfileService
from tenantry.auth.user_profiles_store import SEEN_EVERY, UserVisit, record_visits
from tenantry.db.connection import OF_PEOPLE
from tenantry.db.database import Database
from tenantry.domain.members import User, UserProfile
from tests.support.billing import rows
from tests.support.issuer import NOW
from tests.support.members import join
from tests.support.patience import patient_database
from tests.support.service import PROJECTS, VERIFY, JsonObject, Service, running_service

USER = User("https://id.example", "ada")
LATER = NOW + timedelta(minutes=5)


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    yield database
    await database.close()


async def visit(
    database: Database,
    org_id: str,
    at: datetime,
    name: str | None = "Ada",
    email: str | None = "ada@acme.example",
) -> None:
    async with database.transaction(OF_PEOPLE) as connection:
        await record_visits(connection, [UserVisit(org_id, *USER, name, email, None, at)])


async def profile(database: Database, org_id: str) -> UserProfile | None:
    return (await UserProfileService(database).of_users(org_id, [USER])).get(USER)


async def stored(service: Service, org_id: str, *subjects: str) -> list[JsonObject]:
    return await rows(
        service.conninfo,
        "SELECT subject, name, email, claimed_role FROM user_profiles "
        "WHERE org_id = %s AND subject = ANY(%s) ORDER BY subject",
        org_id,
        list(subjects),
    )


async def test_tokens_tell_the_tenant_name_and_verified_address(service: Service) -> None:
    org = await service.organization()
    described = {"name": "Grace", "email": "grace@acme.example", "email_verified": True}
    async with running_service(service.conninfo) as other:
        for sub, path in (("grace", PROJECTS), ("hedy", f"{VERIFY}projects:read")):
            claims = {"sub": sub, "org_id": org.id, **described}
            caller = other.caller(other.issuer.mint(claims=claims))
            assert (await caller.get(path)).status_code == 200
    assert [dict(row) for row in await stored(service, org.id, "grace", "hedy")] == [
        {"subject": sub, "name": "Grace", "email": "grace@acme.example", "claimed_role": "member"}
        for sub in ("grace", "hedy")
    ]


async def test_user_by_membership_has_no_claimed_role(service: Service) -> None:
    org = await service.organization()
    await join(service, org, "grace")
    token = service.user("grace").credential
    async with running_service(service.conninfo, OIDC_ISSUER=service.issuer.url) as other:
        assert (await other.caller(token).get(PROJECTS)).status_code == 200
    [row] = await stored(service, org.id, "grace")
    assert row["claimed_role"] is None


async def test_token_without_a_name_keeps_the_name(service: Service) -> None:
    org = await service.organization()
    described = {"email": "grace@acme.example", "email_verified": True, "org_id": org.id}
    async with running_service(service.conninfo) as other:
        for name in ({"name": "Grace"}, {}):
            token = other.issuer.mint(claims={"sub": "grace", **described, **name})
            async with running_service(service.conninfo, OIDC_ISSUER=other.issuer.url) as process:
                assert (await process.caller(token).get(PROJECTS)).status_code == 200
    [row] = await stored(service, org.id, "grace")
    assert row["name"] == "Grace"


async def test_rejected_token_is_no_visit(service: Service) -> None:
    org = await service.organization()
    async with running_service(service.conninfo) as other:
        for claims in ({"org_id": org.id, "exp": int(NOW.timestamp()) - 60}, {}):
            caller = other.caller(other.issuer.mint(claims={"sub": "ada", **claims}))
            answer = await caller.get(PROJECTS)
            assert answer.status_code in {401, 403}
    assert await stored(service, org.id, "ada") == []


async def test_visit_within_the_hour_is_not_stored_again(
    service: Service, database: Database
) -> None:
    org = await service.organization()
    await visit(database, org.id, NOW)
    await visit(database, org.id, NOW + SEEN_EVERY - timedelta(seconds=1))
    assert await profile(database, org.id) == UserProfile("Ada", "ada@acme.example", NOW)
    await visit(database, org.id, NOW + SEEN_EVERY)
    assert await profile(database, org.id) == UserProfile(
        "Ada", "ada@acme.example", NOW + SEEN_EVERY
    )


@pytest.mark.parametrize(
    ("name", "email", "expected"),
    [
        ("Ada L.", "ada@acme.example", UserProfile("Ada L.", "ada@acme.example", LATER)),
        ("Ada", "al@acme.example", UserProfile("Ada", "al@acme.example", LATER)),
        (None, None, UserProfile("Ada", "ada@acme.example", NOW)),
    ],
)
async def test_changed_name_or_address_is_stored_at_once(
    service: Service,
    database: Database,
    name: str | None,
    email: str | None,
    expected: UserProfile,
) -> None:
    org = await service.organization()
    await visit(database, org.id, NOW)
    await visit(database, org.id, LATER, name, email)
    assert await profile(database, org.id) == expected


async def test_earlier_visit_of_another_process_does_not_set_the_time_back(
    service: Service, database: Database
) -> None:
    org = await service.organization()
    await visit(database, org.id, LATER)
    await visit(database, org.id, NOW, "Ada L.")
    assert await profile(database, org.id) == UserProfile("Ada L.", "ada@acme.example", LATER)


async def test_visit_of_a_purged_tenant_is_dropped(service: Service, database: Database) -> None:
    org = await service.organization()
    other = UserVisit("purged", *USER, "Ada", None, None, NOW)
    async with database.transaction(OF_PEOPLE) as connection:
        await record_visits(connection, [UserVisit(org.id, *USER, "Ada", None, None, NOW), other])
    assert await profile(database, org.id) == UserProfile("Ada", None, NOW)
    assert await stored(service, "purged", "ada") == []


async def test_an_export_has_what_the_tenant_knows_of_its_users(
    service: Service, database: Database
) -> None:
    org = await service.organization()
    other = await service.organization()
    await visit(database, org.id, NOW)
    document = (await service.operator.get(f"{org.path}/export")).json()
    assert [one for one in document["users"] if one["subject"] == USER.subject] == [
        {
            "issuer": USER.issuer,
            "subject": USER.subject,
            "name": "Ada",
            "email": "ada@acme.example",
            "claimedRole": None,
            "seenAt": "2026-01-01T12:00:00Z",
        }
    ]
    assert "ada@acme.example" not in (await service.operator.get(f"{other.path}/export")).text
