"""The service of a test session, in a separate process."""

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
from typing import Final, Self

import httpx2

from tenantry.common.secret import Secret
from tenantry.settings import EMBEDDED, Settings, SettingsError, inherited, load
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_provider import DemoUser, SigningKey
from tenantry_devkit.inbox import Inbox
from tenantry_devkit.testing import supervisor
from tenantry_devkit.testing.errors import StartError, Variables
from tenantry_devkit.testing.mails import MailFinder, SessionDatabase
from tenantry_devkit.testing.provider import ProviderServer
from tenantry_devkit.testing.supervisor import LOG, tail
from tenantry_devkit.testing.tenants import TokenIssuer

AUDIENCE: Final = "tenantry-api"
CLIENT_ID: Final = "tenantry-tests"
_FIXED: Final = frozenset(
    {
        "DATABASE_URL", "DATABASE_POOLER_URL", "TENANTRY_DATA_DIR", "HOST", "PORT", "OIDC_ISSUER", "SMTP_URL",
        "PROVIDER_API_BASE",
    }
)  # fmt: skip
"""Settings of what the session starts itself."""
_INHERITED: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH",
    "COVERAGE_PROCESS_START", "COVERAGE_FILE",
)  # fmt: skip
"""The inherited environment variables: none that is a setting of the service or PostgreSQL."""
_SHARED: Final = (
    "DATABASE_URL", "API_KEY_PEPPER", "TENANTRY_PLANS", "OIDC_ISSUER", "OIDC_AUDIENCE", "OIDC_CLIENT_ID",
    "OIDC_CLIENT_SECRET", "OIDC_ORG_CLAIM", "OIDC_ROLE_CLAIM", "OPERATOR_TOKEN", "PROVIDER_WEBHOOK_SECRET",
    "PROVIDER_SECRET_KEY", "PROVIDER_API_BASE",
)  # fmt: skip
"""The settings that an application under test may need."""
_STOP_SECONDS: Final = 120.0
_TIMEOUT: Final = 30.0


def as_variables(given: Mapping[str, object]) -> Variables:
    """Convert a suite's settings to strings. Raises `StartError`."""
    if not isinstance(given, Mapping):
        raise StartError(f"tenantry_settings must be a mapping of variables, not {type(given).__name__}")
    unset = ", ".join(sorted(name for name, value in given.items() if value is None))
    given = Variables({name: str(value) for name, value in given.items()})  # masked: tracebacks show locals
    if unset:
        raise StartError(f'tenantry_settings: {unset} cannot be None: leave it out for its default, or set it to "".')
    return given


def complete_settings(given: Mapping[str, str]) -> Variables:
    """Add the session's secrets to a suite's settings. Raises `StartError`."""
    if fixed := sorted(_FIXED & given.keys()):
        raise StartError(f"tenantry_settings: {', '.join(fixed)} cannot be set: the tests run these themselves.")
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
        "RECONCILE_HOURS": "0",  # only on request
        "DRAIN_SECONDS": "0",  # no load balancer has to notice its end
        **given,
        **({"TENANTRY_PLANS": str(Path(plans).absolute())} if plans else {}),
        "HOST": "127.0.0.1",
        "PORT": "0",
    })  # fmt: skip


def check_settings(values: Variables) -> Settings:
    """Parse the settings like the service. Raises `StartError`, which names every fault."""
    try:
        return load({**values, "DATABASE_URL": EMBEDDED})
    except SettingsError as error:
        faults = "\n".join(f"  {fault}" for fault in error.faults)
        raise StartError(f"tenantry_settings: {len(error.faults)} setting(s) are faulty.\n{faults}") from None


