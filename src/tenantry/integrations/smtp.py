"""Mail: what it says, and how it is handed to a mail server."""

import asyncio
import hashlib
import ipaddress
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from email.errors import MessageError
from email.headerregistry import Address, AddressHeader
from email.message import EmailMessage
from functools import cache
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import aiosmtplib
import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from tenantry.common.secret import Secret
from tenantry.common.tracing import Tracing
from tenantry.domain.names import display_text
from tenantry.domain.owner_mails import AddressChangedData, Confirmation, KeyLeakedData, PaymentFailure, PendingMail

_TIMEOUT: Final = 10.0
_LONGEST_DELIVERY: Final = 60.0
_LONGEST_PROBE: Final = 20.0
_QUIT_TIMEOUT: Final = 2.0
_DEFAULT_PORT: Final = {"smtp": 587, "smtps": 465}
_PERMANENT: Final = 500
# The server wants to know us first: a fault of the set-up, which may yet be put right (RFC 4954, section 6).
_AUTHENTICATION_REQUIRED: Final = 530
_CODE_LENGTH: Final = 3
_UNUSABLE: Final = "the owner's mail address cannot be used"
_FORBIDDEN: Final = frozenset(' "<>()[],;:@\\')
# Decimals of the amounts that the provider gives, by currency; two for all others. ISK and UGX have none,
# but come with two.
_DECIMALS: Final = {
    **dict.fromkeys(
        ("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"), 0
    ),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}


class MailError(Exception):
    """A mail was not taken. The message is safe to log; ``reply``, the server's own words, may name addresses."""

    def __init__(self, message: str, reply: str = "") -> None:
        super().__init__(message)
        self.reply = reply


class PermanentMailError(MailError):
    """It never will be: the recipient, the sender or the mail itself was refused for good."""


class TemporaryMailError(MailError):
    """It may be later: no connection, no answer in time, a refusal for now, or a faulty set-up."""


