"""The identity provider, the inbox and the payment provider of one machine, in a thread of this
process.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, Self

from anyio.from_thread import start_blocking_portal
from litestar import Litestar, Response, get

from tenantry.common.clock import Clock, system_clock
from tenantry.common.secret import Secret
from tenantry_devkit.html import COMPANION_PAGES, Pages, redirect
from tenantry_devkit.identity_provider import create_identity_provider
from tenantry_devkit.identity_tokens import DemoUser, TokenIssuer, load_or_create_signing_key
from tenantry_devkit.inbox import Inbox, inbox_routes, serving_smtp
from tenantry_devkit.serving import Servable, bind, running, url_of

INBOX_DIRECTORY: Final = "inbox"


def signing_key_path(directory: Path) -> Path:
    return directory / "identity-provider.pem"


def generated_settings() -> dict[str, str]:
    """Return new secrets for a service beside a simulated provider, and the settings that fit
    it.
    """
    return {
        "PROVIDER_WEBHOOK_SECRET": f"whsec_{secrets.token_hex(24)}",
        "PROVIDER_SECRET_KEY": f"sk_test_{secrets.token_hex(24)}",
        # the simulated provider does not know the events of `trigger`: users reconcile on request
        "RECONCILE_HOURS": "0",
        "API_KEY_PEPPER": secrets.token_hex(32),
        "SESSION_SECRET": secrets.token_hex(32),
        # an API key has no dot, whatever KEY_PREFIX is
        "OPERATOR_TOKEN": f"operator.{secrets.token_hex(24)}",
        "OIDC_CLIENT_SECRET": secrets.token_hex(24),
    }


class RunningApplication(Servable, Protocol):
    """A payment provider that also acts on its own, such as a `Simulator`."""

    async def run(self) -> None:
        """Act until canceled."""


class Companion:
    """Serves the identity provider and the inbox over HTTP, an SMTP server, and a payment
    ``provider``, on loopback.

    ``directory`` holds the signing key and the mails (unless ``inbox`` is given), which survive a
    restart. ``ports`` are for HTTP, SMTP and the payment provider; those that are taken, or 0, are
    replaced by free ones. Within the block the attributes have the ports in use. The other
    arguments are those of `create_identity_provider` and `TokenIssuer`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        users: Sequence[DemoUser],
        audience: str,
        client_id: str,
        client_secret: Secret | None = None,
        provider: RunningApplication | None = None,
        inbox: Inbox | None = None,
        ports: tuple[int, int, int] = (0, 0, 0),
        clock: Clock = system_clock,
    ) -> None:
        self._directory = directory
        self._users = users
        self._audience = audience
        self._client_id = client_id
        self._client_secret = client_secret
        self._clock = clock
        self._provider = provider
        self._inbox = inbox
        self._stack = contextlib.ExitStack()
        self.http_url = ""
        """``http://127.0.0.1:<port>``, without a slash at the end: also the issuer."""
        self.http_port, self.smtp_port, self._provider_port = ports

    @property
    def issuer(self) -> str:
        return self.http_url

    @cached_property
    def tokens(self) -> TokenIssuer:
        """What signs the tokens, within the block; OpenSSL checks an RSA key for 50 ms when it is
        read.
        """
        key = load_or_create_signing_key(signing_key_path(self._directory))
        return TokenIssuer(
            key,
            self.issuer,
            self._audience,
            self._client_id,
            self._clock,
        )

    def __enter__(self) -> Self:
        """Return once all servers listen.

        Raises `OSError` if the directory is not writable or no port is free, and `ValueError` for a
        damaged key file.
        """
        with contextlib.ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self._serving()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections and end the thread."""
        self._stack.close()

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        inbox = self._inbox or Inbox(self._directory / INBOX_DIRECTORY, clock=self._clock)
        async with contextlib.AsyncExitStack() as stack:
            http = stack.enter_context(_bind(self.http_port))
            smtp = stack.enter_context(_bind(self.smtp_port))
            self.http_url = url_of(http)
            self.http_port, self.smtp_port = http.getsockname()[1], smtp.getsockname()[1]
            await stack.enter_async_context(serving_smtp(inbox, smtp))
            await stack.enter_async_context(running(self._app(inbox), http))
            if self._provider is not None:
                bound = stack.enter_context(_bind(self._provider_port))
                self._provider.url = url_of(bound)
                await stack.enter_async_context(_acting(self._provider, bound))
            yield

    def _app(self, inbox: Inbox) -> Litestar:
        pages = Pages(COMPANION_PAGES)

        @get("/")
        async def home() -> Response[str]:
            return redirect("/inbox")

        @get("/companion.css")
        async def style_sheet() -> Response[str]:
            return pages.style_sheet()

        more_routes = [
            home,
            style_sheet,
            *inbox_routes(inbox, pages),
        ]
        return create_identity_provider(
            self.tokens,
            self._users,
            client_secret=self._client_secret,
            more_routes=more_routes,
        )


def _bind(port: int) -> socket.socket:
    """Listen on ``port``, or on a free one if it is taken or invalid."""
    try:
        return bind(port)
    except (OSError, OverflowError):
        if port == 0:
            raise
        return bind(0)


@contextlib.asynccontextmanager
async def _acting(provider: RunningApplication, bound: socket.socket) -> AsyncIterator[None]:
    """Serve a payment provider, and let it act, within the block."""
    acting = asyncio.create_task(provider.run())
    try:
        async with running(provider, bound, date_header=False):
            yield
    finally:
        acting.cancel()
        await asyncio.wait({acting})
