"""Delivery of mail to an SMTP server."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, nullcontext, suppress
from email.errors import MessageError
from email.headerregistry import Address, AddressHeader
from email.message import EmailMessage
from functools import cache
from threading import Thread
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import aiosmtplib
import msgspec

from tenantry.common.encoding import one_line
from tenantry.common.http import is_loopback
from tenantry.common.secret import Secret
from tenantry.common.tracing import Tracing

_TIMEOUT: Final = 10.0
_DELIVERY_TIMEOUT: Final = 60.0
_PROBE_TIMEOUT: Final = 20.0
_QUIT_TIMEOUT: Final = 2.0
_DEFAULT_PORT: Final = {"smtp": 587, "smtps": 465}
_PERMANENT: Final = 500
# The server requires authentication: a configuration error that may be corrected (RFC 4954 section
# 6).
_AUTHENTICATION_REQUIRED: Final = 530
_URL_FORM: Final = (
    "the mail server's address must have the form smtp://user:password@host:port, or smtps://, user and password both "
    "or neither, with their special characters percent-encoded (@ is %40, / is %2F)"
)


class MailDeliveryError(Exception):
    """A mail was not accepted. The message is safe to log; ``reply``, the server's text, may
    contain addresses.
    """

    def __init__(self, message: str, reply: str = "") -> None:
        super().__init__(message)
        self.reply = reply


class PermanentMailError(MailDeliveryError):
    """The server permanently rejected the recipient, the sender or the mail."""


class TemporaryMailError(MailDeliveryError):
    """A retry may succeed: no connection, a timeout, a temporary rejection, or a wrong
    configuration.
    """


_REFUSED: Final[dict[type[Exception], str]] = {
    aiosmtplib.SMTPRecipientRefused: "recipient",
    aiosmtplib.SMTPSenderRefused: "sender",
    aiosmtplib.SMTPDataError: "mail",
}
_FAILURES: Final[tuple[tuple[type[Exception], type[MailDeliveryError], str], ...]] = (
    (
        aiosmtplib.SMTPNotSupported,
        PermanentMailError,
        "the mail server does not support non-ASCII addresses",
    ),
    (TimeoutError, TemporaryMailError, "the mail server did not answer in time"),
    (aiosmtplib.SMTPServerDisconnected, TemporaryMailError, "{where} closed the connection"),
    (
        OSError,
        TemporaryMailError,
        "{where} cannot be reached, or its certificate is not trusted",
    ),
    (
        aiosmtplib.SMTPException,
        TemporaryMailError,
        "{where} does not offer what is needed: TLS, or a way to sign in",
    ),
    (ValueError, PermanentMailError, "the mail has an address that cannot be used"),
)
"""The failures to report, by the first error that fits."""


class SmtpConfig(msgspec.Struct, frozen=True):
    """The SMTP server and the sender (``a@b`` or ``Name <a@b>``).

    With ``implicit_tls`` the connection begins in TLS, otherwise it uses STARTTLS.
    ``allow_plaintext`` permits mail and password in plain text to a server that is not on this
    machine.
    """

    host: str
    port: int
    username: str | None
    password: Secret | None
    implicit_tls: bool
    sender: str
    allow_plaintext: bool = False

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.host)


def parse_smtp_url(url: str, sender: str, *, allow_plaintext: bool = False) -> SmtpConfig:
    """Parse ``smtp[s]://user:password@host:port``. Raises `ValueError` with a message without parts
    of the URL.
    """
    try:
        parts = urlsplit(url)
        _check_server(parts)
        port = parts.port or _DEFAULT_PORT[parts.scheme]
        username, password = _credentials(parts)
    except ValueError:
        raise ValueError(_URL_FORM) from None
    parse_sender(sender)
    return SmtpConfig(
        host=parts.hostname or "",
        port=port,
        username=username or None,
        password=Secret(password) if password else None,
        implicit_tls=parts.scheme == "smtps",
        sender=sender,
        allow_plaintext=allow_plaintext,
    )


def _credentials(parts: SplitResult) -> tuple[str, str]:
    """Return user and password; both are empty without them. Raises `ValueError`."""
    username = unquote(parts.username or "", errors="strict")
    password = unquote(parts.password or "", errors="strict")
    if bool(username) != bool(password) or not (username + password).isprintable():
        raise ValueError("a user without a password, or characters that cannot be printed")
    return username, password


def _check_server(parts: SplitResult) -> None:
    """Raise `ValueError` unless a URL names an SMTP server, and has no path, query or fragment."""
    if parts.scheme not in _DEFAULT_PORT:
        raise ValueError("another protocol")
    others = (parts.path.removeprefix("/"), parts.query, parts.fragment)
    if not parts.hostname or parts.port == 0 or any(others):
        raise ValueError("no server, or more than one")


def parse_sender(sender: str) -> Address:
    """Return the one address in ``sender``. Raises `ValueError` unless it is ASCII and has a
    domain.
    """
    message = EmailMessage()
    with suppress(ValueError, IndexError, MessageError):  # IndexError: a bug of the parser
        message["From"] = sender
    header = message["From"]
    if isinstance(header, AddressHeader) and not header.defects and len(header.addresses) == 1:  # type: ignore[attr-defined]
        [address] = header.addresses
        if all((address.domain, address.username, address.addr_spec.isascii())):
            return address
    raise ValueError(
        "the sender must be one mail address in ASCII, like billing@example.com or Name <billing@example.com>"
    )


@cache
def _loop_apart() -> asyncio.AbstractEventLoop:
    """Start an event loop in a thread of its own, once a process."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="smtp", daemon=True).start()
    return loop


