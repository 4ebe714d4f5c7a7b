"""The users of a tenant as pages list them: members, invited users, users by claim."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
import psycopg
import pytest

from tenantry.accounts.member_directory import MemberDirectory
from tenantry.accounts.member_directory_store import UserCounts, UserSearch
from tenantry.auth.user_profiles import UserProfileService
from tenantry.auth.user_profiles_store import UserVisit, record_visits
from tenantry.db.connection import OF_PEOPLE
from tenantry.db.database import Database
from tenantry.db.numbered_pages import PageRequest
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import UserProfile
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Count
from tests.support.emptying import SharedDatabase
from tests.support.issuer import NOW
from tests.support.members import add_member, join, owned, remove_member
from tests.support.patience import patient_database
from tests.support.principals import make_principal
from tests.support.service import (
    TENANTS,
    Caller,
    JsonObject,
    Organization,
    Service,
    running_service,
)

INVITATIONS: Final = "/api/v1/invitations"
INVITING: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
}
FIRST_PAGE = PageRequest(50)
ALL = UserSearch()


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(shared_database.conninfo, **INVITING) as service:
        yield service


@pytest.fixture
async def database(service: Service) -> AsyncIterator[Database]:
    async with patient_database(service.conninfo, pool_size=1) as database:
        yield database


@pytest.fixture
def directory(service: Service, database: Database) -> MemberDirectory:
    return MemberDirectory(database, Issuers(service.issuer.url), service.clock)


@pytest.fixture
async def org(service: Service, database: Database) -> Organization:
    """A tenant with the visit of the user who made its first key, which the service would record a
    second later.
    """
    org = await service.organization()
    await visit(database, service, org, "first", None, claimed_role="owner")
    return org


async def invite(inviter: Caller, email: str) -> JsonObject:
    answer = await inviter.post(INVITATIONS, {"email": email, "role": "member"})
    assert answer.status_code == 201, answer.text
    record: JsonObject = answer.json()
    return record


def reader_of(org: Organization) -> RequestPrincipal:
    return msgspec.structs.replace(make_principal("members:read"), org_id=org.id)


async def visit(
    database: Database,
    service: Service,
    org: Organization,
    subject: str,
    name: str | None,
    email: str | None = None,
    claimed_role: str | None = None,
) -> None:
    one = UserVisit(org.id, service.issuer.url, subject, name, email, claimed_role, NOW)
    async with database.transaction(OF_PEOPLE) as connection:
        await record_visits(connection, [one])


async def listed(
    directory: MemberDirectory,
    org: Organization,
    wanted: UserSearch = ALL,
    *,
    removed: bool = False,
) -> list[str]:
    page = await directory.members(reader_of(org), wanted, FIRST_PAGE, removed=removed)
    return [member.user.subject for member in page.data]


async def test_members_are_listed_with_what_the_tenant_knows_of_them(
    service: Service, directory: MemberDirectory, database: Database, org: Organization
) -> None:
    await join(service, org, "ada", "admin")
    await join(service, org, "grace")
    await remove_member(org.owner, await join(service, org, "gone"))
    await add_member(org.owner, "waiting")
    await visit(database, service, org, "ada", "Ada Lovelace", "ada@acme.example")
    page = await directory.members(reader_of(org), ALL, FIRST_PAGE)
    assert [(one.user.subject, one.role, one.profile) for one in page.data] == [
        ("grace", "member", None),
        ("ada", "admin", UserProfile("Ada Lovelace", "ada@acme.example", NOW)),
    ]
    assert await listed(directory, org, removed=True) == ["gone"]


async def addresses_of_owner(
    directory: MemberDirectory, database: Database, org: Organization, *, removed: bool = False
) -> list[str | None]:
    """Return the owner's address in the list of members and on pages of one member."""
    page = await directory.members(reader_of(org), ALL, FIRST_PAGE, removed=removed)
    [owner] = page.data
    profiles = await UserProfileService(database).of_users(org.id, [owner.user])
    return [profile and profile.email for profile in (owner.profile, profiles.get(owner.user))]


async def test_owner_who_has_not_come_has_the_address_for_billing_mail(
    service: Service, directory: MemberDirectory, database: Database
) -> None:
    org, _ = await owned(service, "late-owner")
    answer = await org.owner.patch(f"{TENANTS}/{org.id}", {"ownerEmail": "accounting@acme.example"})
    assert answer.status_code == 200, answer.text
    found = await addresses_of_owner(directory, database, org)
    assert found == ["accounting@acme.example"] * 2


