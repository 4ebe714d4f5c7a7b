"""A mail server that stores every mail, and shows them in an inbox."""

import asyncio
import contextlib
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default as default_policy
from pathlib import Path
from typing import Final
from weakref import WeakSet

import msgspec
from aiosmtpd.smtp import SMTP, Envelope, Session
from litestar import MediaType, Response, get
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from tenantry.common.clock import Clock, from_micros, system_clock, to_micros
from tenantry_devkit.files import write_private
from tenantry_devkit.html import HEADERS, Pages

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 10 * 1024 * 1024
MAX_MESSAGES: Final = 200
_SUFFIX: Final = ".eml"
_id = re.compile(r"[0-9]{16}")


class Mail(msgspec.Struct, frozen=True):
    """``date`` is the time of arrival."""

    id: str
    to: str
    sender: str
    subject: str
    date: datetime
    headers: tuple[tuple[str, str], ...]
    text: str
    html: str | None


class Inbox:
    """The newest ``limit`` messages, as .eml files of mode 0600 in ``directory``.

    A message's id is its time of arrival in microseconds, so ids sort by age.
    """

    def __init__(
        self, directory: Path, *, clock: Clock = system_clock, limit: int = MAX_MESSAGES
    ) -> None:
        self._directory = directory
        self._limit = limit
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        self._last = max((int(name) for name in self.ids()), default=0)
        self._arrival = threading.Condition()

    def store(self, content: bytes, *, sender: str, recipients: Sequence[str]) -> str:
        """Store a message with its envelope as headers (RFC 5321 section 4.4, RFC 9228), and return
        its id.

        This deletes the oldest messages beyond the limit.
        """
        # ids stay unique and ordered even within one tick of the clock
        self._last = max(self._last + 1, to_micros(self._clock()))
        mail_id = f"{self._last:016d}"
        envelope = [
            f"Return-Path: <{sender}>",
            *(f"Delivered-To: {recipient}" for recipient in recipients),
        ]
        head = "".join(f"{line}\r\n" for line in envelope).encode("utf-8", "surrogateescape")
        write_private(self._file(mail_id), head + content)
        for old in self.ids()[self._limit :]:
            self._file(old).unlink(missing_ok=True)
        with self._arrival:
            self._arrival.notify_all()
        return mail_id

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Store a message that the SMTP server has received; it calls this by name."""
        content = envelope.content
        assert isinstance(content, bytes)  # noqa: S101  # the SMTP server does not decode messages
        try:
            self.store(
                content,
                sender=envelope.mail_from or "",
                recipients=envelope.rcpt_tos,
            )
        except OSError as error:
            _log.warning("cannot store a message: %s", error)
            return "452 4.3.1 The message could not be stored"
        return "250 2.0.0 Stored"

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, checked now and after each message; call it in another thread than
        the server's.
        """
        with self._arrival:
            return self._arrival.wait_for(condition, seconds)

    def mails(self) -> list[Mail]:
        return [mail for mail_id in self.ids() if (mail := self.mail(mail_id)) is not None]

    def mail(self, mail_id: str) -> Mail | None:
        """Return the message with this id, if there is one; ``mail_id`` may be any string."""
        if _id.fullmatch(mail_id) is None:
            return None
        try:
            content = self._file(mail_id).read_bytes()
        except FileNotFoundError:
            return None
        return _read(mail_id, content)

    def ids(self) -> list[str]:
        names = (path.stem for path in self._directory.glob(f"*{_SUFFIX}"))
        return sorted((name for name in names if _id.fullmatch(name)), reverse=True)

    def _file(self, mail_id: str) -> Path:
        return self._directory / f"{mail_id}{_SUFFIX}"


def _read(mail_id: str, content: bytes) -> Mail:
    try:
        message = BytesParser(EmailMessage, policy=default_policy).parsebytes(content)
        headers = [(name, str(value)) for name, value in message.items()]
        text, html = _part(message, "plain") or "", _part(message, "html")
    except Exception:  # noqa: BLE001  # the library fails in many ways on malformed messages
        headers, text, html = [], content.decode("utf-8", "replace"), None
    headers = [(name, _without_surrogates(value)) for name, value in headers]

    def first(*names: str) -> str:
        found = (
            text for wanted in names for name, text in headers if name.lower() == wanted and text
        )
        return next(found, "")

    return Mail(
        id=mail_id,
        to=first("to", "delivered-to"),
        sender=first("from", "return-path"),
        subject=first("subject"),
        date=from_micros(int(mail_id)),
        headers=tuple(headers),
        text=text,
        html=html,
    )


def _part(message: EmailMessage, kind: str) -> str | None:
    part = message.get_body(preferencelist=(kind,))
    return None if part is None else _without_surrogates(part.get_content()).replace("\r\n", "\n")


def _without_surrogates(text: str) -> str:
    """Replace the lone surrogates by which the library marks undecodable bytes."""
    return text.encode("utf-8", "replace").decode()


@contextlib.asynccontextmanager
async def serving_smtp(inbox: Inbox, listening: socket.socket) -> AsyncIterator[None]:
    """Accept mail on ``listening``, without authentication or TLS, until the end of the block."""
    connections = WeakSet[SMTP]()

    def connect() -> SMTP:
        connection = SMTP(
            inbox,
            data_size_limit=MAX_MESSAGE_BYTES,
            enable_SMTPUTF8=True,
            hostname="localhost",  # otherwise the library looks it up, which may be slow
            ident="tenantry inbox",
        )
        connections.add(connection)
        return connection

    server = await asyncio.get_running_loop().create_server(connect, sock=listening)
    try:
        yield
    finally:
        server.close()
        for connection in connections:
            if connection.transport is not None:
                connection.transport.close()
        await server.wait_closed()


_MAIL_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def inbox_routes(inbox: Inbox, pages: Pages) -> list[ControllerRouterHandler]:

    def missing() -> Response[str]:
        return pages.message("Not found", "There is no such message.", 404)

    @get("/inbox")
    async def mails() -> Response[str]:
        return pages.page("inbox.html", mails=inbox.mails())

    @get("/inbox/messages.json")
    async def messages() -> Response[bytes]:
        names = {
            "id": "id",
            "to": "to",
            "from": "sender",
            "subject": "subject",
            "date": "date",
            "text": "text",
        }
        summaries = [
            {name: getattr(mail, field) for name, field in names.items()} for mail in inbox.mails()
        ]
        return Response(
            msgspec.json.encode(summaries),
            media_type=MediaType.JSON,
            headers=HEADERS,
        )

    @get("/inbox/{mail_id:str}")
    async def mail(mail_id: FromPath[str]) -> Response[str]:
        found = inbox.mail(mail_id)
        return missing() if found is None else pages.page("mail.html", mail=found)

    @get("/inbox/{mail_id:str}/html")
    async def html_part(mail_id: FromPath[str]) -> Response[str]:
        found = inbox.mail(mail_id)
        if found is None or found.html is None:
            return missing()
        headers = {**HEADERS, "Content-Security-Policy": _MAIL_POLICY}
        return Response(
            found.html,
            media_type=MediaType.HTML,
            headers=headers,
        )

    return [mails, messages, mail, html_part]