class ServiceProcess:
    """PostgreSQL, which starts at once, and then the service, both below ``folder``, which `close` removes.

    They end with this process, even if that is killed. Raises `StartError` if one does not start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / LOG
        with self._log.open("ab") as log:
            self._supervisor = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-P", supervisor.__file__, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=inherited(_INHERITED),
                start_new_session=True,  # not for the terminal's Ctrl-C
            )

    def database(self) -> str:
        """Return the address of the database once it accepts connections."""
        return self._answer("database")

    def serve(self, settings: Mapping[str, str]) -> str:
        """Start the service with these settings; return its address once it is ready."""
        assert self._supervisor.stdin is not None  # noqa: S101
        try:
            self._supervisor.stdin.write(f"{json.dumps({**inherited(_INHERITED), **settings})}\n")
            self._supervisor.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer("ready")

    @property
    def log_length(self) -> int:
        return self._log.stat().st_size

    def log(self, since: int = 0) -> str:
        """Return the log from this byte on; empty after the end."""
        try:
            with self._log.open("rb") as log:
                log.seek(since)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """End the service and PostgreSQL, and wait for them."""
        self._supervisor.terminate()  # closing the pipes is not enough while a forked child holds them
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._supervisor.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # in case the supervisor ended before it began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, name: str) -> str:
        assert self._supervisor.stdout is not None  # noqa: S101
        line = self._supervisor.stdout.readline()
        if not line:
            raise self._ended()
        report: dict[str, str] = json.loads(line)
        if name not in report:
            raise StartError(f"The service of the tests does not start. {report['failed']}")
        return report[name]

    def _ended(self) -> StartError:
        return StartError(f"The process that runs the service has ended:\n{tail(self._log)}")


class RunningService:
    """A service that runs as ``tenantry serve``, for a test session; tests use it through `Tenantry`."""

    def __init__(
        self, *, base_url: str, values: Variables, process: ServiceProcess, mails: MailFinder,
        database: SessionDatabase, provider_server: ProviderServer, signing_key: SigningKey, users: list[DemoUser],
        given: Variables,
    ) -> None:  # fmt: skip
        self.base_url = base_url
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        self.given = given
        """The suite's settings."""
        self.values = values
        self.settings: Settings = check_settings(values)
        self.environment = Variables(
            {"TENANTRY_BASE_URL": base_url, **{name: values[name] for name in _SHARED if values.get(name)}}
        )
        """Environment variables for an application under test."""
        self.mails = mails
        self.database = database
        self.provider_server = provider_server
        assert self.settings.oidc is not None  # noqa: S101
        self.issuer = TokenIssuer(self.settings.oidc, signing_key, users)
        self._process = process
        self._tls = ssl.create_default_context()  # once: slower than a test

    def __repr__(self) -> str:
        return f"<RunningService {self.base_url}>"

    @property
    def log_length(self) -> int:
        return self._process.log_length

    def log(self, since: int = 0) -> str:
        """Return its log from this byte on, with masked secrets; empty after the end."""
        return self._process.log(since)

    def client(self, headers: Mapping[str, str]) -> httpx2.Client:
        """Return an HTTP client of the service, which the caller closes."""
        return httpx2.Client(
            base_url=self.base_url, headers=headers, timeout=_TIMEOUT, trust_env=False, verify=self._tls
        )


@contextmanager
def running_service(given: Mapping[str, object]) -> Iterator[RunningService]:
    """Run the service with these settings within the block. Raises `StartError`."""
    __tracebackhide__ = True  # the settings may hold secrets
    chosen = as_variables(given)
    values = complete_settings(chosen)
    check_settings(values)
    folder = Path(tempfile.mkdtemp(prefix="tenantry-"))
    with ExitStack() as stack:
        process = stack.enter_context(ServiceProcess(folder))
        inbox, provider_server, users = Inbox(folder / "inbox", limit=None), ProviderServer(), list[DemoUser]()
        companion = stack.enter_context(
            Companion(
                folder,
                users=users,
                audience=values["OIDC_AUDIENCE"],
                client_id=values["OIDC_CLIENT_ID"],
                client_secret=Secret(values["OIDC_CLIENT_SECRET"]),
                provider=provider_server,
                inbox=inbox,
            )
        )
        stack.callback(process.close)  # before the servers that the service calls
        address = process.database()
        database = SessionDatabase(address)
        addresses = {
            "DATABASE_URL": address,
            "OIDC_ISSUER": companion.issuer,
            "SMTP_URL": f"smtp://127.0.0.1:{companion.smtp_port}",
            "PROVIDER_API_BASE": provider_server.url,
        }
        values = Variables({**values, **addresses})
        yield RunningService(
            base_url=process.serve(values),
            values=values,
            process=process,
            mails=MailFinder(inbox, database),
            database=database,
            provider_server=provider_server,
            signing_key=companion.signing_key,
            users=users,
            given=chosen,
        )