async def test_removed_owner_does_not_have_the_address_for_billing_mail(
    service: Service, directory: MemberDirectory, database: Database
) -> None:
    org, owner = await owned(service, "former-owner")
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "UPDATE memberships SET removed_at = now() WHERE id = %s", (owner["id"],)
        )
    assert await addresses_of_owner(directory, database, org, removed=True) == [None, None]


async def test_of_two_owners_with_one_user_id_neither_has_the_address_for_billing_mail(
    service: Service, directory: MemberDirectory, database: Database
) -> None:
    org, owner = await owned(service, "namesake")
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO memberships (id, issuer, subject, tenant_id, role) "
            "SELECT 'mbr_namesake', 'https://other.example', subject, tenant_id, role "
            "FROM memberships WHERE id = %s",
            (owner["id"],),
        )
    assert await addresses_of_owner(directory, database, org) == [None, None]


@pytest.mark.parametrize(
    ("text", "found"),
    [("", ["mail@x.example", "waiting"]), ("AIL@", ["mail@x.example"]), ("wait", ["waiting"])],
)
async def test_invitations_by_mail_and_by_user_id_are_listed_together(
    service: Service, directory: MemberDirectory, org: Organization, text: str, found: list[str]
) -> None:
    await add_member(org.owner, "waiting")
    await invite(org.owner, "mail@x.example")
    page = await directory.invited(reader_of(org), UserSearch(text), FIRST_PAGE)
    assert [one.user.subject if one.user else one.email for one in page.data] == found
    assert (await directory.counts(reader_of(org))).invited == Count(2)


async def test_withdrawn_invitation_is_listed_with_the_closed_ones(
    directory: MemberDirectory, org: Organization
) -> None:
    made = await invite(org.owner, "mail@x.example")
    await org.owner.delete(f"{INVITATIONS}/{made['id']}")
    closed = await directory.invited(reader_of(org), ALL, FIRST_PAGE, closed=True)
    assert [(one.email, one.status) for one in closed.data] == [("mail@x.example", "withdrawn")]
    assert (await directory.invited(reader_of(org), ALL, FIRST_PAGE)).data == []


@pytest.mark.parametrize("text", ["lovel", "ADA@", "|ada", "ce ada@acme"])
async def test_member_is_found_by_any_part_in_any_case(
    service: Service,
    directory: MemberDirectory,
    database: Database,
    org: Organization,
    text: str,
) -> None:
    await join(service, org, "oidc|ada")
    await join(service, org, "oidc|grace")
    await visit(database, service, org, "oidc|ada", "Ada Lovelace", "ada@acme.example")
    assert await listed(directory, org, UserSearch(text)) == ["oidc|ada"]
    assert await listed(directory, org, UserSearch(text, "owner")) == []


async def test_user_by_claim_is_listed_until_a_membership_exists(
    service: Service, directory: MemberDirectory, database: Database, org: Organization
) -> None:
    other = await service.organization()
    await visit(database, service, org, "claims", "Clara", claimed_role="admin")
    await visit(database, service, org, "no-claim", "Nora")
    await visit(database, service, other, "elsewhere", "Else", claimed_role="member")
    principal = reader_of(org)
    page = await directory.claimed(principal, ALL, FIRST_PAGE)
    assert {one.user.subject: one.role for one in page.data} == {
        "first": "owner",
        "claims": "admin",
    }
    assert (await directory.claimed(principal, UserSearch("nora"), FIRST_PAGE)).data == []
    await add_member(org.owner, "claims")
    page = await directory.claimed(principal, ALL, FIRST_PAGE)
    assert [one.user.subject for one in page.data] == ["first"]


async def test_users_are_counted(
    service: Service, directory: MemberDirectory, database: Database, org: Organization
) -> None:
    for name in ("ada", "grace"):
        await join(service, org, name)
    await add_member(org.owner, "waiting")
    await visit(database, service, org, "claims", "Clara", claimed_role="admin")
    counts = await directory.counts(reader_of(org))
    assert counts == UserCounts(members=Count(2), invited=Count(1), claimed=Count(2))


async def test_users_of_a_former_identity_provider_are_not_listed(
    service: Service, database: Database, org: Organization
) -> None:
    await join(service, org, "ada")
    await visit(database, service, org, "claims", "Clara", claimed_role="admin")
    directory = MemberDirectory(database, Issuers("https://new.example"), service.clock)
    assert await listed(directory, org) == []
    principal = reader_of(org)
    assert (await directory.claimed(principal, ALL, FIRST_PAGE)).data == []
    assert await directory.counts(principal) == UserCounts(Count(0), Count(0), Count(0))
