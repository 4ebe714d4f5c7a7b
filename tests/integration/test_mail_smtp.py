"""Delivery of mails to mail servers, including misbehaving ones."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from tenantry.integrations.smtp import (
    MailDeliveryError,
    Mailer,
    PermanentMailError,
    TemporaryMailError,
    parse_smtp_url,
)
from tests.support.smtp import LOOPBACK_IN_DISGUISE, MailServer, running, self_signed

SENDER = "Billing <billing@example.com>"


@pytest.fixture
async def server() -> AsyncIterator[MailServer]:
    async with running(MailServer()) as server:
        yield server


def mailer(
    server: MailServer, *, scheme: str = "smtp", login: str = "", host: str = "127.0.0.1"
) -> Mailer:
    return Mailer(parse_smtp_url(f"{scheme}://{login}{host}:{server.port}", SENDER))


def message(recipient: str = "owner@acme.example") -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = SENDER
    mail["To"] = recipient
    mail["Subject"] = "Hello"
    mail["Message-ID"] = "<1@example.com>"
    mail.set_content("Grüße\n.\n")
    return mail


async def test_a_mail_arrives(server: MailServer) -> None:
    await mailer(server).send(message())
    [mail] = server.received
    assert (mail.sender, mail.recipients) == ("billing@example.com", ["owner@acme.example"])
    assert mail.part("plain") == "Grüße\r\n.\r\n"


async def test_tls_is_used_when_offered(tmp_path: Path) -> None:
    async with running(MailServer(certificate=self_signed(tmp_path))) as server:
        await mailer(server).send(message())
    assert server.received[0].over_tls


async def test_tls_from_the_start(tmp_path: Path) -> None:
    async with running(MailServer(certificate=self_signed(tmp_path), implicit_tls=True)) as server:
        await mailer(server, scheme="smtps").send(message())
    assert len(server.received) == 1


async def test_mails_to_another_machine_need_tls(server: MailServer) -> None:
    with pytest.raises(TemporaryMailError, match="TLS"):
        await mailer(server, host=LOOPBACK_IN_DISGUISE).send(message())
    assert server.received == []


async def test_off_loopback_plain_text_can_be_allowed(server: MailServer) -> None:
    config = parse_smtp_url(
        f"smtp://{LOOPBACK_IN_DISGUISE}:{server.port}", SENDER, allow_plaintext=True
    )
    await Mailer(config).send(message())
    assert len(server.received) == 1


@pytest.mark.parametrize(("scheme", "implicit_tls"), [("smtp", False), ("smtps", True)])
async def test_off_loopback_the_certificate_must_be_trusted(
    tmp_path: Path, scheme: str, implicit_tls: bool
) -> None:
    async with running(
        MailServer(certificate=self_signed(tmp_path), implicit_tls=implicit_tls)
    ) as server:
        with pytest.raises(TemporaryMailError, match="certificate"):
            await mailer(server, scheme=scheme, host=LOOPBACK_IN_DISGUISE).send(message())
    assert server.received == []


async def test_mailer_logs_in() -> None:
    async with running(MailServer(account=("us@er", "p:ss"))) as server:
        await mailer(server, login="us%40er:p%3Ass@").send(message())
    assert len(server.received) == 1


async def test_wrong_password_is_a_temporary_error() -> None:
    async with running(MailServer(account=("user", "right"))) as server:
        with pytest.raises(TemporaryMailError, match=r"refused the user or password \(535\)"):
            await mailer(server, login="user:hunter2@").send(message())


async def test_missing_password_is_a_temporary_error() -> None:
    async with running(MailServer(account=("user", "right"))) as server:
        with pytest.raises(TemporaryMailError, match="530"):
            await mailer(server).send(message())


async def test_a_server_that_repeats_the_password_does_not_get_it_into_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running(MailServer(account=("user", "right"))) as server:
        server.replies_to_auth.append("535 5.7.8 bad: user hunter2")
        with pytest.raises(MailDeliveryError) as caught:
            await mailer(server, login="user:hunter2@").send(message())
    shown = (
        "".join(traceback.format_exception(caught.value, limit=0))
        + caught.value.reply
        + caplog.text
    )
    assert "hunter2" not in shown


async def test_permanently_rejected_recipient(server: MailServer) -> None:
    server.replies_to_rcpt.append("550 5.1.1 owner@acme.example: no such user")
    with pytest.raises(PermanentMailError, match=r"refused the recipient \(550\)") as caught:
        await mailer(server).send(message())
    assert "owner@acme.example" not in "".join(traceback.format_exception(caught.value, limit=0))
    assert "no such user" in caught.value.reply


async def test_temporarily_rejected_recipient(server: MailServer) -> None:
    server.replies_to_rcpt.append("450 4.2.0 greylisted")
    with pytest.raises(TemporaryMailError, match=r"refused the recipient \(450\)"):
        await mailer(server).send(message())


async def test_permanently_rejected_mail(server: MailServer) -> None:
    server.replies_to_data.append("554 5.7.1 spam")
    with pytest.raises(PermanentMailError, match=r"refused the mail \(554\)"):
        await mailer(server).send(message())


async def test_temporarily_rejected_mail(server: MailServer) -> None:
    server.replies_to_data.append("451 4.3.0 try later")
    with pytest.raises(TemporaryMailError, match=r"refused the mail \(451\)"):
        await mailer(server).send(message())


async def test_a_server_that_is_down(server: MailServer) -> None:
    await server.stop()
    with pytest.raises(TemporaryMailError, match="cannot be reached"):
        await mailer(server).send(message())


async def test_server_that_closes_the_connection(server: MailServer) -> None:
    server.hang_up = 1
    with pytest.raises(TemporaryMailError, match="closed the connection"):
        await mailer(server).send(message())


async def test_rejecting_greeting() -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"554 go away\xff\x00\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(TemporaryMailError, match=r"refused the connection \(554\)") as caught:
            await Mailer(parse_smtp_url(f"smtp://127.0.0.1:{port}", SENDER)).send(message())
    assert caught.value.reply == "go away"


async def test_server_with_malformed_replies() -> None:
    async def send_random_bytes(
        _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(send_random_bytes, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(TemporaryMailError):
            await Mailer(parse_smtp_url(f"smtp://127.0.0.1:{port}", SENDER)).send(message())


async def test_a_non_ascii_recipient_with_smtputf8(server: MailServer) -> None:
    await mailer(server).send(message("jörg@acme.example"))
    assert server.received[0].recipients == ["jörg@acme.example"]


async def test_a_recipient_that_is_not_ascii_where_the_server_does_not() -> None:
    async with running(MailServer(smtputf8=False)) as server:
        with pytest.raises(PermanentMailError, match="non-ASCII"):
            await mailer(server).send(message("jörg@acme.example"))
