"""The service of a test session, in a separate process, with its database, its mails and its
payment provider.
"""

import asyncio
import contextlib
import json
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from contextvars import Context
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack

import httpx2
import psycopg
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.integrations.http_client import new_http_client
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry.settings import EMBEDDED, Settings, SettingsError, inherited, load
from tenantry_devkit.demo.companion import Companion, generated_settings
from tenantry_devkit.identity_tokens import DEFAULT_SCOPE, DemoUser
from tenantry_devkit.inbox import Inbox, Mail
from tenantry_devkit.simulator import Simulator
from tenantry_devkit.testing import supervisor
from tenantry_devkit.testing.errors import (
    Credential,
    MailError,
    RefusedError,
    StartError,
    Variables,
    bearer,
)
from tenantry_devkit.testing.supervisor import LOG, tail

R = TypeVar("R")

_FIXED: Final = frozenset(
    {
        "DATABASE_URL",
        "DATABASE_POOLER_URL",
        "DATABASE_CHECKS_URL",
        "TENANTRY_DATA_DIR",
        "HOST",
        "PORT",
        "OIDC_ISSUER",
        "SMTP_URL",
        "PROVIDER_API_BASE",
    }
)
"""Settings of what the session starts itself."""
_INHERITED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "COVERAGE_PROCESS_START",
    "COVERAGE_FILE",
)
"""The inherited environment variables: none that is a setting of the service or PostgreSQL."""
_SHARED: Final = (
    "DATABASE_URL",
    "API_KEY_PEPPER",
    "TENANTRY_PLANS",
    "OIDC_ISSUER",
    "OIDC_AUDIENCE",
    "OIDC_CLIENT_ID",
    "OIDC_CLIENT_SECRET",
    "OIDC_ORG_CLAIM",
    "OIDC_ROLE_CLAIM",
    "OPERATOR_TOKEN",
    "PROVIDER_WEBHOOK_SECRET",
    "PROVIDER_SECRET_KEY",
    "PROVIDER_API_BASE",
)
"""The settings that an application under test may need."""
_NEUTRAL: Final = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "hostaddr": "",
    "options": "",
    "password": "",
    "require_auth": "",
    "requirepeer": "",
    "sslcertmode": "allow",
    "ssl_max_protocol_version": "",
}
"""Neutral values of parameters without a default in libpq; an empty string is invalid for the
others.
"""
_MAILS: Final = """
    SELECT id::text, concat(status, ' (' || last_error || ')')
      FROM mails
     WHERE tenant_id = ANY(%(tenants)s) AND status NOT IN ('collecting', 'dropped')
     ORDER BY created_at, id
"""
_EXPIRE_KEY: Final = (
    "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE org_id = %s AND id = %s"
)
_STOP_SECONDS: Final = 120.0
_TOKEN_LIFETIME: Final = timedelta(hours=1)
_DELIVERY_SECONDS: Final = 20.0
_TIMEOUT: Final = 30.0


def as_variables(given: Mapping[str, object]) -> Variables:
    """Convert a suite's settings to strings. Raises `StartError`."""
    if not isinstance(given, Mapping):
        raise StartError(
            f"tenantry_settings must be a mapping of variables, not {type(given).__name__}"
        )
    unset = ", ".join(sorted(name for name, value in given.items() if value is None))
    # masked: tracebacks show locals
    given = Variables({name: str(value) for name, value in given.items()})
    if unset:
        raise StartError(
            f'tenantry_settings: {unset} cannot be None: leave it out for its default, or set it to "".'
        )
    return given


def complete_settings(given: Mapping[str, str]) -> Variables:
    """Add the session's secrets to a suite's settings. Raises `StartError`."""
    if fixed := sorted(_FIXED & given.keys()):
        raise StartError(
            f"tenantry_settings: {', '.join(fixed)} cannot be set: the tests run these themselves."
        )
    plans = given.get("TENANTRY_PLANS")
    return Variables(
        {
            **generated_settings(),
            "OIDC_AUDIENCE": "tenantry-api",
            "OIDC_CLIENT_ID": "tenantry-tests",
            "MAIL_FROM": "tenantry tests <billing@tenantry.example>",
            "DRAIN_SECONDS": "0",  # no load balancer has to notice its end
            **given,
            **({"TENANTRY_PLANS": str(Path(plans).absolute())} if plans else {}),
            "HOST": "127.0.0.1",
            "PORT": "0",
        }
    )


