"""Invitations by mail: who may invite, who may accept, and what is stored and mailed."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import psycopg
import pytest

from tenantry.common.secret import Secret
from tenantry.db.database import Database
from tenantry.domain.invitation_links import InvitationLinks
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.notifications.mail_delivery import MailService
from tests.support.app import PEPPER
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.emptying import SharedDatabase
from tests.support.members import MANAGER, MEMBERS, join, owned, remove_member
from tests.support.patience import patient_database
from tests.support.service import (
    WHOAMI,
    Caller,
    JsonObject,
    Organization,
    Service,
    refusal,
    running_service,
)
from tests.support.smtp import LOOPBACK, MailServer, Received, running

INVITATIONS: Final = "/api/v1/invitations"
ACCEPT: Final = f"{INVITATIONS}/accept"
CONFIRMATION: Final = f"{INVITATIONS}/confirmation"
BASE_URL: Final = "https://app.example"
ENABLED: Final = {
    "INVITATIONS": "true",
    "SMTP_URL": "smtp://127.0.0.1:9",
    "MAIL_FROM": "mail@acme.example",
    "BASE_URL": BASE_URL,
}
LINK: Final = re.compile(re.escape(BASE_URL) + r"/invitation\?token=([\w.-]+)(?:&proof=([\w.-]+))?")
CLOSED: Final = (409, "invitation_closed")
_numbers = iter(range(1, 10_000))


@pytest.fixture(scope="module")
async def service(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    async with running_service(shared_database.conninfo, **ENABLED) as service:
        yield service


def new_address() -> str:
    """An address that no other test has invited: how many mails it may get is limited."""
    return f"new-{next(_numbers)}@x.example"


async def invite(inviter: Caller, email: str, role: str = "member") -> JsonObject:
    """An address invited; returns the record."""
    answer = await inviter.post(INVITATIONS, {"email": email, "role": role})
    assert answer.status_code == 201, answer.text
    record: JsonObject = answer.json()
    return record


def path_of(invitation: JsonObject) -> str:
    return f"{INVITATIONS}/{invitation['id']}"


async def token_of(inviter: Caller, invitation: JsonObject) -> str:
    """The token in the link that an admin copies."""
    answer = await inviter.get(f"{path_of(invitation)}/link")
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found = LINK.fullmatch(answer.json()["url"])
    assert found is not None
    assert found[2] is None, "the proof is for mails alone"
    return found[1]


def verified(service: Service, sub: str, email: str) -> Caller:
    """A user whose address the identity provider has verified."""
    return service.user(sub, email=email, email_verified=True)


async def accept(user: Caller, token: str, **more: str) -> httpx2.Response:
    return await user.post(ACCEPT, {"token": token, **more})


async def members_of(org: Organization, user_id: str) -> list[JsonObject]:
    answer = await org.owner.get(MEMBERS, userId=user_id)
    data: list[JsonObject] = answer.json()["data"]
    return data


async def actions(org: Organization) -> list[str]:
    """The actions of the audit trail on members and invitations, oldest first."""
    entries = (await org.owner.get("/api/v1/audit-events")).json()["data"][::-1]
    return [each["action"] for each in entries if each["action"].startswith(("member", "invit"))]


async def fetch(service: Service, statement: str, *values: object) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        return await (await connection.execute(statement, values)).fetchall()


async def set_back(service: Service, invitation: JsonObject, days: int) -> None:
    """An invitation, and its mails, moved into the past."""
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        values = {"id": invitation["id"], "days": days}
        await connection.execute(
            "UPDATE invitations SET created_at = created_at - make_interval(days => %(days)s), "
            "expires_at = expires_at - make_interval(days => %(days)s) WHERE id = %(id)s",
            values,
        )
        await connection.execute(
            "UPDATE mails SET created_at = created_at - make_interval(days => %(days)s), "
            "due_at = due_at - make_interval(days => %(days)s) WHERE data->>'invitationId' = %(id)s",
            values,
        )


@asynccontextmanager
async def delivering(service: Service) -> AsyncIterator["Delivery"]:
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    try:
        async with running(MailServer()) as server:
            yield Delivery(service, server, database)
    finally:
        await database.close()


class Delivery:
    """A mail server, and the mail service of a worker that hands it what is queued."""

    def __init__(self, service: Service, server: MailServer, database: Database) -> None:
        config = parse_smtp_url(f"smtp://{LOOPBACK}:{server.port}", "Acme <mail@acme.example>")
        links = InvitationLinks([Secret(PEPPER)], BASE_URL)
        self._mail = MailService(
            database,
            Mailer(config),
            service.clock,
            base_url=BASE_URL,
            links=links,
        )
        self._service = service
        self._server = server

    async def deliver(self, org: str) -> list[Received]:
        """Deliver what is queued for a tenant; returns the mails that arrived."""
        queued = await fetch(
            self._service,
            "SELECT id FROM mails WHERE tenant_id = %s AND status = 'queued' ORDER BY created_at",
            org,
        )
        number = len(self._server.received)
        for (mail_id,) in queued:
            await self._mail.deliver(mail_id)
        return self._server.received[number:]


def link_in(mail: Received) -> re.Match[str]:
    found = LINK.search(mail.part("plain"))
    assert found is not None
    assert found[0].replace("&", "&amp;") in mail.part("html")
    return found


# Creating, listing, withdrawing


async def test_invitation_has_the_documented_record(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    invitation = await invite(org.owner, email, "admin")
    assert set(invitation) == {
        "id",
        "orgId",
        "email",
        "role",
        "status",
        "invitedBy",
        "createdAt",
        "expiresAt",
        "sentAt",
    }
    assert (invitation["orgId"], invitation["email"], invitation["role"]) == (
        org.id,
        email,
        "admin",
    )
    assert (invitation["status"], invitation["sentAt"]) == ("open", None)
    assert invitation["invitedBy"] == org.key.id
    assert (await org.owner.get(path_of(invitation))).json() == invitation
    assert (await org.owner.get(INVITATIONS)).json()["data"] == [invitation]
    assert (await org.owner.get(INVITATIONS, status="withdrawn")).json()["data"] == []


async def test_second_invitation_of_an_address_is_refused_in_any_form(service: Service) -> None:
    org = await service.organization()
    await invite(org.owner, "José@München.example")
    for other in ("jose\u0301@xn--mnchen-3ya.example", "JOSÉ@MÜNCHEN.EXAMPLE"):
        answer = await org.owner.post(INVITATIONS, {"email": other, "role": "member"})
        assert refusal(answer) == (409, "invitation_exists")
    await invite(org.owner, "jos.é@münchen.example")
    await invite(org.owner, "josé+ci@münchen.example")


async def test_address_of_a_member_is_refused(service: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "known")
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO user_profiles (org_id, issuer, subject, email, seen_at) "
            "VALUES (%s, %s, 'known', 'Known@x.example', now())",
            (org.id, service.issuer.url),
        )
    body = {"email": "known@X.example", "role": "admin"}
    answer = await org.owner.post(INVITATIONS, body)
    assert refusal(answer) == (409, "member_exists")
    await remove_member(org.owner, member)
    assert (await org.owner.post(INVITATIONS, body)).status_code == 201


async def test_address_of_a_member_is_known_from_the_invitation_and_from_tokens(
    service: Service,
) -> None:
    org = await service.organization()
    invited, alias = new_address(), new_address()
    token = await token_of(org.owner, await invite(org.owner, invited))
    async with delivering(service) as delivery:
        [mail] = await delivery.deliver(org.id)
    user = verified(service, "two-addresses", alias)
    assert (await accept(user, token, proof=link_in(mail)[2])).status_code == 200
    member = await join(service, org, "by-token")
    by_token = new_address()
    assert (await verified(service, "by-token", by_token).get(WHOAMI)).status_code == 200
    waiting = await invite(org.owner, new_address())
    for email in (invited, alias, by_token.upper()):
        answer = await org.owner.post(INVITATIONS, {"email": email, "role": "member"})
        assert refusal(answer) == (409, "member_exists"), email
    await remove_member(org.owner, member)
    await invite(org.owner, by_token)
    late = verified(service, "two-addresses", waiting["email"])
    assert (await late.get(WHOAMI)).status_code == 200
    resent = await org.owner.post(f"{path_of(waiting)}/resend")
    assert refusal(resent) == (409, "member_exists")


@cases(
    ("known", "invited"),
    [
        ("ada@münchen.example", "ada@xn--mnchen-3ya.example"),
        ("ada@xn--mnchen-3ya.example", "ada@MÜNCHEN.example"),
        ("jose\u0301@x.example", "josé@x.example"),
        ("josé@x.example", "jose\u0301@X.example"),
        ("ada@x.example", "ada@x.example."),
    ],
)
async def test_address_of_a_member_is_refused_in_any_form(
    service: Service, known: str, invited: str
) -> None:
    org = await service.organization()
    member = f"user-{next(_numbers)}"
    await join(service, org, member)
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO user_profiles (org_id, issuer, subject, email, seen_at) "
            "VALUES (%s, %s, %s, %s, now())",
            (org.id, service.issuer.url, member, known),
        )
    answer = await org.owner.post(INVITATIONS, {"email": invited, "role": "member"})
    assert refusal(answer) == (409, "member_exists")


@cases(
    "email",
    [
        "no address",
        "a@b@c.example",
        "a@\u2488.example",
        "a\u202e@b.example",
        "a\u200b@b.example",
        "a@b..example",
        "a@b.example/c",
        f"{'a' * 65}@b.example",
        f"a@{'b' * 64}.example",
    ],
)
async def test_text_that_is_no_address_is_refused(service: Service, email: str) -> None:
    org = await service.organization()
    answer = await org.owner.post(INVITATIONS, {"email": email, "role": "member"})
    assert refusal(answer) == (422, "validation_failed")
    assert "email" in answer.json()["errors"][0]["location"]


async def test_role_above_that_of_the_inviter_is_refused(service: Service) -> None:
    org = await service.organization()
    admin = await service.key(org.owner, org.id, *MANAGER)
    for role in ("owner", "admin", "member"):
        answer = await admin.caller.post(INVITATIONS, {"email": new_address(), "role": role})
        assert refusal(answer) == (403, "scope_escalation")


async def test_withdrawn_invitation_cannot_be_accepted(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    invitation = await invite(org.owner, email)
    token = await token_of(org.owner, invitation)
    for _ in range(2):
        assert (await org.owner.delete(path_of(invitation))).status_code == 204
    assert refusal(await accept(verified(service, "late", email), token)) == CLOSED
    assert refusal(await org.owner.get(f"{path_of(invitation)}/link")) == CLOSED
    assert refusal(await org.owner.post(f"{path_of(invitation)}/resend")) == CLOSED
    assert await members_of(org, "late") == []
    assert (await org.owner.get(path_of(invitation))).json()["status"] == "withdrawn"


async def test_expired_invitation_cannot_be_accepted_and_gives_way(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    invitation = await invite(org.owner, email)
    token = await token_of(org.owner, invitation)
    await set_back(service, invitation, days=7)
    assert (await org.owner.get(path_of(invitation))).json()["status"] == "expired"
    assert refusal(await accept(verified(service, "too-late", email), token)) == CLOSED
    again = await invite(org.owner, email)
    assert again["id"] != invitation["id"]
    assert refusal(await accept(verified(service, "too-late", email), token)) == CLOSED


async def test_another_tenants_invitation_does_not_exist(service: Service) -> None:
    org, other = await service.organization(), await service.organization()
    path = path_of(await invite(org.owner, new_address()))
    for answer in (
        await other.owner.get(path),
        await other.owner.get(f"{path}/link"),
        await other.owner.delete(path),
        await other.owner.post(f"{path}/resend"),
    ):
        assert refusal(answer) == (404, "not_found")


async def test_same_idempotency_key_invites_once(service: Service) -> None:
    org = await service.organization()
    body = {"email": new_address(), "role": "member"}
    first, second = [
        await org.owner.post(INVITATIONS, body, idempotency_key="invite-once") for _ in range(2)
    ]
    assert first.json() == second.json()
    assert len((await org.owner.get(INVITATIONS)).json()["data"]) == 1


# Limits


async def test_open_invitations_count_as_members_of_the_plan(conninfo: str) -> None:
    catalog = catalog_file('[[plans]]\nid = "free"\n[plans.limits]\nmembers = 2\n')
    settings = {**ENABLED, "TENANTRY_PLANS": catalog}
    async with running_service(conninfo, **settings) as service:
        org, _ = await owned(service, "limited")
        email = new_address()
        token = await token_of(org.owner, await invite(org.owner, email))
        for path, body in (
            (INVITATIONS, {"email": new_address(), "role": "member"}),
            (MEMBERS, {"userId": "one-more", "role": "member"}),
        ):
            assert refusal(await org.owner.post(path, body)) == (403, "plan_limit_reached")
        assert (await accept(verified(service, "just-fits", email), token)).status_code == 200


async def test_tenant_sends_so_many_mails_in_24_hours(service: Service) -> None:
    org = await service.organization()
    invitations = [await invite(org.owner, new_address()) for _ in range(50)]
    body = {"email": new_address(), "role": "member"}
    for answer in (
        await org.owner.post(INVITATIONS, body),
        await org.owner.post(f"{path_of(invitations[0])}/resend"),
    ):
        assert refusal(answer) == (429, "invitation_limit_reached")
    await set_back(service, invitations[0], days=1)
    assert (await org.owner.post(INVITATIONS, body)).status_code == 201


async def test_invitation_is_sent_three_times_at_most(service: Service) -> None:
    org = await service.organization()
    invitation = await invite(org.owner, new_address())
    token = await token_of(org.owner, invitation)
    for _ in range(2):
        answer = await org.owner.post(f"{path_of(invitation)}/resend")
        assert answer.status_code == 200
    limited = await org.owner.post(f"{path_of(invitation)}/resend")
    assert refusal(limited) == (429, "invitation_limit_reached")
    assert await token_of(org.owner, invitation) == token


async def test_sending_again_extends_the_invitation(service: Service) -> None:
    org = await service.organization()
    invitation = await invite(org.owner, new_address())
    await set_back(service, invitation, days=5)
    again = (await org.owner.post(f"{path_of(invitation)}/resend")).json()
    assert again["expiresAt"] >= invitation["expiresAt"]
    assert (await actions(org)) == ["invitation.created", "invitation.resent"]


async def test_address_gets_six_mails_a_day_of_all_tenants(service: Service) -> None:
    email = new_address()
    tenants = [await service.organization() for _ in range(7)]
    invitations = [await invite(org.owner, email) for org in tenants]
    async with delivering(service) as delivery:
        numbers = [len(await delivery.deliver(org.id)) for org in tenants]
    assert numbers == [1] * 6 + [0]
    assert await token_of(tenants[-1].owner, invitations[-1])
    answer = await tenants[-1].owner.post(f"{path_of(invitations[-1])}/resend")
    assert refusal(answer) == (429, "invitation_limit_reached")


# Accepting


async def test_user_with_the_verified_address_becomes_a_member(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    invitation = await invite(org.owner, email, "admin")
    user = verified(service, "grace", email)
    answer = await accept(user, await token_of(org.owner, invitation))
    assert answer.status_code == 200, answer.text
    assert answer.json() | {"id": ""} == {
        "id": "",
        "orgId": org.id,
        "orgName": org.id,
        "role": "admin",
        "status": "active",
    }
    who = await service.user("grace").get(WHOAMI)
    assert (who.json()["orgId"], who.json()["scopes"]) == (org.id, ["*:*"])
    assert (await org.owner.get(path_of(invitation))).json()["status"] == "accepted"
    assert await actions(org) == ["invitation.created", "invitation.accepted", "member.accepted"]


@cases(
    "claims",
    [{}, {"email": "ada@x.example"}, {"email": "ada@x.example", "email_verified": False}],
)
async def test_user_without_a_verified_address_is_refused(
    service: Service, claims: dict[str, Any]
) -> None:
    org = await service.organization()
    token = await token_of(org.owner, await invite(org.owner, "ada@x.example"))
    answer = await accept(service.user("unverified", **claims), token)
    assert refusal(answer) == (403, "email_not_verified")
    assert await members_of(org, "unverified") == []


@cases(
    "other",
    [
        "ad.a@x.example",
        "ada+x@x.example",
        "ada@x.example.evil.example",
        "\uff41da@x.example",  # a full-width letter
        "\u0430da@x.example",  # a Cyrillic one
        "ada@x\u0301.example",
    ],
)
async def test_user_with_another_address_is_refused(service: Service, other: str) -> None:
    org = await service.organization()
    token = await token_of(org.owner, await invite(org.owner, "ada@x.example"))
    answer = await accept(verified(service, "mallory", other), token)
    assert refusal(answer) == (403, "email_mismatch")
    assert await members_of(org, "mallory") == []


@cases(
    ("invited", "of_user"),
    [
        ("Ada@X.example", "ada@x.EXAMPLE"),
        ("josé@x.example", "jose\u0301@x.example"),
        ("ada@münchen.example", "ada@xn--mnchen-3ya.example"),
        ("ada@xn--mnchen-3ya.example", "ada@MÜNCHEN.example"),
    ],
)
async def test_another_form_of_the_address_is_the_same(
    service: Service, invited: str, of_user: str
) -> None:
    org = await service.organization()
    token = await token_of(org.owner, await invite(org.owner, invited))
    user = f"user-{next(_numbers)}"
    assert (await accept(verified(service, user, of_user), token)).status_code == 200


@cases(
    ("invited", "of_user"),
    [
        ("strasse@x.example", "straße@x.example"),
        ("ada@strasse.example", "ada@straße.example"),
        ("sam@x.example", "\u017fam@x.example"),
        ("fi@x.example", "\ufb01@x.example"),
    ],
)
async def test_letters_that_only_case_folding_joins_are_different(
    service: Service, invited: str, of_user: str
) -> None:
    org = await service.organization()
    token = await token_of(org.owner, await invite(org.owner, invited))
    answer = await accept(verified(service, "folded", of_user), token)
    assert refusal(answer) == (403, "email_mismatch")


async def test_forged_link_does_not_exist(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    invitation = await invite(org.owner, email)
    token = await token_of(org.owner, invitation)
    other = await token_of(org.owner, await invite(org.owner, new_address()))
    forged = f"{invitation['id']}.{other.partition('.')[2]}"
    user = verified(service, "forger", email)
    for text in ("", invitation["id"], forged, token[:-1], token + "A", "inv_\u0660.x"):
        assert refusal(await accept(user, text)) == (404, "not_found")


async def test_api_key_cannot_accept(service: Service) -> None:
    org = await service.organization()
    token = await token_of(org.owner, await invite(org.owner, new_address()))
    assert refusal(await accept(org.owner, token)) == (403, "user_token_required")


async def test_accepting_again_gives_the_same_membership(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    token = await token_of(org.owner, await invite(org.owner, email))
    first, second = [await accept(verified(service, "twice", email), token) for _ in range(2)]
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()
    other = verified(service, "somebody-else", email)
    assert refusal(await accept(other, token)) == CLOSED


async def test_removed_member_comes_back_by_accepting_and_never_by_a_claim(
    service: Service,
) -> None:
    org = await service.organization()
    member = await join(service, org, "came-back", "admin")
    await remove_member(org.owner, member)
    claimed = service.user("came-back", org=org.id, role="admin")
    assert refusal(await claimed.get(WHOAMI)) == (403, "no_organization")
    email = new_address()
    token = await token_of(org.owner, await invite(org.owner, email))
    assert refusal(await claimed.get(WHOAMI)) == (403, "no_organization")
    accepted = await accept(verified(service, "came-back", email), token)
    assert (accepted.json()["id"], accepted.json()["role"]) == (member["id"], "member")
    assert (await service.user("came-back").get(WHOAMI)).json()["orgId"] == org.id


async def test_removed_member_does_not_come_back_by_an_invitation_of_before(
    service: Service,
) -> None:
    org = await service.organization()
    email = new_address()
    invitation = await invite(org.owner, email, "admin")
    token = await token_of(org.owner, invitation)
    member = await join(service, org, "never-opened-it", "admin")
    await remove_member(org.owner, member)
    user = verified(service, "never-opened-it", email)
    assert refusal(await accept(user, token)) == CLOSED
    assert await members_of(org, "never-opened-it") == []
    assert (await org.owner.get(path_of(invitation))).json()["status"] == "open"
    assert (await org.owner.post(f"{path_of(invitation)}/resend")).status_code == 200
    assert (await accept(user, token)).status_code == 200


async def test_active_member_is_told(service: Service) -> None:
    org = await service.organization()
    await join(service, org, "here-already", "admin")
    email = new_address()
    invitation = await invite(org.owner, email)
    token = await token_of(org.owner, invitation)
    answer = await accept(verified(service, "here-already", email), token)
    assert refusal(answer) == (409, "member_exists")
    [member] = await members_of(org, "here-already")
    assert member["role"] == "admin"
    record = await org.owner.get(path_of(invitation))
    assert record.json()["status"] == "withdrawn"


async def test_member_with_another_address_leaves_an_invitation_open(service: Service) -> None:
    org = await service.organization()
    await join(service, org, "curious")
    invitation = await invite(org.owner, new_address())
    token = await token_of(org.owner, invitation)
    answer = await accept(verified(service, "curious", new_address()), token)
    assert refusal(answer) == (403, "email_mismatch")
    record = await org.owner.get(path_of(invitation))
    assert record.json()["status"] == "open"


async def test_suspended_tenant_cannot_be_joined(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    token = await token_of(org.owner, await invite(org.owner, email))
    fields = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
    assert (await service.operator.put(org.path, fields)).status_code == 200
    answer = await accept(verified(service, "suspended", email), token)
    assert refusal(answer) == (403, "org_suspended")


async def test_user_removed_after_accepting_does_not_come_back_by_the_same_link(
    service: Service,
) -> None:
    org = await service.organization()
    email = new_address()
    token = await token_of(org.owner, await invite(org.owner, email))
    user = verified(service, "removed-again", email)
    await accept(user, token)
    [member] = await members_of(org, "removed-again")
    await remove_member(org.owner, member)
    assert refusal(await accept(user, token)) == CLOSED


# Races


async def test_20_concurrent_acceptances_make_one_membership(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    token = await token_of(org.owner, await invite(org.owner, email))
    user = verified(service, "impatient", email)
    answers = await asyncio.gather(*(accept(user, token) for _ in range(20)))
    assert Counter(answer.status_code for answer in answers) == {200: 20}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(await members_of(org, "impatient")) == 1
    assert (await actions(org)).count("member.accepted") == 1


async def test_20_users_of_one_address_make_one_membership(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    token = await token_of(org.owner, await invite(org.owner, email))
    users = [verified(service, f"double-{number}", email) for number in range(20)]
    answers = await asyncio.gather(*(accept(user, token) for user in users))
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: 19}
    active = await org.owner.get(MEMBERS, status="active")
    assert len(active.json()["data"]) == 1


# The proof, and the confirmation mail


async def mailed_proof(delivery: Delivery, org: Organization, email: str) -> str:
    """The proof in the one mail that arrives at an address."""
    [mail] = await delivery.deliver(org.id)
    assert mail.recipients == [email]
    return link_in(mail)[2]


async def test_proof_of_the_invitation_mail_counts_once_for_whoever_presents_it(
    service: Service,
) -> None:
    email = new_address()
    alias = verified(service, "alias", f"former-{email}")
    async with delivering(service) as delivery:
        for user in (alias, service.user("without-address"), verified(service, "same", email)):
            org = await service.organization()
            token = await token_of(org.owner, await invite(org.owner, email, "admin"))
            proof = await mailed_proof(delivery, org, email)
            assert (await accept(user, token, proof=proof)).json()["role"] == "admin"
            assert (await accept(user, token, proof=proof)).status_code == 200
            late = await accept(service.user("late"), token, proof=proof)
            assert refusal(late) == CLOSED


async def test_only_the_proof_of_this_invitation_counts(service: Service) -> None:
    org = await service.organization()
    first, second = new_address(), new_address()
    other = await token_of(org.owner, await invite(org.owner, second))
    async with delivering(service) as delivery:
        [of_second] = await delivery.deliver(org.id)
        token = await token_of(org.owner, await invite(org.owner, first))
        [of_first] = await delivery.deliver(org.id)
    proof = link_in(of_first)[2]
    forged = ("", link_in(of_second)[2], proof[:-1], token.partition(".")[2])
    for text in forged:
        answer = await accept(service.user("crossed"), token, proof=text)
        assert refusal(answer) == (403, "email_not_verified")
        answer = await accept(verified(service, "crossed", "z@x.example"), token, proof=text)
        assert refusal(answer) == (403, "email_mismatch")
    assert refusal(await accept(service.user("crossed"), other, proof=proof)) == (
        403,
        "email_not_verified",
    )
    assert await members_of(org, "crossed") == []


async def test_confirmation_mail_has_the_proof_for_a_user_with_the_link_alone(
    service: Service,
) -> None:
    org = await service.organization()
    email = new_address()
    token = await token_of(org.owner, await invite(org.owner, email))
    user = service.user("confirmed")
    assert refusal(await accept(user, token)) == (403, "email_not_verified")
    async with delivering(service) as delivery:
        await delivery.deliver(org.id)
        assert (await user.post(CONFIRMATION, {"token": token})).status_code == 204
        proof = await mailed_proof(delivery, org, email)
    assert (await accept(user, token, proof=proof)).status_code == 200


async def test_nothing_is_mailed_for_a_step_that_could_not_count(service: Service) -> None:
    org = await service.organization()
    await join(service, org, "here-already", "admin")
    gone = await join(service, org, "gone")
    invitation = await invite(org.owner, new_address())
    token = await token_of(org.owner, invitation)
    await remove_member(org.owner, gone)
    for user, expected in (
        (verified(service, "curious", new_address()), (403, "email_mismatch")),
        (service.user("here-already"), (409, "member_exists")),
        (service.user("gone"), CLOSED),
    ):
        assert refusal(await user.post(CONFIRMATION, {"token": token})) == expected
    statement = "SELECT count(*) FROM mails WHERE tenant_id = %s AND type LIKE '%%confirmation'"
    assert await fetch(service, statement, org.id) == [(0,)]


async def test_address_gets_three_confirmation_mails_an_hour(service: Service) -> None:
    org = await service.organization()
    token = await token_of(org.owner, await invite(org.owner, new_address()))
    answers = [await service.user("eager").post(CONFIRMATION, {"token": token}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [204, 204, 204, 429]
    assert refusal(answers[-1]) == (429, "invitation_limit_reached")


# Mails


async def test_mail_links_the_invitation_and_is_recorded(service: Service) -> None:
    org = await service.organization(name="Evil https://evil.example/pay")
    invitation = await invite(org.owner, "Grace@München.example", "admin")
    async with delivering(service) as delivery:
        [mail] = await delivery.deliver(org.id)
        assert await delivery.deliver(org.id) == []
    assert mail.recipients == ["Grace@xn--mnchen-3ya.example"]
    assert link_in(mail)[1] == await token_of(org.owner, invitation)
    assert "evil.example" not in mail.part("plain")
    assert "admin" in mail.part("plain")
    record = (await org.owner.get(path_of(invitation))).json()
    assert record["sentAt"] is not None


async def test_mail_of_a_withdrawn_invitation_is_dropped(service: Service) -> None:
    org = await service.organization()
    await org.owner.delete(path_of(await invite(org.owner, new_address())))
    async with delivering(service) as delivery:
        assert await delivery.deliver(org.id) == []
    statement = "SELECT status FROM mails WHERE tenant_id = %s"
    assert await fetch(service, statement, org.id) == [("dropped",)]


async def test_invitations_leave_the_security_notices_of_a_tenant_alone(service: Service) -> None:
    org = await service.organization()
    for _ in range(6):
        await invite(org.owner, new_address())
    leaked = await service.key(org.owner, org.id, "projects:read")
    secret = leaked.caller.credential
    answer = await service.anonymous.post("/api/v1/api-keys/report-leak", {"secret": secret})
    assert answer.status_code == 200
    statement = "SELECT status FROM mails WHERE tenant_id = %s AND type = 'api_key.leaked'"
    assert await fetch(service, statement, org.id) == [("queued",)]


# Data


async def test_export_has_the_invitations(service: Service) -> None:
    org = await service.organization()
    assert "invitations" not in (await service.operator.get(f"{org.path}/export")).json()
    invitation = await invite(org.owner, new_address())
    exported = (await service.operator.get(f"{org.path}/export")).json()
    assert exported["invitations"] == [invitation]


async def test_link_is_in_no_table(service: Service) -> None:
    org = await service.organization()
    email = new_address()
    body = {"email": email, "role": "member"}
    created = await org.owner.post(INVITATIONS, body, idempotency_key="no-link")
    token = await token_of(org.owner, created.json())
    user = verified(service, "traceless", email)
    await user.post(CONFIRMATION, {"token": token})
    async with delivering(service) as delivery:
        proof = link_in((await delivery.deliver(org.id))[0])[2]
    await user.post(ACCEPT, {"token": token, "proof": proof}, idempotency_key=token)
    secret = f"%({token.partition('.')[2]}|{proof})%"
    tables = await fetch(
        service, "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'"
    )
    for (table,) in tables:
        found = await fetch(
            service,
            f'SELECT count(*) FROM "{table}" AS row WHERE row::text SIMILAR TO %s',  # noqa: S608
            secret,
        )
        assert found == [(0,)], table
