"""The service that the tests use, running in a process of its own."""

import contextlib
import json
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx2

from tenantry.common.secret import Secret
from tenantry.settings import EMBEDDED, Settings, SettingsError, inherited, load
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_provider import DemoUser, SigningKey
from tenantry_devkit.inbox import Inbox
from tenantry_devkit.testing import supervisor as keeper
from tenantry_devkit.testing.database import Rows
from tenantry_devkit.testing.errors import StartError, Variables
from tenantry_devkit.testing.provider import Issuer, Mails, ProviderPort
from tenantry_devkit.testing.supervisor import LOG, tail

AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "tenantry-tests"
_OURS: Final = frozenset(
    {
        "DATABASE_URL", "DATABASE_POOLER_URL", "TENANTRY_DATA_DIR", "HOST", "PORT", "OIDC_ISSUER", "SMTP_URL",
        "PROVIDER_API_BASE",
    }
)  # fmt: skip
"""Where things are that are started here."""


def as_text(given: Mapping[str, object]) -> Variables:
    """What a suite gives, by variable name. Raises `StartError`."""
    if not isinstance(given, Mapping):
        raise StartError(f"tenantry_settings must be a mapping of variables, not {type(given).__name__}")
    unset = ", ".join(sorted(name for name, value in given.items() if value is None))
    given = Variables({name: str(value) for name, value in given.items()})  # an error shows what this was given
    if unset:
        raise StartError(f'tenantry_settings: {unset} cannot be None: leave out what has its default, "" is nothing.')
    return given


def complete(given: Mapping[str, str]) -> Variables:
    """What a suite gives, and the rest: secrets of this session, and how to call each other.

    A relative path of a plan catalog is looked for from the current folder. Raises `StartError`.
    """
    if taken := sorted(_OURS & given.keys()):
        raise StartError(f"tenantry_settings: {', '.join(taken)} cannot be set: the tests run these themselves.")
    plans = given.get("TENANTRY_PLANS")
    return Variables({
        "PROVIDER_WEBHOOK_SECRET": f"whsec_{secrets.token_hex(24)}",
        "PROVIDER_SECRET_KEY": f"sk_test_{secrets.token_hex(24)}",
        "API_KEY_PEPPER": secrets.token_hex(32),
        "SESSION_SECRET": secrets.token_hex(32),
        "OPERATOR_TOKEN": f"op_{secrets.token_hex(24)}",
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_CLIENT_ID": CLIENT_ID,
        "OIDC_CLIENT_SECRET": secrets.token_hex(24),
        "MAIL_FROM": "tenantry tests <billing@tenantry.example>",
        # tenants are compared with the provider when a test asks for it, not while it runs
        "RECONCILE_HOURS": "0",
        "DRAIN_SECONDS": "0",  # nothing stands before it that would have to notice its end
        **given,
        **({"TENANTRY_PLANS": str(Path(plans).absolute())} if plans else {}),
        "HOST": "127.0.0.1",
        "PORT": "0",
    })  # fmt: skip


def checked(values: Variables) -> Settings:
    """The settings as the service will read them. Raises `StartError`, which names every fault."""
    try:
        return load({**values, "DATABASE_URL": EMBEDDED})
    except SettingsError as error:
        faults = "\n".join(f"  {fault}" for fault in error.faults)
        raise StartError(f"tenantry_settings: {len(error.faults)} setting(s) are faulty.\n{faults}") from None


_INHERITED: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH",
    "COVERAGE_PROCESS_START", "COVERAGE_FILE",
)  # fmt: skip
"""What they get of the session's environment: none of what might be a setting of the service, or of PostgreSQL."""
_STOP_SECONDS: Final = 120.0


class Kept:
    """PostgreSQL, which is begun at once, and then the service, both below ``folder``, which goes in the end.

    They end with `close`, or with this process, even if that is killed. Raises `StartError` when one does not start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / LOG
        with self._log.open("ab") as log:
            self._keeper = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-P", keeper.__file__, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=inherited(_INHERITED),
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )

    def database(self) -> str:
        """The address of the database, once that takes connections."""
        return self._answer("database")

    def serve(self, settings: Mapping[str, str]) -> str:
        """Start the service with these settings; its address, once it is ready."""
        assert self._keeper.stdin is not None  # noqa: S101
        try:
            self._keeper.stdin.write(f"{json.dumps({**inherited(_INHERITED), **settings})}\n")
            self._keeper.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer("ready")

    @property
    def logged(self) -> int:
        """How many bytes the service has logged so far."""
        return self._log.stat().st_size

    def log(self, since: int = 0) -> str:
        """What it has logged since there were so many bytes; empty once it has ended."""
        try:
            with self._log.open("rb") as log:
                log.seek(since)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """End the service and PostgreSQL, and wait for it."""
        self._keeper.terminate()  # the pipes alone do not say so while a forked child of this process has them too
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._keeper.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # a keeper that was ended before it began has not done so

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, name: str) -> str:
        assert self._keeper.stdout is not None  # noqa: S101
        line = self._keeper.stdout.readline()
        if not line:
            raise self._ended()
        news: dict[str, str] = json.loads(line)
        if name not in news:
            raise StartError(f"The service of the tests does not start. {news['failed']}")
        return news[name]

    def _ended(self) -> StartError:
        return StartError(f"The process that keeps the service has ended:\n{tail(self._log)}")


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
