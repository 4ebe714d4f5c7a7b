"""The service of a test session, with all that it needs on this machine."""

import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx2

from tenantry.common.secret import Secret
from tenantry.settings import Settings
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_provider import DemoUser, SigningKey
from tenantry_devkit.inbox.inbox import Inbox
from tenantry_devkit.testing.database import Rows
from tenantry_devkit.testing.issuer import Issuer
from tenantry_devkit.testing.kept import Kept
from tenantry_devkit.testing.mails import Mails
from tenantry_devkit.testing.masking import Variables
from tenantry_devkit.testing.provider import ProviderPort
from tenantry_devkit.testing.settings import as_text, checked, complete

_TIMEOUT: Final = 30.0
_SHARED: Final = (
    "DATABASE_URL", "API_KEY_PEPPER", "TENANTRY_PLANS", "OIDC_ISSUER", "OIDC_AUDIENCE", "OIDC_CLIENT_ID",
    "OIDC_CLIENT_SECRET", "OIDC_ORG_CLAIM", "OIDC_ROLE_CLAIM", "OPERATOR_TOKEN", "PROVIDER_WEBHOOK_SECRET",
    "PROVIDER_SECRET_KEY", "PROVIDER_API_BASE",
)  # fmt: skip


class RunningService:
    """A service that runs as ``tenantry serve``, for the length of a test session.

    `Tenantry` is what a test does with it. ``values`` are its settings, by variable name.
    """

    def __init__(
        self, *, base_url: str, values: Variables, kept: Kept, mails: Mails, rows: Rows, port: ProviderPort,
        signing_key: SigningKey, users: list[DemoUser], given: Variables,
    ) -> None:  # fmt: skip
        self.base_url = base_url
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        self.given = given
        """The settings that it was asked to have."""
        self.values = values
        self.settings: Settings = checked(values)
        self.environment = Variables(
            {"TENANTRY_BASE_URL": base_url, **{name: values[name] for name in _SHARED if values.get(name)}}
        )
        """What an application under test may need, as environment variables."""
        self.mails = mails
        self.rows = rows
        self.provider_port = port
        assert self.settings.oidc is not None  # noqa: S101  # it is completed
        self.issuer = Issuer(self.settings.oidc, signing_key, users)
        self._kept = kept
        self._trust = ssl.create_default_context()  # made once: it takes longer than a test

    def __repr__(self) -> str:
        return f"<RunningService {self.base_url}>"

    @property
    def logged(self) -> int:
        """How many bytes it has logged so far."""
        return self._kept.logged

    def log(self, since: int = 0) -> str:
        """What it has logged since there were so many bytes; secrets are masked, as always. Empty once it has ended."""
        return self._kept.log(since)

    def client(self, headers: Mapping[str, str]) -> httpx2.Client:
        """An HTTP client of the service, past any proxy; whoever asks for it closes it."""
        return httpx2.Client(
            base_url=self.base_url, headers=headers, timeout=_TIMEOUT, trust_env=False, verify=self._trust
        )


@contextmanager
def running_service(given: Mapping[str, object]) -> Iterator[RunningService]:
    """The service with these settings for the length of the block. Raises `StartError`."""
    __tracebackhide__ = True  # what it is given may hold secrets
    chosen = as_text(given)
    values = complete(chosen)
    checked(values)
    folder = Path(tempfile.mkdtemp(prefix="tenantry-"))
    with ExitStack() as stack:
        kept = stack.enter_context(Kept(folder))
        inbox, port, users = Inbox(folder / "inbox", limit=None), ProviderPort(), list[DemoUser]()
        companion = stack.enter_context(
            Companion(
                folder,
                users=users,
                audience=values["OIDC_AUDIENCE"],
                client_id=values["OIDC_CLIENT_ID"],
                client_secret=Secret(values["OIDC_CLIENT_SECRET"]),
                provider=port,
                inbox=inbox,
            )
        )
        stack.callback(kept.close)  # the service ends before those whom it calls
        rows = Rows(database := kept.database())
        addresses = {
            "DATABASE_URL": database,
            "OIDC_ISSUER": companion.issuer,
            "SMTP_URL": f"smtp://127.0.0.1:{companion.smtp_port}",
            "PROVIDER_API_BASE": port.url,
        }
        values = Variables({**values, **addresses})
        yield RunningService(
            base_url=kept.serve(values),
            values=values,
            kept=kept,
            mails=Mails(inbox, rows),
            rows=rows,
            port=port,
            signing_key=companion.signing_key,
            users=users,
            given=chosen,
        )