class SmtpConfig(msgspec.Struct, frozen=True):
    """Where mail is handed over, and who it is from (``sender``: ``a@b`` or ``Name <a@b>``).

    With ``implicit_tls`` the connection begins in TLS; without, it changes to TLS as soon as it can.
    ``allow_plaintext`` lets mail, and the password, go in the clear to a server that is not on this machine.
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
        """Whether the server is on this machine."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_smtp_url(url: str, sender: str, *, allow_plaintext: bool = False) -> SmtpConfig:
    """Read ``smtp://user:password@host:port`` (port 587 unless given) or ``smtps://...`` (465).

    User and password are percent-encoded, and optional together. Raises `ValueError` with a message that
    repeats nothing of the address.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(_HOW_TO_WRITE) from None
    if parts.scheme not in _DEFAULT_PORT:
        raise ValueError("the mail server's address must begin with smtp:// or smtps://")
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment or port == 0:
        raise ValueError(_HOW_TO_WRITE)
    username, password = _credentials(parts)
    _parse_sender(sender)
    return SmtpConfig(
        host=parts.hostname,
        port=port or _DEFAULT_PORT[parts.scheme],
        username=username,
        password=password,
        implicit_tls=parts.scheme == "smtps",
        sender=sender,
        allow_plaintext=allow_plaintext,
    )


_HOW_TO_WRITE: Final = (
    "the mail server's address must have the form smtp://user:password@host:port, "
    "with special characters of user and password percent-encoded (@ is %40, / is %2F)"
)


def _credentials(parts: SplitResult) -> tuple[str | None, Secret | None]:
    if not parts.username and not parts.password:
        return None, None
    try:
        username = unquote(parts.username or "", errors="strict")
        password = unquote(parts.password or "", errors="strict")
    except UnicodeDecodeError:
        raise ValueError(_HOW_TO_WRITE) from None
    if not username or not password:
        raise ValueError("the mail server's address must have both a user and a password, or neither")
    if not (username + password).isprintable():
        raise ValueError("the mail server's user and password must not hold control characters")
    return username, Secret(password)


def _parse_sender(sender: str) -> Address:
    """The one address in ``sender``; raises `ValueError` unless it is ASCII and has a domain."""
    header = _address_header(sender)
    if header is None or len(header.addresses) != 1:
        raise ValueError("the sender must be one mail address, like billing@example.com or Name <billing@example.com>")
    address = header.addresses[0]
    if not address.domain or not address.username or not address.addr_spec.isascii():
        raise ValueError("the sender's mail address must be of the form name@domain, in ASCII")
    return address


def _address_header(text: str) -> AddressHeader | None:
    message = EmailMessage()
    try:
        message["From"] = text
    except (ValueError, IndexError, MessageError):  # IndexError: the parser's own, on some malformed addresses
        return None
    header = message["From"]
    return header if isinstance(header, AddressHeader) and not header.defects else None  # type: ignore[attr-defined]


class SmtpProbe(msgspec.Struct, frozen=True):
    """How a mail server was met: over TLS or not, and until when its certificate is good, where it was checked."""

    over_tls: bool
    good_until: datetime | None = None


class Mailer:
    """Hands mails to one mail server, a connection for each."""

    def __init__(self, config: SmtpConfig, tracing: Tracing | None = None) -> None:
        self.config = config
        self._tracing = tracing

    async def send(self, message: EmailMessage) -> None:
        """Return once the server has taken the mail. Raises `PermanentMailError` or `TemporaryMailError`.

        Takes at most 60 s, 10 s for each step.
        """
        if self._tracing is None:
            await self._send(message)
            return
        with self._tracing.mail(self.config.host, self.config.port):
            await self._send(message)

    async def _send(self, message: EmailMessage) -> None:
        # The causes are cut off: they repeat the server's words, which may name addresses or echo credentials.
        try:
            await self._deliver(message)
        except (aiosmtplib.SMTPRecipientsRefused, aiosmtplib.SMTPResponseException) as error:
            raise _refused(error) from None
        except aiosmtplib.SMTPNotSupported:
            raise PermanentMailError("the mail server does not take addresses that are not ASCII") from None
        except TimeoutError:
            raise TemporaryMailError("the mail server did not answer in time") from None
        except (aiosmtplib.SMTPException, OSError) as error:
            raise TemporaryMailError(self._trouble(error)) from None
        except ValueError:
            raise PermanentMailError("the mail has an address that cannot be used") from None

    async def probe(self) -> "SmtpProbe":
        """Connect, change to TLS, greet and sign in, just as `send` does, without sending anything.

        Takes at most 20 s. Raises `TemporaryMailError`.
        """
        client = self._client()
        try:
            async with asyncio.timeout(_LONGEST_PROBE):
                await client.connect()
                await client.noop()
            probed = _probed(client)
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=_QUIT_TIMEOUT)
        except aiosmtplib.SMTPResponseException as error:
            raise TemporaryMailError(str(_refused(error))) from None
        except TimeoutError:
            raise TemporaryMailError("the mail server did not answer in time") from None
        except (aiosmtplib.SMTPException, OSError) as error:
            raise TemporaryMailError(self._trouble(error)) from None
        else:
            return probed
        finally:
            client.close()

    async def _deliver(self, message: EmailMessage) -> None:
        client = self._client()
        try:
            async with asyncio.timeout(_LONGEST_DELIVERY):
                await client.connect()
                await client.send_message(message)
            # The mail is taken: a farewell that fails cannot undo it.
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=_QUIT_TIMEOUT)
        finally:
            client.close()

    def _client(self) -> aiosmtplib.SMTP:
        config = self.config
        insist = not (config.implicit_tls or config.on_loopback or config.allow_plaintext)
        return aiosmtplib.SMTP(
            hostname=config.host,
            port=config.port,
            username=config.username,
            password=config.password.reveal() if config.password else None,
            use_tls=config.implicit_tls,
            start_tls=True if insist else None,
            # Servers on the own machine have certificates that they made themselves.
            validate_certs=not config.on_loopback,
            timeout=_TIMEOUT,
        )

    def _trouble(self, error: Exception) -> str:
        where = f"{self.config.host}:{self.config.port}"
        if isinstance(error, aiosmtplib.SMTPServerDisconnected):
            return f"the mail server {where} closed the connection"
        if isinstance(error, aiosmtplib.SMTPConnectError | OSError):
            return f"the mail server {where} cannot be reached, or its certificate is not trusted"
        return f"the mail server {where} does not offer what is needed: TLS, or a way to sign in"


def _probed(client: aiosmtplib.SMTP) -> SmtpProbe:
    certificate: Mapping[str, Any] = client.get_transport_info("peercert") or {}
    end = certificate.get("notAfter")
    return SmtpProbe(
        over_tls=client.get_transport_info("sslcontext") is not None,
        good_until=datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC) if end else None,
    )


def _refused(error: aiosmtplib.SMTPRecipientsRefused | aiosmtplib.SMTPResponseException) -> MailError:
    if isinstance(error, aiosmtplib.SMTPAuthenticationError):
        # No reply: a server may repeat what it was sent.
        return TemporaryMailError(f"the mail server refused the user or password ({error.code})")
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        error = error.recipients[0]
    what = {
        aiosmtplib.SMTPRecipientRefused: "recipient",
        aiosmtplib.SMTPSenderRefused: "sender",
        aiosmtplib.SMTPDataError: "mail",
    }.get(type(error))
    final = what and error.code >= _PERMANENT and error.code != _AUTHENTICATION_REQUIRED
    return (PermanentMailError if final else TemporaryMailError)(
        f"the mail server refused the {what or 'connection'} ({error.code})", _printable(error.message)
    )


def _printable(text: str) -> str:
    """One line without control characters or broken encoding."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def compose(mail: PendingMail, sender: str) -> EmailMessage:
    """The mail to a tenant's owner; the same one each time. No subject has text that a tenant chose.

    Raises `PermanentMailError` where the owner's address cannot be used.
    """
    subject, template, values = _parts(mail)
    return _composed(mail, sender, subject, template, values)


