"""Delivery of one notification: the mail and its record."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from uuid import UUID, uuid4

import pytest

from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.domain.errors import DatabaseUnavailableError
from tenantry.integrations.smtp import Mailer, parse_smtp_url
from tenantry.notifications.mail_delivery import (
    MailDeferredError,
    MailService,
    RetrySchedule,
    standard_schedule,
)
from tenantry.notifications.mails_store import read_queue
from tests.support.outbox import NOW, OWNER, add_notification, delivery_of
from tests.support.patience import patient_database
from tests.support.smtp import MailServer, running


@pytest.fixture
async def database(conninfo: str) -> AsyncIterator[Database]:
    database = patient_database(conninfo, pool_size=1)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def server() -> AsyncIterator[MailServer]:
    async with running(MailServer()) as server:
        yield server


def service(
    database: Database, server: MailServer, schedule: RetrySchedule = standard_schedule
) -> MailService:
    config = parse_smtp_url(f"smtp://127.0.0.1:{server.port}", "Billing <billing@example.com>")
    return MailService(database, Mailer(config), lambda: NOW, schedule)


async def queued(database: Database, owner_email: str = OWNER) -> UUID:
    async with database.transaction(ACROSS_TENANTS) as connection:
        return await add_notification(connection, owner_email=owner_email)


async def test_the_owner_gets_the_mail(database: Database, server: MailServer) -> None:
    mail_id = await queued(database)
    await service(database, server).deliver(mail_id)
    [mail] = server.received
    assert mail.recipients == [OWNER]
    assert mail.message["Subject"] == "Payment failed"
    assert mail.message["Message-ID"] == f"<{mail_id}@example.com>"
    assert "12.50 EUR" in mail.part("plain")
    assert "https://pay.example/invoice/1?a=1&amp;b=2" in mail.part("html")


async def test_an_accepted_mail_is_recorded_as_sent(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    await service(database, server).deliver(mail_id)
    assert await delivery_of(conninfo, mail_id) == ("sent", None)


async def test_a_mail_is_not_sent_again(database: Database, server: MailServer) -> None:
    mail_id = await queued(database)
    await service(database, server).deliver(mail_id)
    await service(database, server).deliver(mail_id)
    assert len(server.received) == 1


async def test_a_missing_notification_ends_the_job(database: Database, server: MailServer) -> None:
    await service(database, server).deliver(uuid4())
    assert server.received == []


async def test_a_permanent_rejection_ends_as_failed(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    server.replies_to_rcpt.append("550 5.1.1 no such user")
    await service(database, server).deliver(mail_id)
    assert await delivery_of(conninfo, mail_id) == (
        "failed",
        "the mail server refused the recipient (550): 5.1.1 no such user",
    )


async def test_an_unusable_address_ends_as_failed(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database, owner_email="missing at all")
    await service(database, server).deliver(mail_id)
    assert (await delivery_of(conninfo, mail_id))[0] == "failed"


async def test_a_temporary_rejection_is_deferred(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    server.replies_to_data.append("451 4.3.0 try later")
    with pytest.raises(MailDeferredError) as caught:
        await service(database, server).deliver(mail_id)
    assert caught.value.delay == 10
    assert await delivery_of(conninfo, mail_id) == (
        "queued",
        "the mail server refused the mail (451): 4.3.0 try later",
    )


async def test_each_failure_waits_longer(database: Database, server: MailServer) -> None:
    mail_id = await queued(database)
    await server.stop()
    waits = []
    for attempt in (1, 2, 3):
        with pytest.raises(MailDeferredError) as caught:
            await service(database, server).deliver(mail_id, attempt)
        waits.append(caught.value.delay)
    assert waits == [10, 20, 40]


async def test_after_the_last_attempt_it_ends_as_failed(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    server.replies_to_data.extend(["451 later"] * 2)
    twice = service(database, server, lambda attempt: 0.0 if attempt < 2 else None)
    with pytest.raises(MailDeferredError):
        await twice.deliver(mail_id, attempt=1)
    await twice.deliver(mail_id, attempt=2)
    assert (await delivery_of(conninfo, mail_id))[0] == "failed"


async def test_success_after_a_failure_leaves_no_error(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    server.replies_to_data.append("451 later")
    with pytest.raises(MailDeferredError):
        await service(database, server).deliver(mail_id)
    await service(database, server).deliver(mail_id)
    assert await delivery_of(conninfo, mail_id) == ("sent", None)


async def test_a_mail_without_an_answer_is_sent_again_unchanged(
    database: Database, server: MailServer
) -> None:
    mail_id = await queued(database)
    server.hang_up = 1
    with pytest.raises(MailDeferredError):
        await service(database, server).deliver(mail_id)
    await service(database, server).deliver(mail_id)
    first, second = (mail.message["Message-ID"] for mail in server.received)
    assert first == second


async def test_no_connection_is_held_while_the_mail_server_is_slow(
    database: Database, server: MailServer
) -> None:
    mail_id = await queued(database)
    server.hold = asyncio.Event()
    delivery = asyncio.create_task(service(database, server).deliver(mail_id))
    await server.wait_for(lambda server: len(server.received) == 1)
    async with database.transaction(ACROSS_TENANTS) as connection:  # the pool's only one
        cursor = await connection.execute("SELECT status FROM mails")
        assert await cursor.fetchone() == ("queued",)
    server.hold.set()
    await delivery


async def test_an_unavailable_database_is_reported(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    await database.close()
    with pytest.raises(DatabaseUnavailableError):
        await service(database, server).deliver(mail_id)
    assert server.received == []
    assert (await delivery_of(conninfo, mail_id))[0] == "queued"


@pytest.mark.parametrize("reply", [f"550 <{OWNER}> unknown", f"450 <{OWNER}> greylisted"])
async def test_the_log_does_not_name_the_owner(
    database: Database, server: MailServer, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    caplog.set_level(logging.DEBUG, "tenantry")
    mail_id = await queued(database)
    server.replies_to_rcpt.append(reply)
    with suppress(MailDeferredError):
        await service(database, server).deliver(mail_id)
    logged = [
        record.getMessage() for record in caplog.records if record.name.startswith("tenantry")
    ]
    assert [str(mail_id) in line for line in logged] == [True]
    assert not any("acme.example" in line for line in logged)


async def test_a_reply_with_unstorable_characters_is_stored_cleaned(
    database: Database, server: MailServer, conninfo: str
) -> None:
    mail_id = await queued(database)
    server.replies_to_rcpt.append("550 nul \x00 tab \t " + "long " * 200)
    await service(database, server).deliver(mail_id)
    status, error = await delivery_of(conninfo, mail_id)
    assert (status, len(error or "")) == ("failed", 500)


async def test_failures_are_counted(database: Database, server: MailServer, conninfo: str) -> None:
    await queued(database)
    failing = await queued(database)
    server.replies_to_rcpt.append("550 no")
    await service(database, server).deliver(failing)
    async with await Connection.connect(conninfo) as connection:
        assert (await read_queue(connection))[:2] == (1, 1)
