"""The mail that was sent in development, kept as files."""

import re
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.parser import BytesHeaderParser, BytesParser
from email.policy import compat32
from email.policy import default as default_policy
from pathlib import Path
from typing import Final

import msgspec

from tenantry.common.clock import Clock, from_micros, system_clock, to_micros
from tenantry_devkit.demo.files import OWNER_ALONE, write_private

MAX_MESSAGES: Final = 200
_SUFFIX: Final = ".eml"
_id = re.compile(r"[0-9]{16}")


class Mail(msgspec.Struct, frozen=True):
    """A message as people read it. ``date`` is when it arrived; ``html`` is None without an HTML part."""

    id: str
    to: str
    sender: str
    subject: str
    date: datetime
    headers: tuple[tuple[str, str], ...]
    text: str
    html: str | None


class Inbox:
    """The newest messages, each an .eml file of mode 0600 in ``directory``, which is made when it is missing.

    ``limit`` is how many, all of them if None; nothing of them is held in memory. A message's id is the moment of its
    arrival in microseconds, so ids sort by age.
    """

    def __init__(self, directory: Path, *, clock: Clock = system_clock, limit: int | None = MAX_MESSAGES) -> None:
        self._directory = directory
        self._limit = limit
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        for mail_id in self.ids():
            self._file(mail_id).chmod(OWNER_ALONE)  # older releases wrote them for everybody to read
        self._last = max((int(name) for name in self.ids()), default=0)
        self._arrival = threading.Condition()

    def keep(self, content: bytes, *, sender: str, recipients: Sequence[str]) -> str:
        """Store a message, with what the envelope said in front of it (RFC 5321 section 4.4, RFC 9228).

        Return its id. The oldest messages beyond the limit are deleted.
        """
        # Two messages may arrive in one tick of the clock; both are kept, in order.
        self._last = max(self._last + 1, to_micros(self._clock()))
        mail_id = f"{self._last:016d}"
        envelope = [f"Return-Path: <{sender}>", *(f"Delivered-To: {recipient}" for recipient in recipients)]
        head = "".join(f"{line}\r\n" for line in envelope).encode("utf-8", "surrogateescape")
        write_private(self._file(mail_id), head + content)
        if self._limit is not None:
            for old in self.ids()[self._limit :]:
                self._file(old).unlink(missing_ok=True)
        with self._arrival:
            self._arrival.notify_all()
        return mail_id

    def wait_until(self, is_there: Callable[[], bool], seconds: float) -> bool:
        """Wait until what is waited for has arrived, in another thread than the one that keeps messages.

        ``is_there`` is asked at once, and again after each message. False if it is not there after so many seconds.
        """
        with self._arrival:
            return self._arrival.wait_for(is_there, seconds)

    def mails(self) -> list[Mail]:
        """All messages, the newest first."""
        return [mail for mail_id in self.ids() if (mail := self.mail(mail_id)) is not None]

    def mail(self, mail_id: str) -> Mail | None:
        """The message with this id, if there is one; ``mail_id`` may be any text."""
        if _id.fullmatch(mail_id) is None:
            return None
        try:
            content = self._file(mail_id).read_bytes()
        except FileNotFoundError:
            return None
        return _read(mail_id, content)

    def ids(self) -> list[str]:
        """The ids of all messages, the newest first."""
        names = (path.stem for path in self._directory.glob(f"*{_SUFFIX}"))
        return sorted((name for name in names if _id.fullmatch(name)), reverse=True)

    def _file(self, mail_id: str) -> Path:
        return self._directory / f"{mail_id}{_SUFFIX}"


def _read(mail_id: str, content: bytes) -> Mail:
    # The older policy takes any header as it comes; what the newer one makes of it is tried one by one.
    raw = BytesHeaderParser(policy=compat32).parsebytes(content).raw_items()
    headers = tuple((name, _header(name, str(text))) for name, text in raw)
    text, html = _parts(content)

    def first(*names: str) -> str:
        found = (text for wanted in names for name, text in headers if name.lower() == wanted and text)
        return next(found, "")

    return Mail(
        id=mail_id,
        to=first("to", "delivered-to"),
        sender=first("from", "return-path"),
        subject=first("subject"),
        date=from_micros(int(mail_id)),
        headers=headers,
        text=text,
        html=html,
    )


def _header(name: str, raw: str) -> str:
    try:
        text = str(default_policy.header_fetch_parse(name, raw))
    except Exception:  # noqa: BLE001  # the library fails in many ways on malformed headers
        text = " ".join(raw.splitlines())
    return _presentable(text)


def _parts(content: bytes) -> tuple[str, str | None]:
    """The text and the HTML of a message; of one that cannot be taken apart, all that is below its headers."""
    try:
        message = BytesParser(EmailMessage, policy=default_policy).parsebytes(content)
        return _part(message, "plain") or "", _part(message, "html")
    except Exception:  # noqa: BLE001  # as above, for a malformed Content-Type
        body = content.replace(b"\r\n", b"\n").partition(b"\n\n")[2]
        return body.decode("utf-8", "replace"), None


def _part(message: EmailMessage, kind: str) -> str | None:
    part = message.get_body(preferencelist=(kind,))
    if part is None:
        return None
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return None
    try:
        text = payload.decode(part.get_content_charset("utf-8"), "replace")
    except (LookupError, ValueError):
        text = payload.decode("utf-8", "replace")
    return _presentable(text).replace("\r\n", "\n")


def _presentable(text: str) -> str:
    """``text`` without the lone surrogates by which the library marks bytes of no known encoding."""
    return text.encode("utf-8", "replace").decode()
