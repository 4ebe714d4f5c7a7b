"""Mails about API keys that expire or are unused: when, to whom, and once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Identifier, Placeholder

from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.jobs.queue import JobQueue
from tenantry.jobs.retention import RetentionService
from tenantry.jobs.tasks import Work
from tenantry.notifications.key_reminders import mail_key_reminders
from tenantry.notifications.mail_delivery import MailDeferredError, MailService
from tests.support.logs import watched
from tests.support.patience import PATIENT, patient_database
from tests.support.smtp import MailServer, Received, running

NOW: Final = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
OWNER: Final = "owner@acme.example"
MIA: Final = "mia@acme.example"
ISSUER: Final = "https://id.example"
LONG_AGO: Final = NOW - timedelta(days=400)


class Post(NamedTuple):
    """A database with the tenant acme, and the mail server that its people get mail from."""

    conninfo: str
    database: Database
    server: MailServer

    async def write(self, statement: LiteralString | Composed, **values: Any) -> None:
        async with await psycopg.AsyncConnection.connect(self.conninfo) as connection:
            await connection.execute("SET LOCAL tests.writes_rows = 'on'")
            await connection.execute(statement, values)

    async def tenant(self, tenant_id: str = "acme", name: str = "Acme", owner: str = OWNER) -> None:
        await self.write(
            "INSERT INTO tenants (id, name, owner_id, owner_email, verified_email) "
            "VALUES (%(id)s, %(name)s, 'olivia', %(owner)s, %(owner)s)",
            id=tenant_id,
            name=name,
            owner=owner,
        )

    async def member(self, subject: str = "mia", email: str | None = MIA, **fields: Any) -> None:
        """A member with a profile; ``membership`` False makes the user one by a claim alone."""
        values = {"issuer": ISSUER, "invited": False, "removed": None, "claimed": None} | fields
        values |= {"subject": subject, "email": email, "seen": fields.get("seen", NOW)}
        await self.write(
            "INSERT INTO user_profiles (org_id, issuer, subject, email, claimed_role, seen_at) "
            "VALUES ('acme', %(issuer)s, %(subject)s, %(email)s, %(claimed)s, %(seen)s)",
            **values,
        )
        if fields.get("membership", True):
            await self.write(
                "INSERT INTO memberships (issuer, subject, tenant_id, role, invited, removed_at) "
                "VALUES (%(issuer)s, %(subject)s, 'acme', 'member', %(invited)s, %(removed)s)",
                **values,
            )

    async def key(self, key_id: str, **fields: Any) -> None:
        """A key in use that never expires, unless the fields say otherwise."""
        values = {
            "id": key_id,
            "org_id": "acme",
            "digest": key_id.encode().ljust(32, b"-"),
            "name": key_id,
            "scopes": ["*:*"],
            "access_level": "SCOPED",
            "mode": "live",
            "start": "svc_live_4fGh",
            "last4": "x9Qz",
            "created_at": LONG_AGO,
            "created_by": "operator",
            "last_used_at": NOW,
        } | fields
        names = SQL(", ").join(map(Identifier, values))
        places = SQL(", ").join(map(Placeholder, values))
        statement = SQL("INSERT INTO api_keys ({}) VALUES ({})").format(names, places)
        await self.write(statement, **values)

    async def change(self, key_id: str, **fields: Any) -> None:
        changes = SQL(", ").join(
            SQL("{} = {}").format(Identifier(name), Placeholder(name)) for name in fields
        )
        statement = SQL("UPDATE api_keys SET {} WHERE id = %(id)s").format(changes)
        await self.write(statement, id=key_id, **fields)

    async def remind(self, now: datetime = NOW) -> int:
        """Run the job; return how many mails it queued."""
        return await mail_key_reminders(self.database, Outbox(), lambda: now)

    async def deliver(self, now: datetime = NOW) -> list[Received]:
        """Deliver what is queued; return what the mail server got of it."""
        before = len(self.server.received)
        config = parse_smtp_url(f"smtp://127.0.0.1:{self.server.port}", "mail@example.com")
        service = MailService(
            self.database, Mailer(config), lambda: now, base_url="https://accounts.example"
        )
        async with await psycopg.AsyncConnection.connect(self.conninfo) as connection:
            found = await connection.execute(
                "SELECT id FROM mails WHERE status = 'queued' ORDER BY created_at, recipient"
            )
            queued = [mail_id for (mail_id,) in await found.fetchall()]
        for mail_id in queued:
            await service.deliver(mail_id)
        return self.server.received[before:]

    async def mailed(self, now: datetime = NOW) -> list[Received]:
        """Run the job and deliver its mails."""
        await self.remind(now)
        return await self.deliver(now)


@pytest.fixture
async def post(emptied: str) -> AsyncIterator[Post]:
    database = patient_database(emptied, pool_size=4)
    await database.open()
    async with running(MailServer()) as server:
        post = Post(emptied, database, server)
        await post.tenant()
        yield post
    await database.close()


def in_days(days: float) -> datetime:
    return NOW + timedelta(days=days)


def recipients(mails: list[Received]) -> list[str]:
    return [recipient for mail in mails for recipient in mail.recipients]


async def test_maker_gets_a_mail_14_and_3_days_before_the_end(post: Post) -> None:
    await post.member()
    await post.key("key_1", name="CI deploys", created_by="mia", expires_at=in_days(14.5))
    assert await post.mailed() == []
    [first] = await post.mailed(in_days(0.6))
    assert first.recipients == [MIA]
    assert first.message["Subject"] == "API keys that need your attention"
    text = first.part("plain")
    assert '- "CI deploys" (svc_live_4fGh...x9Qz, live), expires 2026-12-01 00:00:00 UTC' in text
    assert "https://accounts.example/orgs/acme/settings/api-keys/key_1" in text
    assert "https://accounts.example/orgs/acme/settings/general" in text
    assert await post.mailed(in_days(1)) == []
    assert await post.mailed(in_days(11.4)) == []
    [last] = await post.mailed(in_days(11.6))
    assert last.recipients == [MIA]
    assert await post.mailed(in_days(13)) == []
    assert await post.mailed(in_days(15)) == []


async def test_late_job_sends_one_mail(post: Post) -> None:
    await post.key("key_1", expires_at=in_days(2))
    assert len(await post.mailed()) == 1
    assert await post.mailed(in_days(1)) == []


async def test_ended_key_is_not_mailed_late(post: Post) -> None:
    await post.key("key_1", expires_at=in_days(-0.1))
    assert await post.mailed() == []


@pytest.mark.parametrize(
    "maker",
    [
        {"email": None},
        {"invited": True},
        {"removed": NOW},
        {"membership": False},
        {"membership": False, "claimed": "member", "seen": NOW - timedelta(days=31)},
    ],
)
async def test_owner_gets_the_mail_of_a_maker_who_left_or_has_no_verified_address(
    post: Post, maker: dict[str, Any]
) -> None:
    await post.member(**maker)
    await post.key("key_1", created_by="mia", expires_at=in_days(10))
    assert recipients(await post.mailed()) == [OWNER]


async def test_maker_by_a_claim_of_the_token_gets_the_mail(post: Post) -> None:
    await post.member(membership=False, claimed="member")
    await post.key("key_1", created_by="mia", expires_at=in_days(10))
    assert recipients(await post.mailed()) == [MIA]


async def test_of_two_makers_with_one_subject_neither_gets_the_mail(post: Post) -> None:
    await post.member()
    await post.member(issuer="https://other.example", email="other@acme.example")
    await post.key("key_1", created_by="mia", expires_at=in_days(10))
    assert recipients(await post.mailed()) == [OWNER]


@pytest.mark.parametrize("subject", ["operator", "key_2"])
async def test_user_with_the_id_of_another_maker_gets_no_mail(post: Post, subject: str) -> None:
    await post.member(subject)
    await post.key("key_1", created_by=subject, expires_at=in_days(10))
    assert recipients(await post.mailed()) == [OWNER]


async def test_without_a_verified_address_there_is_no_mail(post: Post) -> None:
    await post.write("UPDATE tenants SET verified_email = ''")
    await post.key("key_1", expires_at=in_days(10))
    await post.key("key_2", last_used_at=None)
    assert await post.remind() == 0


async def test_maker_gets_the_mail_where_the_owners_address_is_not_verified(post: Post) -> None:
    await post.write("UPDATE tenants SET verified_email = ''")
    await post.member()
    await post.key("key_1", created_by="mia", expires_at=in_days(10), last_used_at=LONG_AGO)
    [mail] = await post.mailed()
    assert mail.recipients == [MIA]
    assert "have not been used" not in mail.part("plain")


async def test_keys_of_a_mailbox_are_in_one_mail(post: Post) -> None:
    await post.member()
    await post.member("olivia", "owner@ACME.example")
    for number in range(120):
        await post.key(f"key_{number:03}", created_by="olivia", expires_at=in_days(10))
    await post.key("key_mia", created_by="mia", expires_at=in_days(10))
    await post.key("key_operator", expires_at=in_days(2))
    await post.key("key_unused", last_used_at=None)
    first, second = sorted(await post.mailed(), key=lambda mail: mail.recipients)
    assert "key_mia" in first.part("plain")
    assert [line for line in first.part("plain").splitlines() if line.startswith("- ")] == [
        '- "key_mia" (svc_live_4fGh...x9Qz, live), expires 2026-11-26 12:00:00 UTC'
    ]
    text = second.part("plain")
    assert "And 21 more." in text
    assert '- "key_unused" (svc_live_4fGh...x9Qz, live), never used' in text
    assert await post.mailed(in_days(1)) == []


@pytest.mark.parametrize(
    ("lifetime", "expected"),
    [(0.5, []), (2, []), (3, []), (3.9, []), (10, [7]), (14, [11]), (16, [2, 13]), (30, [16, 27])],
)
async def test_key_of_a_short_life_is_not_mailed_at_once(
    post: Post, lifetime: float, expected: list[int]
) -> None:
    await post.key("key_1", created_at=NOW, expires_at=in_days(lifetime))
    days = [day for day in range(31) if await post.mailed(in_days(day))]
    assert days == expected


async def test_new_end_is_mailed_anew(post: Post) -> None:
    await post.key("key_1", expires_at=in_days(10))
    assert len(await post.mailed()) == 1
    await post.change("key_1", expires_at=in_days(12))
    assert len(await post.mailed(in_days(0.1))) == 1
    await post.change("key_1", expires_at=None)
    assert await post.mailed(in_days(9)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"revoked_at": NOW},
        {"enabled": False},
        {"superseded_by": "key_2", "expires_at": in_days(1)},
        {"expires_at": in_days(200)},
        {"expires_at": in_days(-1)},
    ],
)
async def test_change_before_the_delivery_drops_the_mail(
    post: Post, change: dict[str, Any]
) -> None:
    await post.key("key_1", expires_at=in_days(10))
    assert await post.remind() == 1
    await post.change("key_1", **change)
    assert await post.deliver() == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE tenants SET suspended_at = now(), suspension = ''",
        "UPDATE tenants SET deleted_at = now()",
        "UPDATE tenants SET leaves_key_mails = true",
    ],
)
async def test_tenant_that_is_suspended_ended_or_leaves_gets_no_mail(
    post: Post, change: LiteralString
) -> None:
    await post.key("key_1", expires_at=in_days(10))
    await post.key("key_2", last_used_at=None)
    assert await post.remind() == 1
    await post.write(change)
    assert await post.deliver() == []
    assert await post.remind() == 0


async def test_resumed_tenant_gets_the_dropped_mail_once(post: Post) -> None:
    await post.key("key_1", expires_at=in_days(10))
    await post.remind()
    await post.write("UPDATE tenants SET suspended_at = now(), suspension = ''")
    assert await post.deliver() == []
    await post.write("UPDATE tenants SET suspended_at = NULL, suspension = NULL")
    assert len(await post.mailed(in_days(1))) == 1
    assert await post.mailed(in_days(2)) == []


async def test_maker_who_is_removed_before_the_delivery_gets_nothing(post: Post) -> None:
    await post.member()
    await post.key("key_1", created_by="mia", expires_at=in_days(10))
    await post.remind()
    await post.write("UPDATE memberships SET removed_at = now()")
    assert await post.deliver() == []
    assert recipients(await post.mailed()) == [OWNER]


async def test_several_processes_queue_one_mail(post: Post) -> None:
    await post.key("key_1", expires_at=in_days(10))
    await post.key("key_2", last_used_at=None)
    assert sum(await asyncio.gather(*(post.remind() for _ in range(4)))) == 1
    assert len(await post.deliver()) == 1


async def test_delivery_that_fails_is_repeated_without_another_mail(post: Post) -> None:
    await post.key("key_1", expires_at=in_days(10))
    post.server.replies_to_data.append("451 later")
    with pytest.raises(MailDeferredError):
        await post.mailed()
    assert await post.remind(in_days(0.1)) == 0
    assert len(await post.deliver(in_days(0.1))) == 1


async def test_owner_gets_unused_keys_once_a_quarter(post: Post) -> None:
    await post.member()
    before = NOW - timedelta(days=90)
    await post.key("key_never", created_at=before, last_used_at=None, created_by="mia")
    await post.key("key_once", last_used_at=before)
    await post.key("key_used", last_used_at=before + timedelta(seconds=1))
    await post.key("key_new", created_at=before + timedelta(seconds=1), last_used_at=None)
    await post.key("key_revoked", last_used_at=None, revoked_at=NOW)
    await post.key("key_ended", last_used_at=None, expires_at=NOW)
    [mail] = await post.mailed()
    assert mail.recipients == [OWNER]
    lines = [line for line in mail.part("plain").splitlines() if line.startswith("- ")]
    assert lines == [
        '- "key_never" (svc_live_4fGh...x9Qz, live), never used',
        '- "key_once" (svc_live_4fGh...x9Qz, live), last used 2026-08-18 12:00:00 UTC',
    ]
    # the quarter ends with the year; retention keeps what says that the mail was sent
    retention = RetentionService(post.database, timedelta(days=90), lambda: in_days(44))
    await retention.run()
    assert await post.mailed(in_days(44)) == []
    [next_one] = await post.mailed(in_days(46))
    assert "key_new" in next_one.part("plain")


async def test_key_that_is_switched_off_is_not_mailed_until_it_is_on_again(post: Post) -> None:
    await post.key("key_1", enabled=False, expires_at=in_days(10))
    await post.key("key_2", enabled=False, last_used_at=None)
    assert await post.mailed() == []
    await post.change("key_1", enabled=True)
    await post.change("key_2", enabled=True)
    [mail] = await post.mailed(in_days(1))
    assert "key_1" in mail.part("plain")
    assert "key_2" in mail.part("plain")


async def test_key_that_is_used_before_the_delivery_is_left_out(post: Post) -> None:
    await post.key("key_1", last_used_at=None)
    await post.key("key_2", last_used_at=None)
    await post.remind()
    await post.change("key_1", last_used_at=NOW)
    [mail] = await post.deliver()
    assert "key_1" not in mail.part("plain")
    assert "key_2" in mail.part("plain")


async def test_many_unused_keys_are_counted(post: Post) -> None:
    for number in range(103):
        await post.key(f"key_{number:03}", last_used_at=None)
    [mail] = await post.mailed()
    assert "And 3 more." in mail.part("plain")
    assert await post.mailed(in_days(1)) == []


async def test_every_tenant_has_its_own_mail(post: Post) -> None:
    for number in range(205):
        tenant_id = f"t{number:03}"
        await post.tenant(tenant_id, owner=f"{tenant_id}@example.com")
        await post.key(f"key_{number}", org_id=tenant_id, expires_at=in_days(10))
    assert await post.remind() == 205
    assert await post.remind() == 0


async def test_text_of_customers_is_no_link_and_no_markup(post: Post) -> None:
    await post.write("UPDATE tenants SET name = %(name)s", name="Müller & <b>Söhne</b> http://x.yz")
    await post.key(
        "key_1",
        name='<a href="https://evil.example">pay</a>\u202e mail@evil.example',
        start="https://evil",
        last4="//ev.il",
        expires_at=in_days(10),
    )
    [mail] = await post.mailed()
    for part in ("plain", "html"):
        said = mail.part(part).replace("https://accounts.example", "")
        for forbidden in (
            "evil.example",
            "https://evil",
            "http://x",
            '<a href="https://evil',
            "\u202e",
            "mail@",
        ):
            assert forbidden not in said, (part, forbidden)
        assert "Müller" in said
    assert "<b>" not in mail.part("html")


async def test_worker_runs_the_job_that_the_setting_schedules(post: Post) -> None:
    await post.key("key_1", expires_at=in_days(10))
    queue = JobQueue(post.conninfo, timeouts=PATIENT, reminds_of_keys=True)
    await queue.open()
    work = Work(
        None,
        RetentionService(post.database, timedelta(days=90), lambda: NOW),
        mail_key_reminders=partial(mail_key_reminders, post.database, Outbox(), lambda: NOW),
    )
    deferred = (
        "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('maintenance', 'mail_key_reminders', 0, NULL, NULL, "
        "'{\"timestamp\": 0}', NULL)]::procrastinate_job_to_defer_v1[])"
    )
    await post.write(deferred)
    with watched("procrastinate") as log:
        worker = asyncio.create_task(queue.run_worker(work, polling_interval=0.02))
        await log.until("ended with status: Success")
        worker.cancel()
        await asyncio.wait({worker})
    await queue.close()
    assert len(await post.deliver()) == 1