def check_settings(values: Variables) -> Settings:
    """Parse the settings like the service. Raises `StartError`, which names every fault."""
    try:
        return load({**values, "DATABASE_URL": EMBEDDED})
    except SettingsError as error:
        faults = "\n".join(f"  {fault}" for fault in error.faults)
        raise StartError(
            f"tenantry_settings: {len(error.faults)} setting(s) are faulty.\n{faults}"
        ) from None


class ServiceAddresses(NamedTuple):
    base_url: str
    database: str


class ServiceProcess:
    """PostgreSQL, which starts at once, and the service, both below ``folder``, which `close`
    removes.

    They end with this process, even if that is killed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / LOG
        with self._log.open("ab") as log:
            self._supervisor = subprocess.Popen(  # noqa: S603  # our own module
                [
                    sys.executable,
                    "-P",
                    supervisor.__file__,
                    str(folder),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=inherited(_INHERITED),
                start_new_session=True,  # not for the terminal's Ctrl-C
            )

    def serve(self, settings: Mapping[str, str]) -> "ServiceAddresses":
        """Start the service with these settings, and return once it is ready. Raises
        `StartError`.
        """
        stdin, stdout = self._supervisor.stdin, self._supervisor.stdout
        assert stdin is not None  # noqa: S101
        assert stdout is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):  # it has ended, perhaps with a report
            stdin.write(f"{json.dumps({**inherited(_INHERITED), **settings})}\n")
            stdin.flush()
        report: dict[str, str] = json.loads(stdout.readline() or "{}")
        if "failed" in report:
            raise StartError(f"The service of the tests does not start. {report['failed']}")
        if not report:
            raise StartError(f"The process that runs the service has ended:\n{tail(self._log)}")
        return ServiceAddresses(**report)

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
        with contextlib.suppress(BrokenPipeError), self._supervisor as process:
            process.terminate()  # closing the pipes is not enough while a forked child holds them
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        # in case the supervisor ended before it began
        shutil.rmtree(self._folder, ignore_errors=True)


class ProviderServer:
    """Serves the newest of the ``attached`` simulators; they run in the event loop of its
    thread.
    """

    def __init__(self) -> None:
        self.url = ""
        self.attached: list[Simulator] = []
        self._running: Future[tuple[asyncio.AbstractEventLoop, httpx2.AsyncClient]] = Future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        simulator = next(reversed(self.attached), None) or Simulator(url=self.url)
        await simulator(scope, receive, send)

    async def run(self) -> None:
        """Provide the simulators' HTTP client until canceled."""
        async with new_http_client(_DELIVERY_SECONDS) as client:
            self._running.set_result((asyncio.get_running_loop(), client))
            await asyncio.Event().wait()

    @property
    def client(self) -> httpx2.AsyncClient:
        return self._running.result()[1]

    def call(self, action: Coroutine[Any, Any, R]) -> R:
        # without the caller's context, which may belong to another kind of event loop
        return (
            Context()
            .run(
                asyncio.run_coroutine_threadsafe,
                action,
                self._running.result()[0],
            )
            .result()
        )


class SessionDatabase:
    """Queries the database at this address; environment variables such as ``PGPORT`` have no
    effect.

    Raises `StartError` if this process cannot reach the database.
    """

    def __init__(self, address: str) -> None:
        self._conninfo = make_conninfo("", **{**_default_parameters(), **conninfo_to_dict(address)})
        try:
            self._connect().close()
        except psycopg.Error as error:
            raise StartError(f"The tests cannot reach their own database: {error}") from None

    def mails(self, tenants: Sequence[str]) -> dict[str, str]:
        """Return the ids of the mails to these tenants' owners, oldest first, with their status and
        error.
        """
        with self._connect() as connection:
            return dict(connection.execute(_MAILS, {"tenants": list(tenants)}).fetchall())

    def expire_key(self, tenant_id: str, key_id: str) -> None:
        with self._connect() as connection:
            connection.execute(_EXPIRE_KEY, (tenant_id, key_id))

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._conninfo, autocommit=True)