def _parts(mail: PendingMail) -> tuple[str, str, Mapping[str, object]]:
    """The subject, the template, and what the template shows."""
    about = mail.about
    tenant = display_text(mail.tenant_name, "your organization")
    if isinstance(about, PaymentFailure):
        remaining = about.amount_due if about.amount_remaining is None else about.amount_remaining
        is_partial = about.amount_due is not None and remaining != about.amount_due
        return "Payment failed", "payment_failed", {
            "tenant": tenant,
            "amount": format_amount(remaining, about.currency),
            "total": format_amount(about.amount_due, about.currency) if is_partial else None,
            "invoice_url": about.invoice_url,
        }  # fmt: skip
    if isinstance(about, Confirmation):
        # Nothing that a tenant chose, not even its name: until the address is verified, its owner may be a stranger.
        return "Confirm your e-mail address", "confirm_address", {"link": about.link, "hours": str(about.hours)}
    if isinstance(about, KeyLeakedData):
        return "A leaked API key was revoked", "key_leaked", {"tenant": tenant, "key": _leak_values(about)}
    if isinstance(about, AddressChangedData):
        values = {"tenant": tenant, "changed": _change_values(about)}
        return "The owner's e-mail address was changed", "address_changed", values
    return "Security notices of the last hour", "security_digest", {
        "tenant": tenant,
        "leaked": [_leak_values(leak) for leak in about.leaked],
        "changed": [_change_values(change) for change in about.changed],
        "more": about.more,
        "number": len(about.leaked) + len(about.changed) + about.more,
    }  # fmt: skip


def _leak_values(leak: KeyLeakedData) -> Mapping[str, str | None]:
    return {
        "name": display_text(leak.key_name),
        "shown": f"{leak.start}...{leak.last4}",
        "id": leak.key_id,
        "reported_at": _moment(leak.reported_at),
        "reported_from": leak.reported_from,
    }


def _change_values(change: AddressChangedData) -> Mapping[str, str | bool]:
    return {
        "address": display_text(change.email),
        "changed_at": _moment(change.changed_at),
        "verified": change.verified,
    }


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _link_mark(mail: PendingMail) -> str:
    """What tells a confirmation from one that was sent before it: only the newest has a valid link."""
    if not isinstance(mail.about, Confirmation):
        return ""
    return f".{hashlib.sha256(mail.about.link.encode()).hexdigest()[:16]}"


def _composed(
    mail: PendingMail, sender: str, subject: str, template: str, values: Mapping[str, object]
) -> EmailMessage:
    message = EmailMessage()
    message["From"] = sender
    message["To"] = _recipient(mail.recipient)
    message["Subject"] = subject
    message["Date"] = mail.created_at
    message["Message-ID"] = f"<{mail.notification_id}{_link_mark(mail)}@{_parse_sender(sender).domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_templates().get_template(f"{template}.txt.j2").render(values))
    message.add_alternative(_templates().get_template(f"{template}.html.j2").render(values), subtype="html")
    return message


def format_amount(amount: int | None, currency: str | None) -> str | None:
    """An amount in the smallest unit of its currency, for people: ``1,234.50 USD``, ``500 JPY``.

    None where either is missing or the currency is not a three-letter code.
    """
    code = (currency or "").upper()
    if amount is None or len(code) != _CODE_LENGTH or not (code.isascii() and code.isalpha()):
        return None
    decimals = _DECIMALS.get(code, 2)
    return f"{Decimal(amount).scaleb(-decimals):,.{decimals}f} {code}"


def _recipient(text: str) -> Address:
    username, _, domain = text.strip().rpartition("@")
    if not username or not domain or not username.isprintable() or _FORBIDDEN & set(username):
        raise PermanentMailError(_UNUSABLE)
    try:
        domain = domain.encode("idna").decode()
        if username.isascii():
            return Address(addr_spec=f"{username}@{domain}")
        return Address(username=username, domain=domain)
    except (ValueError, IndexError, MessageError):  # IndexError: the parser's own, on some malformed addresses
        raise PermanentMailError(_UNUSABLE) from None


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("tenantry.integrations", "templates"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
