"""The mail that an attacker can cause to another person: leak reports, changes of address, and
confirmation mails.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import psycopg
import pytest

from tenantry.db.database import Database
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.notifications.mail_delivery import MailDeferredError, MailService
from tests.support import events
from tests.support.cases import cases
from tests.support.patience import patient_database
from tests.support.service import KEYS, TENANTS, Key, Organization, Service, running_service
from tests.support.signing import deliver
from tests.support.smtp import LOOPBACK, MailServer, Received, running

REPORT: Final = f"{KEYS}/report-leak"
CONFIRM: Final = "/confirm-address"
EVIL: Final = "ACTION REQUIRED https://evil.example/pay"
FORMER: Final = "former@x.example"
BASE_URL: Final = "http://127.0.0.1:3001"
LINK: Final = re.compile(re.escape(BASE_URL) + r"/confirm-address\?token=([A-Za-z0-9_-]+)")
LINKED: Final = re.compile(
    r"(?i)\w://|www\.|\w@\w|\bevil\.|555 0199|[\u200b-\u200f\u202a-\u202e\u2060-\u2069]"
)


class Post:
    """A mail server, and the mail service of a process that hands it what the service has
    queued.
    """

    def __init__(self, service: Service, server: MailServer, database: Database) -> None:
        config = parse_smtp_url(f"smtp://{LOOPBACK}:{server.port}", "Acme <mail@acme.example>")
        self.mail = MailService(database, Mailer(config), service.clock, base_url=BASE_URL)
        self.server = server
        self._service = service

    async def deliver(self, org: str) -> list[Received]:
        """Deliver what is queued for a tenant; returns the mails that arrived, in the order of
        their queueing.
        """
        rows = await self.queued(org)
        number = len(self.server.received)
        for row in rows:
            await self.mail.deliver(row["id"])
        return self.server.received[number:]

    async def queued(self, org: str) -> list[dict[str, Any]]:
        return await rows(
            self._service,
            "SELECT * FROM mails WHERE tenant_id = %s AND status = 'queued' ORDER BY created_at, type",
            org,
        )

    async def confirmation(self, org: str) -> str:
        """The token in the newest confirmation mail of a tenant, which is delivered for it."""
        *_, mail = [
            mail for mail in await self.deliver(org) if "Confirm" in mail.message["Subject"]
        ]
        return token_of(mail)


@asynccontextmanager
async def posting(service: Service) -> AsyncIterator[Post]:
    database = patient_database(service.conninfo, pool_size=1)
    await database.open()
    try:
        async with running(MailServer()) as server:
            yield Post(service, server, database)
    finally:
        await database.close()


@pytest.fixture
async def post(service: Service) -> AsyncIterator[Post]:
    async with posting(service) as post:
        yield post


async def rows(service: Service, statement: str, *values: object) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(
        service.conninfo, row_factory=psycopg.rows.dict_row
    ) as connection:
        return await (await connection.execute(statement, values)).fetchall()


def token_of(mail: Received) -> str:
    found = LINK.search(mail.part("plain"))
    assert found is not None
    assert found[0] in mail.part("html")
    return found[1]


_numbers = iter(range(1, 10_000))


def new_address() -> str:
    """An address that no other test has had confirmations sent to: how many it may get is
    limited.
    """
    return f"new-{next(_numbers)}@x.example"


async def own_tenant(
    service: Service, *, name: str = "Acme", email: str | None = None, **claims: Any
) -> Organization:
    """A tenant that a user made with this address, and an OWNER key of it."""
    org, email = f"own-{next(_numbers)}", email or new_address()
    user = service.user(f"user-of-{org}", org=org, role="owner", **claims)
    answer = await user.post(TENANTS, {"name": name, "ownerEmail": email})
    assert answer.status_code == 201, answer.text
    return Organization(org, await service.key(user, org, accessLevel="OWNER"))


async def operators_tenant(service: Service, **fields: object) -> Organization:
    """A tenant whose address the operator vouches for."""
    org = f"operators-{next(_numbers)}"
    answer = await service.operator.put(
        f"{TENANTS}/{org}", {"name": "Acme", "ownerEmail": FORMER, **fields}
    )
    assert answer.status_code == 201, answer.text
    user = service.user(f"user-of-{org}", org=org, role="owner")
    return Organization(org, await service.key(user, org, accessLevel="OWNER"))


async def leak(
    service: Service, org: Organization, number: int = 1, name: str = "key"
) -> list[Key]:
    keys = []
    for _ in range(number):  # a plan allows few active keys
        key = await service.key(org.owner, org.id, "projects:read", name=name)
        answer = await service.anonymous.post(REPORT, {"secret": key.caller.credential})
        assert answer.status_code == 200, answer.text
        keys.append(key)
    return keys


async def set_address(org: Organization, email: str) -> None:
    answer = await org.owner.patch(org.path, {"name": "Acme", "ownerEmail": email})
    assert answer.status_code == 200, answer.text


async def is_verified(service: Service, org: Organization) -> bool:
    export = (await service.operator.get(f"{org.path}/export")).json()
    return bool(export["ownerEmailVerified"])


async def confirm(service: Service, token: str) -> httpx2.Response:
    return await service.anonymous.call("POST", CONFIRM, data={"token": token})


# --- the attack


async def test_many_leak_reports_send_three_mails_without_text_of_the_attacker(
    conninfo: str,
) -> None:
    victim = "victim@other.example"
    async with (
        running(MailServer()) as server,
        running_service(
            conninfo,
            RUN_JOBS="true",
            MAIL_FROM="Acme <keys@acme.example>",
            SMTP_URL=f"smtp://{LOOPBACK}:{server.port}",
        ) as service,
    ):
        for number in range(5):
            org = f"evil-{number}"
            user = service.user(f"attacker-{number}", org=org, role="owner")
            made = await user.post(TENANTS, {"name": EVIL, "ownerEmail": victim})
            assert made.status_code == 201, made.text
            for _ in range(2):
                key = await service.key(user, org, "projects:read", name=EVIL)
                report = await service.anonymous.post(REPORT, {"secret": key.caller.credential})
                assert report.status_code == 200, report.text
        # a mail that comes after all others
        last = await service.organization(ownerEmail="last@x.example")
        await service.anonymous.post(REPORT, {"secret": last.key.caller.credential})
        await server.wait_for(
            lambda server: any(mail.recipients == ["last@x.example"] for mail in server.received)
        )
    to_victim = [mail for mail in server.received if mail.recipients == [victim]]
    evil = [
        mail
        for mail in to_victim
        if "ACTION" in mail.message.as_string() or "evil" in mail.part("plain")
    ]
    counts = f"{len(to_victim)} mails to the victim, {len(evil)} of them with the attacker's text"
    assert counts == "3 mails to the victim, 0 of them with the attacker's text"
    assert {mail.message["Subject"] for mail in to_victim} == {"Confirm your e-mail address"}


async def test_names_in_a_notice_contain_no_link(service: Service, post: Post) -> None:
    org = await operators_tenant(service)
    # no request stores such a name
    name = f"{EVIL}\u202e +1 800 555 0199"
    await rows(service, "UPDATE tenants SET name = %s WHERE id = %s RETURNING id", name, org.id)
    await leak(service, org, name="call evil@evil.example or www.evil.example")
    [mail] = await post.deliver(org.id)
    assert mail.message["Subject"] == "A leaked API key was revoked"
    for text in (mail.part("plain"), re.sub(r"<[^>]*>", "", mail.part("html"))):
        assert LINKED.search(text) is None, text
        assert "ACTION REQUIRED https[:]/evil[.]example/pay" in text


# --- who an address is verified by


@cases(
    ("claims", "verified"),
    [
        ({"email_verified": True}, True),
        ({"email_verified": False}, False),
        ({}, False),
        ({"email_verified": "true"}, True),  # as Cognito writes it
        ({"email_verified": "yes"}, False),
    ],
)
async def test_only_the_verified_claim_with_that_address_verifies_it(
    service: Service, claims: dict[str, Any], *, verified: bool
) -> None:
    new = new_address()
    user = service.user(f"claims-{next(_numbers)}", email=new, **claims)
    made = await user.post(TENANTS, {"name": "x", "ownerEmail": new})
    export = (await service.operator.get(f"{TENANTS}/{made.json()['id']}/export")).json()
    assert export["ownerEmailVerified"] is verified


async def test_claim_for_another_address_does_not_verify(service: Service) -> None:
    user = service.user(f"claims-{next(_numbers)}", email="own@x.example", email_verified=True)
    made = await user.post(TENANTS, {"name": "x", "ownerEmail": new_address()})
    export = (await service.operator.get(f"{TENANTS}/{made.json()['id']}/export")).json()
    assert export["ownerEmailVerified"] is False


async def test_the_operator_verifies(service: Service) -> None:
    org = await own_tenant(service)
    assert not await is_verified(service, org)
    await service.operator.put(org.path, {"name": "x", "ownerEmail": new_address()})
    assert await is_verified(service, org)


async def test_tenant_record_has_only_the_known_fields(service: Service) -> None:
    org = await own_tenant(service)
    assert set((await org.owner.get(org.path)).json()) == {
        "id",
        "name",
        "plan",
        "subscriptionStatus",
        "currentPeriodEnd",
        "cancelAtPeriodEnd",
        "cancelAt",
        "endsAt",
        "seats",
        "access",
        "stripeCustomerId",
        "ownerId",
        "createdAt",
        "updatedAt",
    }


async def test_an_address_that_is_not_verified_gets_the_confirmation_and_payment_notices_only(
    service: Service, post: Post
) -> None:
    org = await own_tenant(service, email="unverified@x.example", name=EVIL)
    await leak(service, org, 3)
    [mail] = await post.deliver(org.id)
    assert mail.message["Subject"] == "Confirm your e-mail address"
    assert "ACTION" not in mail.message.as_string()
    [notice] = await payment_notices(service, org)
    await post.mail.deliver(notice["id"])
    assert post.server.received[-1].recipients == ["unverified@x.example"]
    assert post.server.received[-1].message["Subject"] == "Payment failed"


async def payment_notices(service: Service, org: Organization) -> list[dict[str, Any]]:
    """The notices of a payment of this tenant, which fails for it."""
    customer = f"cus_{org.id.replace('-', '_')}"
    link = events.completed(org=org.id, customer=customer, event_id=f"evt_link_{org.id}")
    failed = events.failed(customer=customer, event_id=f"evt_failed_{org.id}")
    for event in (link, failed):
        answer = await deliver(service.client, event, at=int(service.clock.now.timestamp()))
        assert answer.text == "OK"
    statement = "SELECT * FROM mails WHERE tenant_id = %s AND recipient_id IS NOT NULL"
    return await rows(service, statement, org.id)


# --- the confirmation link


async def test_link_verifies_the_address_after_one_click(service: Service, post: Post) -> None:
    org = await own_tenant(service, name=EVIL)
    token = await post.confirmation(org.id)
    page = await service.anonymous.get(CONFIRM, token=token)
    assert (page.status_code, page.headers["referrer-policy"]) == (200, "no-referrer")
    assert "Confirm address" in page.text
    assert "https://evil" not in page.text
    assert not await is_verified(service, org)  # opening the link changes nothing
    assert (await service.client.head(CONFIRM, params={"token": token})).status_code == 200
    assert not await is_verified(service, org)
    done = await confirm(service, token)
    assert (done.status_code, "Address confirmed" in done.text) == (200, True)
    assert await is_verified(service, org)
    [entry] = await rows(
        service,
        "SELECT * FROM audit_events WHERE org_id = %s AND action = 'tenant.updated'",
        org.id,
    )
    assert (entry["actor_kind"], entry["after"]) == ("anybody", {"ownerEmailVerified": True})


async def test_token_is_stored_as_a_hash_only(service: Service, post: Post) -> None:
    org = await own_tenant(service)
    token = await post.confirmation(org.id)
    stored = await rows(
        service, "SELECT mails::text AS row FROM mails WHERE tenant_id = %s", org.id
    )
    assert all(token not in row["row"] for row in stored)


async def test_link_is_valid_once(service: Service, post: Post) -> None:
    org = await own_tenant(service)
    token = await post.confirmation(org.id)
    answers = await asyncio.gather(*(confirm(service, token) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 404, 404, 404, 404]
    assert (await service.anonymous.get(CONFIRM, token=token)).status_code == 404


async def test_link_expires_after_a_day(emptied_service: Service) -> None:
    async with posting(emptied_service) as post:
        org = await own_tenant(emptied_service)
        token = await post.confirmation(org.id)
        emptied_service.clock.advance(hours=24, seconds=1)
        assert (await emptied_service.anonymous.get(CONFIRM, token=token)).status_code == 404
        assert (await confirm(emptied_service, token)).status_code == 404
        assert not await is_verified(emptied_service, org)


async def test_link_of_an_address_that_was_changed_meanwhile_is_not_valid(
    service: Service, post: Post
) -> None:
    org = await own_tenant(service, email="first@x.example")
    token = await post.confirmation(org.id)
    await set_address(org, "second@x.example")
    assert (await service.anonymous.get(CONFIRM, token=token)).status_code == 404
    assert (await confirm(service, token)).status_code == 404
    assert not await is_verified(service, org)


async def test_link_of_one_tenant_verifies_no_other(service: Service, post: Post) -> None:
    one, other = (
        await own_tenant(service, email="one@x.example"),
        await own_tenant(service, email="one@x.example"),
    )
    token = await post.confirmation(one.id)
    assert (await confirm(service, token)).status_code == 200
    assert (await is_verified(service, one), await is_verified(service, other)) == (True, False)


async def test_link_of_an_ended_tenant_is_not_valid(service: Service, post: Post) -> None:
    org = await own_tenant(service)
    token = await post.confirmation(org.id)
    await service.operator.delete(org.path)
    assert (await confirm(service, token)).status_code == 404


@pytest.mark.parametrize("change", ["", "x", "x" * 43, "é" * 43, "{}x", "{}="])
async def test_tampered_link_is_not_valid(service: Service, post: Post, change: str) -> None:
    org = await own_tenant(service, email=f"tampered-{next(_numbers)}@x.example")
    token = change.format(await post.confirmation(org.id))
    assert (await service.anonymous.get(CONFIRM, token=token)).status_code in (400, 404)
    assert (await confirm(service, token)).status_code == 404
    assert not await is_verified(service, org)


async def test_token_in_the_url_of_a_post_is_ignored(service: Service, post: Post) -> None:
    org = await own_tenant(service, email="query@x.example")
    token = await post.confirmation(org.id)
    answer = await service.anonymous.call("POST", f"{CONFIRM}?token={token}", data={"other": "x"})
    assert answer.status_code == 404
    assert not await is_verified(service, org)


async def test_every_process_accepts_the_link(service: Service, post: Post) -> None:
    org = await own_tenant(service, email="other-process@x.example")
    token = await post.confirmation(org.id)
    async with running_service(service.conninfo) as other:
        assert (await confirm(other, token)).status_code == 200
    assert await is_verified(service, org)
    assert (await confirm(service, token)).status_code == 404


async def test_confirmation_is_dropped_when_it_is_no_longer_needed(
    service: Service, post: Post
) -> None:
    org = await own_tenant(service, email="dropped@x.example")
    await service.operator.put(org.path, {"name": "x", "ownerEmail": "dropped@x.example"})
    assert await post.deliver(org.id) == []
    [mail] = await rows(service, "SELECT status FROM mails WHERE tenant_id = %s", org.id)
    assert mail["status"] == "dropped"


async def test_owner_token_with_a_verified_email_verifies_the_address(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        new = new_address()
        org = await own_tenant(service, email=new)
        user = service.user(
            f"user-of-{org.id}", org=org.id, role="owner", email=new, email_verified=True
        )
        assert (await user.get(TENANTS)).status_code == 200
    # what was noticed is written when the service stops
    async with running_service(conninfo) as service:
        assert await is_verified(service, org)


async def test_case_of_the_email_domain_does_not_matter(conninfo: str) -> None:
    async with running_service(conninfo) as service:
        org = await own_tenant(service, email="ada@X.example")
        sub = f"user-of-{org.id}"
        user = service.user(
            sub, org=org.id, role="owner", email="ada@x.example", email_verified=True
        )
        assert (await user.get(TENANTS)).status_code == 200
    async with running_service(conninfo) as service:
        assert await is_verified(service, org)


async def test_confirmation_to_an_invalid_address_raises_no_alert(emptied_service: Service) -> None:
    async with posting(emptied_service) as post:
        org = await own_tenant(emptied_service, email="a@..")
        assert await post.deliver(org.id) == []
        found = await rows(emptied_service, "SELECT status FROM mails WHERE tenant_id = %s", org.id)
        assert [row["status"] for row in found] == ["dropped"]


async def test_each_confirmation_has_its_own_id_and_only_the_newest_link_is_valid(
    service: Service, post: Post
) -> None:
    org = await own_tenant(service)
    [queued] = await post.queued(org.id)
    post.server.replies_to_data.append("451 4.3.0 Try again later")
    with pytest.raises(MailDeferredError):
        await post.mail.deliver(queued["id"])
    [first] = [mail.message["Message-ID"] for mail in await post.deliver(org.id)]
    await set_address(org, str(queued["recipient"]))
    [second] = [mail.message["Message-ID"] for mail in await post.deliver(org.id)]
    assert first != second


async def test_former_owner_gets_the_new_recipient_of_security_notices(
    service: Service, post: Post
) -> None:
    org = await operators_tenant(service)
    await set_address(org, new_address())
    await service.operator.put(org.path, {"name": "Acme", "ownerEmail": FORMER})
    await service.operator.put(org.path, {"name": "Acme", "ownerEmail": new_address()})
    told = [
        mail.part("plain") for mail in await post.deliver(org.id) if mail.recipients == [FORMER]
    ]
    said = ["Security notices come to this address until the new one is" in text for text in told]
    assert said == [True, False]


# --- how many confirmations


async def test_one_tenant_asks_for_three_confirmations_an_hour(emptied_service: Service) -> None:
    service = emptied_service
    async with posting(service) as post:
        org = await own_tenant(service, email="a0@x.example")
        for number in range(1, 10):
            await set_address(org, f"a{number}@x.example")
        assert len(await post.queued(org.id)) == 3
        service.clock.advance(hours=1)
        await set_address(org, "a9@x.example")  # the same address again: another confirmation
        assert len(await post.queued(org.id)) == 4


async def test_many_tenants_send_one_address_three_confirmations_an_hour_and_six_a_day(
    emptied_service: Service,
) -> None:
    service = emptied_service
    spellings = ("victim@x.example", "Victim@X.example", "vic.tim@x.example", "victim+{}@x.example")
    counts = []
    async with running_service(service.conninfo) as other:
        for _ in range(4):
            other.clock.now = service.clock.now
            await asyncio.gather(
                *(
                    own_tenant(each, email=spelling.format(number))
                    for number, spelling in enumerate(spellings)
                    for each in (service, other)
                )
            )
            queued = await rows(
                service, "SELECT FROM mails WHERE type = 'owner_address.confirmation'"
            )
            counts.append(len(queued))
            service.clock.advance(hours=1, seconds=1)
    assert counts == [3, 6, 6, 6]


# --- a change of address


async def test_change_is_announced_to_the_former_address_which_gets_security_notices_until_the_new_one_is_verified(
    service: Service, post: Post
) -> None:
    org, new = await operators_tenant(service), new_address()
    await set_address(org, new)
    await leak(service, org)
    mails = await post.deliver(org.id)
    assert [(mail.recipients, mail.message["Subject"]) for mail in mails] == [
        ([FORMER], "The owner's e-mail address was changed"),
        ([new], "Confirm your e-mail address"),
        ([FORMER], "A leaked API key was revoked"),
    ]
    assert new.replace("@", "[at]").replace(".", "[.]") in mails[0].part("plain")
    assert (await confirm(service, token_of(mails[1]))).status_code == 200
    await leak(service, org)
    assert [mail.recipients for mail in await post.deliver(org.id)] == [[new]]


async def test_payment_notices_go_to_the_new_address_at_once(service: Service, post: Post) -> None:
    org, new = await operators_tenant(service), new_address()
    await set_address(org, new)
    [notice] = await payment_notices(service, org)
    assert notice["recipient"] == new


async def test_restored_address_is_still_verified(service: Service) -> None:
    org, new = await operators_tenant(service), new_address()
    await set_address(org, new)
    await set_address(org, FORMER)
    assert await is_verified(service, org)


async def test_transfer_announces_the_new_address(service: Service, post: Post) -> None:
    org, new = await operators_tenant(service), new_address()
    owner = service.user(f"user-of-{org.id}", org=org.id, role="owner")
    await owner.post("/api/v1/members", {"userId": "successor", "role": "admin"})
    # accepts the invitation
    await service.user("successor", asks_for=org.id).get("/api/v1/auth/whoami")
    answer = await owner.post(f"{org.path}/transfer", {"userId": "successor", "ownerEmail": new})
    assert answer.status_code == 200, answer.text
    mails = await post.deliver(org.id)
    assert sorted(mail.recipients for mail in mails) == sorted([[FORMER], [new]])
    assert not await is_verified(service, org)


async def test_recipient_is_fixed_when_the_notice_is_queued(service: Service, post: Post) -> None:
    org = await operators_tenant(service)
    await payment_notices(service, org)
    await leak(service, org)
    await service.operator.put(org.path, {"name": "x", "ownerEmail": new_address()})
    mails = await post.deliver(org.id)
    assert [mail.recipients for mail in mails] == [[FORMER]] * 3


# --- the digest


async def test_five_notices_an_hour_then_one_digest_with_the_rest(emptied_service: Service) -> None:
    service = emptied_service
    async with posting(service) as post:
        org = await operators_tenant(service)
        keys = await leak(service, org, 12)
        assert len(await post.deliver(org.id)) == 5
        [digest] = await rows(service, "SELECT * FROM mails WHERE status = 'collecting'")
        with pytest.raises(MailDeferredError) as early:
            await post.mail.deliver(digest["id"])
        assert 3590 < early.value.delay <= 3600
        [job] = await rows(
            service, "SELECT * FROM procrastinate_jobs WHERE scheduled_at IS NOT NULL"
        )
        assert job["args"] == {"mail_id": str(digest["id"])}
        service.clock.advance(hours=1)
        await post.mail.deliver(digest["id"])
        mail = post.server.received[-1]
        assert (mail.recipients, mail.message["Subject"]) == (
            [FORMER],
            "Security notices of the last hour",
        )
        plain = mail.part("plain")
        assert [key.id in plain for key in keys] == [False] * 5 + [True] * 7
        assert len(post.server.received) == 6
        await post.mail.deliver(digest["id"])
        assert len(post.server.received) == 6
        # the digest counts too: four more notices may be sent at once, and no more
        service.clock.advance(minutes=1)
        await leak(service, org, 6)
        assert len(await post.deliver(org.id)) == 4


@pytest.mark.thorough
async def test_digest_of_a_large_number_names_a_hundred_and_counts_the_rest(
    emptied_service: Service,
) -> None:
    service = emptied_service
    async with posting(service) as post:
        org = await operators_tenant(service)
        await leak(service, org, 108)
        [digest] = await rows(service, "SELECT * FROM mails WHERE status = 'collecting'")
        service.clock.advance(hours=1)
        await post.mail.deliver(digest["id"])
        plain = post.server.received[-1].part("plain")
        assert "other 103" in plain
        assert plain.count("reported 2026") == 100
        assert "And 3 more" in plain


async def test_concurrent_reports_in_two_processes_send_five_mails_and_lose_none(
    conninfo: str,
) -> None:
    async with running_service(conninfo) as service, running_service(conninfo) as other:
        other.clock.now = service.clock.now
        org = await operators_tenant(service)
        keys = [await service.key(org.owner, org.id, "projects:read") for _ in range(9)]
        await asyncio.gather(
            *(
                each.anonymous.post(REPORT, {"secret": key.caller.credential})
                for number, key in enumerate(keys)
                for each in ((service, other) if number % 2 else (other, service))
            )
        )
        async with posting(service) as post:
            single = await post.deliver(org.id)
            [digest] = await rows(service, "SELECT * FROM mails WHERE status = 'collecting'")
            service.clock.advance(hours=1, minutes=1)
            await post.mail.deliver(digest["id"])
            last = post.server.received[-1].part("plain")
    told = [sum(key.id in mail.part("plain") for mail in single) + (key.id in last) for key in keys]
    assert (len(single), told) == (5, [1] * 9)


async def test_notice_that_comes_while_the_digest_is_delivered_is_in_another_mail(
    emptied_service: Service,
) -> None:
    service = emptied_service
    async with posting(service) as post:
        org = await operators_tenant(service)
        await leak(service, org, 6)
        [digest] = await rows(service, "SELECT * FROM mails WHERE status = 'collecting'")
        service.clock.advance(hours=1)
        post.server.hold = asyncio.Event()
        sending = asyncio.create_task(post.mail.deliver(digest["id"]))
        await post.server.wait_for(lambda server: bool(server.received) or server.hold is not None)
        [late] = await leak(service, org)
        post.server.hold.set()
        await sending
        post.server.hold = None
        await post.deliver(org.id)
        assert sum(late.id in mail.part("plain") for mail in post.server.received) == 1


async def test_digest_goes_to_the_address_of_its_notices(emptied_service: Service) -> None:
    service = emptied_service
    async with posting(service):
        org = await operators_tenant(service)
        await leak(service, org, 6)
        new = new_address()
        await service.operator.put(org.path, {"name": "x", "ownerEmail": new})
        await leak(service, org, 1)
        digests = await rows(
            service, "SELECT * FROM mails WHERE status = 'collecting' ORDER BY created_at"
        )
        assert [digest["recipient"] for digest in digests] == [FORMER, new]


async def test_unreachable_mail_server_loses_no_mail(emptied_service: Service) -> None:
    service = emptied_service
    async with posting(service) as post:
        org, new = await operators_tenant(service), new_address()
        await set_address(org, new)
        await leak(service, org, 8)
        await post.server.stop()
        waiting = [row["id"] for row in await post.queued(org.id)]
        for mail_id in waiting:
            with pytest.raises(MailDeferredError):
                await post.mail.deliver(mail_id)
        service.clock.advance(hours=1)
        [digest] = await rows(service, "SELECT * FROM mails WHERE status = 'collecting'")
        with pytest.raises(MailDeferredError):
            await post.mail.deliver(digest["id"])
        await post.server.start()
        mails = await post.deliver(org.id)
        assert len(mails) == 7  # five notices, the confirmation, the digest
        token = next(token_of(mail) for mail in mails if "Confirm" in mail.message["Subject"])
        assert (await confirm(service, token)).status_code == 200