def _default_parameters() -> dict[str, str]:
    """Return a value for each parameter that libpq would read from the environment, except the
    service file.
    """
    values = {
        option.keyword.decode(): option.compiled.decode() if option.compiled else None
        for option in Conninfo.get_defaults()
        if option.envvar is not None and option.keyword != b"service"
    }
    neutral = {name: _NEUTRAL.get(name, default) for name, default in values.items()}
    return {name: text for name, text in neutral.items() if text is not None}


class MailFinder:
    """Finds the mails of tenants, for a whole session; the database has which ones there must
    be.
    """

    def __init__(self, inbox: Inbox, database: SessionDatabase) -> None:
        self._inbox = inbox
        self._database = database
        self._notifications: dict[str, str] = {}
        """The notification of each mail, so that each is read once."""

    def of(self, tenants: Sequence[str], *, within: float) -> Sequence[Mail]:
        """Return every mail to these tenants' owners so far, oldest first; raises `MailError` after
        ``within`` seconds.

        The transaction that handles an event also queues its mails, so the list is complete.
        """
        wanted = self._database.mails(tenants).keys()
        if not self._inbox.wait_until(lambda: wanted <= self._arrived().keys(), within):
            raise MailError(self._describe_missing(tenants, within))
        arrived = self._arrived()
        found = (
            self._inbox.mail(mail_id)
            for notification in wanted
            for mail_id in arrived[notification]
        )
        return [mail for mail in found if mail is not None]

    def _arrived(self) -> dict[str, list[str]]:
        """Return the ids of all mails by notification; a mail that was sent twice has two."""
        arrived: dict[str, list[str]] = {}
        for mail_id in reversed(self._inbox.ids()):
            if (
                mail_id not in self._notifications
                and (mail := self._inbox.mail(mail_id)) is not None
            ):
                headers = {name.lower(): text for name, text in mail.headers}
                self._notifications[mail_id] = (
                    headers.get("message-id", "").strip("<>").partition("@")[0]
                )
            arrived.setdefault(self._notifications.get(mail_id, ""), []).append(mail_id)
        return arrived

    def _describe_missing(self, tenants: Sequence[str], within: float) -> str:
        mails, arrived = self._database.mails(tenants), self._arrived()
        missing = [
            f"{mail_id} is {state}" for mail_id, state in mails.items() if mail_id not in arrived
        ]
        return f"{len(missing)} of {len(mails)} mails have not arrived within {within:g} s: {'; '.join(missing)}"


class TokenOptions(TypedDict, total=False):
    """Options of tokens.

    ``scope`` narrows the role (``"projects:read"``). ``expires_in`` is a time or seconds; below -30
    s, the service's tolerance, the token has expired. ``email`` is a verified address. ``claims``
    override others.
    """

    scope: str | None
    expires_in: timedelta | float
    email: str | None
    claims: Mapping[str, Any]


