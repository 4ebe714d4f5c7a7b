"""A real SMTP server in the test's event loop, with configurable misbehavior."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_IN_DISGUISE: Final = "127.1"
"""The same address in a form that does not look like loopback."""
ON_LOOPBACK: Final = x509.IPAddress(ip_address(LOOPBACK))
_PATIENCE: Final = 20.0


class Received(NamedTuple):
    """A mail that the server has taken."""

    sender: str
    recipients: list[str]
    message: EmailMessage
    over_tls: bool

    def part(self, subtype: str) -> str:
        """The text of the part ``text/<subtype>``."""
        found = self.message.get_body(preferencelist=(subtype,))
        assert found is not None
        return cast("str", found.get_content())


class MailServer:
    """Takes every mail, unless told otherwise.

    ``replies`` to RCPT and DATA are used up before it takes mails again; while ``hold`` is set, the
    mail is there but not yet answered for; ``hang_up`` many connections are cut instead of an
    answer to DATA.
    """

    def __init__(
        self,
        *,
        certificate: ssl.SSLContext | None = None,
        implicit_tls: bool = False,
        smtputf8: bool = True,
        account: tuple[str, str] | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self.received: list[Received] = []
        self.replies_to_rcpt: deque[str] = deque()
        self.replies_to_data: deque[str] = deque()
        self.replies_to_auth: deque[str] = deque()
        self.refusals = 0
        self.hang_up = 0
        self.hold: asyncio.Event | None = None
        self.host = host
        self.port = 0
        self._account = account
        self._certificate = certificate
        self._implicit_tls = implicit_tls
        self._smtputf8 = smtputf8
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._sessions: list[SMTP] = []

    async def start(self) -> None:
        """Listen; again on the same port after `stop`."""
        self._server = await asyncio.get_running_loop().create_server(
            self._session,
            self.host,
            self.port,
            ssl=self._certificate if self._implicit_tls else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut all connections."""
        if self._server is None:
            return
        self._server.close()
        for session in self._sessions:
            if session._handler_coroutine is not None:
                session._handler_coroutine.cancel()
                with suppress(asyncio.CancelledError):
                    await session._handler_coroutine
            if session.transport is not None:
                cast("asyncio.Transport", session.transport).abort()
        self._sessions.clear()
        await self._server.wait_closed()
        self._server = None

    def _session(self) -> SMTP:
        session = SMTP(
            self,
            enable_SMTPUTF8=self._smtputf8,
            hostname="mail.test",
            tls_context=None if self._implicit_tls else self._certificate,
            authenticator=self._authenticate,
            auth_require_tls=False,
            loop=asyncio.get_running_loop(),
        )
        self._sessions.append(session)
        return session

    async def wait_for(self, condition: Callable[["MailServer"], bool]) -> None:
        """Return as soon as ``condition`` holds of this server."""
        async with asyncio.timeout(_PATIENCE), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _authenticate(self, *call: Any) -> AuthResult:
        credentials = call[4]
        if self.replies_to_auth:
            return AuthResult(success=False, handled=False, message=self.replies_to_auth.popleft())
        assert isinstance(credentials, LoginPassword)
        good = (credentials.login.decode(), credentials.password.decode()) == self._account
        return AuthResult(success=good, handled=False)

    async def _answer(self, replies: deque[str]) -> str:
        if not replies:
            return "250 OK"
        self.refusals += 1
        await self._tell()
        return replies.popleft()

    async def handle_RCPT(  # noqa: N802  # the name is aiosmtpd's
        self, _server: SMTP, session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if self._account is not None and not session.authenticated:
            return "530 5.7.0 Authentication required"
        answer = await self._answer(self.replies_to_rcpt)
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        answer = await self._answer(self.replies_to_data)
        if not answer.startswith("250"):
            return answer
        message = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        mail = Received(
            envelope.mail_from or "", list(envelope.rcpt_tos), message, session.ssl is not None
        )
        self.received.append(mail)
        await self._tell()
        if self.hold is not None:
            await self.hold.wait()
        if self.hang_up:
            self.hang_up -= 1
            cast("asyncio.Transport", server.transport).abort()
        return answer


@asynccontextmanager
async def running(server: MailServer) -> AsyncIterator[MailServer]:
    """The server, listening for the time of the block."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def self_signed(folder: Path, host: x509.GeneralName = ON_LOOPBACK) -> ssl.SSLContext:
    """A server's TLS configuration with an untrusted certificate, which is in ``mail.pem`` too."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail.test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "mail.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context