async def _apart(work: Coroutine[None, None, None]) -> None:
    """Do this in the loop of mails, until done or canceled.

    The mail server chooses the key exchange of TLS, which can take 0.2 s, and asyncio does the
    handshake in the loop (docs/decisions/0088).
    """
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop_apart()))


class Mailer:
    """Sends mails to one SMTP server, over a connection each."""

    def __init__(self, config: SmtpConfig, tracing: Tracing | None = None) -> None:
        self.config = config
        self._tracing = tracing

    async def send(self, message: EmailMessage) -> None:
        """Send a mail, within 60 s. Raises `PermanentMailError` or `TemporaryMailError`."""
        config = self.config
        tracing = self._tracing
        with nullcontext() if tracing is None else tracing.mail(config.host, config.port):
            await _apart(self._send(message))

    async def probe(self) -> None:
        """Connect, start TLS and log in as `send` does, without a mail, within 20 s. Raises
        `TemporaryMailError`.
        """
        try:
            await _apart(self._probe())
        except PermanentMailError as error:
            raise TemporaryMailError(str(error)) from None

    async def _send(self, message: EmailMessage) -> None:
        async with self._connected(_DELIVERY_TIMEOUT) as client:
            await client.send_message(message)

    async def _probe(self) -> None:
        async with self._connected(_PROBE_TIMEOUT) as client:
            await client.noop()

    @asynccontextmanager
    async def _connected(self, seconds: float) -> AsyncIterator[aiosmtplib.SMTP]:
        """Run the block with a connection. Raises `PermanentMailError` or `TemporaryMailError`.

        Their causes are suppressed: the server's replies may contain addresses or credentials.
        """
        client = self._client()
        try:
            async with asyncio.timeout(seconds):
                await client.connect()
                yield client
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            raise self._failure(error) from None
        else:
            # the mail is accepted, even if this fails
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=_QUIT_TIMEOUT)
        finally:
            client.close()

    def _failure(self, error: Exception) -> MailDeliveryError:
        """Return the failure to report; the text of most errors may contain addresses."""
        if isinstance(error, aiosmtplib.SMTPRecipientsRefused | aiosmtplib.SMTPResponseException):
            return _rejected(error)
        make, text = next((make, text) for kind, make, text in _FAILURES if isinstance(error, kind))
        return make(text.format(where=f"the mail server {self.config.host}:{self.config.port}"))

    def _client(self) -> aiosmtplib.SMTP:
        config = self.config
        requires_tls = not (config.implicit_tls or config.on_loopback or config.allow_plaintext)
        return aiosmtplib.SMTP(
            hostname=config.host,
            port=config.port,
            username=config.username,
            password=config.password.reveal() if config.password else None,
            use_tls=config.implicit_tls,
            start_tls=True if requires_tls else None,
            # servers on this machine have self-signed certificates
            validate_certs=not config.on_loopback,
            timeout=_TIMEOUT,
        )


def _rejected(
    error: aiosmtplib.SMTPRecipientsRefused | aiosmtplib.SMTPResponseException,
) -> MailDeliveryError:
    if isinstance(error, aiosmtplib.SMTPAuthenticationError):
        # Without the reply, which may contain the password.
        return TemporaryMailError(f"the mail server refused the user or password ({error.code})")
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        error = error.recipients[0]
    what = _REFUSED.get(type(error))
    is_permanent = what and error.code >= _PERMANENT and error.code != _AUTHENTICATION_REQUIRED
    return (PermanentMailError if is_permanent else TemporaryMailError)(
        f"the mail server refused the {what or 'connection'} ({error.code})",
        one_line(error.message),
    )