class RunningService:
    """A service that runs as ``tenantry serve``, for a test session; tests use it through
    `SuiteTenantry`.
    """

    def __init__(
        self,
        given: Variables,
        values: Variables,
        process: ServiceProcess,
        companion: Companion,
        provider_server: ProviderServer,
        inbox: Inbox,
        users: list[DemoUser],
    ) -> None:
        """Start the service with ``values``, beside the companion servers."""
        self.given = given
        """The suite's settings."""
        values = Variables(
            {
                **values,
                "OIDC_ISSUER": companion.issuer,
                "SMTP_URL": f"smtp://127.0.0.1:{companion.smtp_port}",
                "PROVIDER_API_BASE": provider_server.url,
            }
        )
        self.base_url, address = process.serve(values)
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        self.values = Variables({**values, "DATABASE_URL": address})
        self.settings: Settings = check_settings(self.values)
        self.database = SessionDatabase(address)
        self.environment = Variables(
            {
                "TENANTRY_BASE_URL": self.base_url,
                **{name: self.values[name] for name in _SHARED if self.values.get(name)},
            }
        )
        """Environment variables for an application under test."""
        self.mails = MailFinder(inbox, self.database)
        self.provider_server = provider_server
        self._process = process
        self._tokens = companion.tokens
        self._users = users
        self._tls = ssl.create_default_context()  # once: slower than a test
        self._http = self.client({})

    def __repr__(self) -> str:
        return f"<RunningService {self.base_url}>"

    @property
    def webhook_secret(self) -> Credential:
        """The secret that signs events."""
        return self._first_of("PROVIDER_WEBHOOK_SECRET")

    @property
    def operator_token(self) -> Credential:
        """The bearer credential of the operator."""
        return self._first_of("OPERATOR_TOKEN")

    def _first_of(self, name: str) -> Credential:
        """Return the first of several secrets."""
        return Credential(self.values[name].split(",")[0].strip())

    @property
    def log_length(self) -> int:
        return self._process.log_length

    def log(self, since: int = 0) -> str:
        """Return its log from this byte on, with masked secrets; empty after the end."""
        return self._process.log(since)

    def client(self, headers: Mapping[str, str]) -> httpx2.Client:
        """Return an HTTP client of the service, which the caller closes."""
        return httpx2.Client(
            base_url=self.base_url,
            headers=headers,
            timeout=_TIMEOUT,
            trust_env=False,
            verify=self._tls,
        )

    def call(self, method: str, path: str, credential: Credential, json: object = None) -> Any:  # noqa: ANN401
        """Return the body of a successful response of the API; raises `RefusedError`."""
        response = self._http.request(
            method,
            f"/api/v1{path}",
            headers=bearer(credential),
            json=json,
        )
        if not response.is_success:
            raise RefusedError(response)
        return response.json() if response.content else None

    def token(
        self, user: str, org_id: str | None, *, role: str | None, **options: Unpack[TokenOptions]
    ) -> Credential:
        """Return an access token, and make its user known to the identity provider."""
        config, email, scope = self.settings.oidc, options.get("email"), options.get("scope")
        assert config is not None  # noqa: S101
        self._users[:] = [other for other in self._users if other.sub != user]
        self._users.append(DemoUser(user, user, email, org_id, role))
        organization = {config.org_claim: org_id, config.role_claim: role}
        lifetime = as_timedelta(options.get("expires_in", _TOKEN_LIFETIME))
        # an expired token was issued an hour before its end
        age = timedelta(0) if lifetime > timedelta(0) else _TOKEN_LIFETIME - lifetime
        issuer = replace(self._tokens, clock=lambda: system_clock() - age)
        claims = {name: text for name, text in organization.items() if text is not None}
        token = issuer.access_token(
            DemoUser(user, user, email),
            scope=DEFAULT_SCOPE if scope is None else scope,
            lifetime=lifetime + age,
            more_claims=claims | dict(options.get("claims", {})),
        )
        return Credential(token)

    def price_of(self, plan: str) -> str | None:
        """Return the plan's price at the provider, if it has one."""
        plans = {each.id: each for each in self.settings.billing.catalog.plans}
        return next(iter(plans[plan].stripe_price_ids), None) if plan in plans else None

    def close(self) -> None:
        self._http.close()


def as_timedelta(seconds: timedelta | float) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)


@contextmanager
def running_service(given: Mapping[str, object]) -> Iterator[RunningService]:
    """Run the service with these settings within the block. Raises `StartError`."""
    __tracebackhide__ = True  # the settings may hold secrets
    chosen = as_variables(given)
    values = complete_settings(chosen)
    check_settings(values)
    folder = Path(tempfile.mkdtemp(prefix="tenantry-"))
    with ExitStack() as stack:
        process = stack.enter_context(closing(ServiceProcess(folder)))
        inbox = Inbox(folder / "inbox", limit=sys.maxsize)
        provider_server = ProviderServer()
        users: list[DemoUser] = []
        companion = Companion(
            folder,
            users=users,
            audience=values["OIDC_AUDIENCE"],
            client_id=values["OIDC_CLIENT_ID"],
            client_secret=Secret(values["OIDC_CLIENT_SECRET"]),
            provider=provider_server,
            inbox=inbox,
        )
        stack.enter_context(companion)
        stack.callback(process.close)  # before the servers that the service calls
        service = RunningService(
            chosen,
            values,
            process,
            companion,
            provider_server,
            inbox,
            users,
        )
        yield stack.enter_context(closing(service))
