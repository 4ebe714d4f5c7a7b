"""The settings: one frozen value, read from the environment and a ``.env`` file, by the table in `variables.py`.

The only module that reads the environment. Every fault is found before anything starts, and one message
names them all.
"""

import contextlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import psycopg
from dotenv import dotenv_values

from tenantry import variables
from tenantry.common.secret import Secret
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.plans import Catalog, CatalogError, parse_catalog
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.jwks import is_secure
from tenantry.integrations.smtp import SmtpConfig, parse_smtp_url
from tenantry.integrations.stripe.api import mode_of_key
from tenantry.variables import Address, Choice, Flag, Number, SecretText, Variable, Word

OTHER_CONNECTIONS: Final = 8
"""Of each process, beside those for ordinary work: five lanes, one for what is fetched, two of the job queue."""
DEMO_FLAG: Final = "TENANTRY_DEMO"
"""Set by `tenantry demo` for its own server processes; not a setting for people."""
DEMO_PEOPLE: Final = "TENANTRY_DEMO_PEOPLE"
"""Set likewise: whom the dashboard's sign-in page offers, as `sub=What to call them`, joined by semicolons."""
DEMO_PAGES: Final = "TENANTRY_DEMO_PAGES"
"""Set likewise: the demo's own pages on other ports, as `What to call it=address`, joined by semicolons."""
DEMO_COMMAND: Final = "TENANTRY_DEMO_COMMAND"
"""Set likewise: what people type to run this command, for the commands on pages."""
_KNOWN_DEFAULTS: Final = ("changeme", "change-me", "change_me", "password", "example", "your-", "your_")
_COMMAND: Final = "tenantry"
_ANY_SENDER: Final = "anybody@localhost"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ACCOUNT: Final = re.compile(r"acct_[A-Za-z0-9_]{1,250}")
_MODES: Final = {"live": True, "test": False, "any": None}
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_LARGEST_SECRET_FILE: Final = 64 * 1024

_OTLP: Final = "otlp"
_OTLP_ENDPOINTS: Final = (variables.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, variables.OTEL_EXPORTER_OTLP_ENDPOINT)
_OTLP_HEADERS: Final = (variables.OTEL_EXPORTER_OTLP_TRACES_HEADERS, variables.OTEL_EXPORTER_OTLP_HEADERS)
_OTEL: Final = "OTEL_"

Value = TypeVar("Value")


class SettingsError(ValueError):
    """The settings are faulty; ``faults`` has one message for each, starting with the variable's name."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a deployment decides."""

    demo: bool
    database_url: str | None
    database_pooler_url: str | None
    database_pool_size: int
    data_dir: Path
    host: str
    port: int
    base_url: str
    workers: int
    drain_seconds: int
    max_connections: int
    run_jobs: bool
    log_format: str
    log_requests: bool
    traces: bool
    otel_secrets: tuple[Secret, ...]
    webhook_secrets: tuple[Secret, ...]
    webhook_tolerance: int
    provider_secret_key: Secret | None
    provider_api_base: str
    reconcile_hours: int
    period_news_hours: int
    raw_body_days: int
    billing: BillingPolicy
    peppers: tuple[Secret, ...]
    oidc: OidcConfig | None
    oidc_client_secret: Secret | None
    email_subjects: bool
    tenants_per_user: int
    smtp: SmtpConfig | None
    session_secret: Secret
    operator_token: Secret | None
    trusted_proxies: tuple[str, ...]
    demo_people: tuple[tuple[str, str], ...]
    demo_pages: tuple[tuple[str, str], ...]
    command: str

    def named_secrets(self) -> list[tuple[str, Secret]]:
        """The secrets that stand for something, each with its variable."""
        maybe = [
            *(("PROVIDER_WEBHOOK_SECRET", secret) for secret in self.webhook_secrets),
            *(("API_KEY_PEPPER", secret) for secret in self.peppers),
            ("SESSION_SECRET", self.session_secret),
            ("OPERATOR_TOKEN", self.operator_token),
            ("OIDC_CLIENT_SECRET", self.oidc_client_secret),
            ("PROVIDER_SECRET_KEY", self.provider_secret_key),
        ]
        return [(name, secret) for name, secret in maybe if secret]

    @property
    def connections(self) -> int:
        """How many connections to PostgreSQL itself all processes of ``serve`` may open together."""
        ordinary = 0 if self.database_pooler_url else self.database_pool_size
        return self.workers * (ordinary + OTHER_CONNECTIONS)

    def secrets(self) -> list[Secret]:
        """Every secret among them, to be kept out of the log."""
        maybe = (
            self.provider_secret_key,
            self.oidc_client_secret,
            self.smtp and self.smtp.password,
            self.session_secret,
            self.operator_token,
            _database_password(self.database_url),
            _database_password(self.database_pooler_url),
        )
        return [*self.webhook_secrets, *self.peppers, *self.otel_secrets, *(secret for secret in maybe if secret)]


def read_environment() -> dict[str, str]:
    """The environment over the ``.env`` file of the current folder, if there is one.

    Secrets that ``NAME_FILE`` variables name files of are read, and stand there under their own names. One that cannot
    be read, or that is given in both ways, stays as it is, for whoever reads the settings to find the fault.
    """
    file = {name: value for name, value in dotenv_values(Path.cwd() / ".env").items() if value is not None}
    for variable in variables.SECRETS:  # however the environment gives one, it goes before the file
        if variable.name in os.environ or variable.file_name in os.environ:
            file.pop(variable.name, None)
            file.pop(variable.file_name, None)
    values = {**file, **os.environ}
    for variable in variables.SECRETS:
        path = _file_of(variable, values)
        if path is not None and not values.get(variable.name, "").strip():
            with contextlib.suppress(ValueError):
                values[variable.name] = _in_file(path)
                del values[variable.file_name]
    return values


def load_database_url(values: Mapping[str, str]) -> str | None:
    """Read where the database is, and nothing else; None where it is the embedded one. Raises `SettingsError`."""
    reader = _Reader(values, demo=values.get(DEMO_FLAG) == "true")
    url = reader.database_url()
    if reader.faults:
        raise SettingsError(reader.faults)
    return url


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Those of these variables that are set: for a process that is to have no other."""
    return {name: os.environ[name] for name in names if name in os.environ}


def export_telemetry(values: Mapping[str, str]) -> None:
    """Let OpenTelemetry's packages, which read the environment themselves, see what is in the ``.env`` file too."""
    export_environment({name: value for name, value in values.items() if name.startswith(_OTEL)})


def export_environment(values: Mapping[str, str]) -> None:
    """Hand settings down to the server processes that this one starts, secrets from files as they were read here."""
    os.environ.update(values)
    for variable in variables.SECRETS:
        if variable.name in values:
            os.environ.pop(variable.file_name, None)


def load(values: Mapping[str, str]) -> Settings:
    """Read the settings. Raises `SettingsError`.

    In demo mode secrets may be weak; they may not be missing there either: the demo makes its own.
    """
    demo = values.get(DEMO_FLAG) == "true"
    reader = _Reader(values, demo=demo)
    settings = Settings(
        demo=demo,
        database_url=reader.database_url(),
        database_pooler_url=reader.pooler_url(),
        database_pool_size=reader.number(variables.DATABASE_POOL_SIZE),
        data_dir=Path(reader.word(variables.TENANTRY_DATA_DIR)),
        host=reader.word(variables.HOST),
        port=reader.number(variables.PORT),
        base_url=reader.origin(variables.BASE_URL),
        workers=reader.number(variables.WORKERS),
        drain_seconds=reader.number(variables.DRAIN_SECONDS),
        max_connections=reader.number(variables.MAX_CONNECTIONS),
        run_jobs=reader.flag(variables.RUN_JOBS),
        log_format=reader.choice(variables.LOG_FORMAT),
        log_requests=reader.flag(variables.LOG_REQUESTS),
        traces=reader.traces(),
        otel_secrets=reader.otel_secrets(),
        webhook_secrets=reader.secrets(variables.PROVIDER_WEBHOOK_SECRET),
        webhook_tolerance=reader.number(variables.PROVIDER_WEBHOOK_TOLERANCE),
        provider_secret_key=reader.optional_secret(variables.PROVIDER_SECRET_KEY),
        provider_api_base=reader.url(variables.PROVIDER_API_BASE),
        reconcile_hours=reader.number(variables.RECONCILE_HOURS),
        period_news_hours=reader.number(variables.PERIOD_NEWS_HOURS),
        raw_body_days=reader.number(variables.RAW_BODY_DAYS),
        billing=reader.billing(),
        peppers=reader.secrets(variables.API_KEY_PEPPER),
        oidc=reader.oidc(),
        oidc_client_secret=reader.optional_secret(variables.OIDC_CLIENT_SECRET),
        email_subjects=reader.flag(variables.OIDC_EMAIL_SUBJECTS),
        tenants_per_user=reader.number(variables.TENANTS_PER_USER),
        smtp=reader.smtp(),
        session_secret=next(iter(reader.secrets(variables.SESSION_SECRET)), Secret("")),
        operator_token=reader.optional_secret(variables.OPERATOR_TOKEN),
        trusted_proxies=reader.addresses(variables.TRUSTED_PROXIES),
        demo_people=_pairs(values.get(DEMO_PEOPLE, "")) if demo else (),
        demo_pages=_pairs(values.get(DEMO_PAGES, "")) if demo else (),
        command=values.get(DEMO_COMMAND, _COMMAND) if demo else _COMMAND,
    )
    if reader.faults:
        raise SettingsError(reader.faults)
    return settings


class AdminSettings(msgspec.Struct, frozen=True):
    """What the commands that work straight on the database need."""

    database_url: str | None
    data_dir: Path
    billing: BillingPolicy
    peppers: tuple[Secret, ...]
    issuer: str | None
    email_subjects: bool
    provider_secret_key: Secret | None
    provider_api_base: str
    period_news_hours: int


def load_for_admin(values: Mapping[str, str], *, needs_pepper: bool) -> AdminSettings:
    """Read the few settings that operator commands need. Raises `SettingsError`."""
    reader = _Reader(values, demo=values.get(DEMO_FLAG) == "true")
    settings = AdminSettings(
        database_url=reader.database_url(is_required=False),
        data_dir=Path(reader.word(variables.TENANTRY_DATA_DIR)),
        billing=reader.billing(),
        peppers=reader.secrets(variables.API_KEY_PEPPER) if needs_pepper else (),
        issuer=reader.text(variables.OIDC_ISSUER),
        email_subjects=reader.flag(variables.OIDC_EMAIL_SUBJECTS),
        provider_secret_key=reader.optional_secret(variables.PROVIDER_SECRET_KEY),
        provider_api_base=reader.url(variables.PROVIDER_API_BASE),
        period_news_hours=reader.number(variables.PERIOD_NEWS_HOURS),
    )
    if reader.faults:
        raise SettingsError(reader.faults)
    return settings


class AuthenticationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to tell who sends a request: for applications that do so in their own process."""

    database_url: str
    database_pooler_url: str | None
    database_pool_size: int
    catalog: Catalog
    peppers: tuple[Secret, ...]
    oidc: OidcConfig | None


def load_for_authentication(values: Mapping[str, str]) -> AuthenticationSettings:
    """Read the few settings that an application beside the service needs. Raises `SettingsError`.

    It has no database of its own: without DATABASE_URL there is nothing to share.
    """
    reader = _Reader(values, demo=values.get(DEMO_FLAG) == "true")
    settings = AuthenticationSettings(
        database_url=reader.shared_database_url(),
        database_pooler_url=reader.pooler_url(),
        database_pool_size=reader.number(variables.DATABASE_POOL_SIZE),
        catalog=reader.catalog(),
        peppers=reader.secrets(variables.API_KEY_PEPPER),
        oidc=reader.oidc(),
    )
    if reader.faults:
        raise SettingsError(reader.faults)
    return settings


def load_identity(values: Mapping[str, str]) -> OidcConfig | None:
    """Read which identity provider is trusted, and nothing else; None where none is. Raises `SettingsError`."""
    reader = _Reader(values, demo=values.get(DEMO_FLAG) == "true")
    config = reader.oidc()
    if reader.faults:
        raise SettingsError(reader.faults)
    return config


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, values: Mapping[str, str], *, demo: bool) -> None:
        self._values = values
        self._demo = demo
        self.faults: list[str] = []

    def text(self, variable: Variable) -> str | None:
        """The variable's text, its own or its file's; None when it is missing or empty."""
        own = self._values.get(variable.name, "").strip() or None
        path = _file_of(variable, self._values)
        if path is None:
            return own
        if own is not None:
            self._fault(variable.file_name, f"{variable.name} is set too: one of them must go")
            return own
        try:
            return _in_file(path)
        except ValueError as error:
            self._fault(variable.file_name, str(error))
        return None

    def word(self, variable: Word) -> str:
        return self.text(variable) or variable.default

    def required(self, variable: Variable) -> str:
        text = self.text(variable)
        if text is None:
            self._missing(variable)
        return text or ""

    def database_url(self, *, is_required: bool = True) -> str | None:
        """The address of the database; None for the embedded one, which only the demo takes without being asked."""
        text = self.text(variables.DATABASE_URL)
        if text is None and is_required and not self._demo and _file_of(variables.DATABASE_URL, self._values) is None:
            wanted = "the address of a PostgreSQL, or `embedded` for one that this command starts"
            self._fault(variables.DATABASE_URL.name, f"is missing: {wanted}")
        return None if text == variables.EMBEDDED else text

    def shared_database_url(self) -> str:
        """The address of a database that another process runs."""
        text = self.required(variables.DATABASE_URL)
        if text == variables.EMBEDDED:
            self._fault(variables.DATABASE_URL.name, "must be the address of the service's database, not `embedded`")
        return text

    def pooler_url(self) -> str | None:
        text = self.text(variables.DATABASE_POOLER_URL)
        if text is not None and self.text(variables.DATABASE_URL) in (None, variables.EMBEDDED):
            self._fault(variables.DATABASE_POOLER_URL.name, "needs DATABASE_URL too, which leads past the pooler")
        return text

    def number(self, variable: Number) -> int:
        text = self.text(variable)
        if text is None:
            return variable.default
        bounds = range(variable.least, variable.most + 1)
        if text.isascii() and text.isdigit() and len(text) < 10 and int(text) in bounds:  # noqa: PLR2004
            return int(text)
        self._fault(variable.name, f"must be a whole number, {variable.bounds_said()}")
        return variable.default

    def flag(self, variable: Flag) -> bool:
        text = self.text(variable)
        if text is None:
            return variable.default
        if text.lower() not in ("true", "false", "1", "0"):
            self._fault(variable.name, "must be true or false")
        return text.lower() in ("true", "1")

    def choice(self, variable: Choice) -> str:
        text = self.text(variable) or variable.default
        if text in variable.choices:
            return text
        self._fault(variable.name, f"must be one of {', '.join(variable.choices)}")
        return variable.default

    def url(self, variable: Address) -> str:
        text = self.text(variable) or variable.default
        parts = self._attempt(lambda: urlsplit(text))
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            self._fault(variable.name, "must be an http or https address")
        return text.rstrip("/")

    def origin(self, variable: Address) -> str:
        """An address of a scheme, a host and maybe a port alone, as browsers write it (RFC 6454 section 6.2)."""
        text = self.text(variable)
        default = variable.default.replace(
            variables.PORT.name, self.text(variables.PORT) or str(variables.PORT.default)
        )
        if text is None:
            return default
        parts = self._attempt(lambda: urlsplit(text))
        host = parts.hostname if parts else None
        if parts is None or parts.scheme not in _DEFAULT_PORTS or not host:
            self._fault(variable.name, "must be an http or https address")
            return default
        port = self._attempt(lambda: parts.port or _DEFAULT_PORTS[parts.scheme])
        faults = {
            "must not hold a user or a password": "@" in parts.netloc,
            "must not have a query or a fragment: no `?`, no `#`": "?" in text or "#" in text,
            "must not have a path: the service is at the root of its host": parts.path not in ("", "/"),
            "has a port that is none": port is None,
            "must name its host in letters of ASCII (`xn--...`), digits, dots and dashes": not _HOST.fullmatch(host),
        }
        for fault, is_there in faults.items():
            if is_there:
                self._fault(variable.name, fault)
        authority = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{authority}" + ("" if port == _DEFAULT_PORTS[parts.scheme] else f":{port}")

    def secrets(self, variable: SecretText) -> tuple[Secret, ...]:
        text = self.text(variable)
        if text is None:
            self._missing(variable)
            return ()
        parts = [part.strip() for part in text.split(",")]
        for part in parts:
            self._check_secret(variable, part)
        return tuple(Secret(part) for part in parts)

    def optional_secret(self, variable: SecretText) -> Secret | None:
        text = self.text(variable)
        if text is None:
            return None
        self._check_secret(variable, text)
        return Secret(text)

    def _check_secret(self, variable: SecretText, text: str) -> None:
        if not text:
            self._fault(variable.name, "holds an empty secret")
        elif self._demo or variable.shortest == 1:
            return
        elif len(text) < variable.shortest:
            self._fault(variable.name, f"is shorter than {variable.shortest} characters")
        elif _is_known_default(text):
            self._fault(variable.name, "is a well-known default; make a secret of your own (openssl rand -hex 32)")

    def addresses(self, variable: Variable) -> tuple[str, ...]:
        listed = tuple(part.strip() for part in (self.text(variable) or "").split(",") if part.strip())
        for address in listed:
            if self._attempt(lambda address=address: ipaddress.ip_network(address, strict=False)) is None:  # type: ignore[misc]
                self._fault(variable.name, f"{address!r} is not an address or network")
        return listed

    def _missing(self, variable: Variable) -> None:
        """Say so, unless the fault is in the file that should hold it."""
        if _file_of(variable, self._values) is None:
            self._fault(variable.name, "is missing")

    def _fault(self, name: str, what: str) -> None:
        fault = f"{name}: {what}"
        if fault not in self.faults:  # some variables matter to several settings
            self.faults.append(fault)

    def catalog(self) -> Catalog:
        path = self.text(variables.TENANTRY_PLANS)
        try:
            if path is None:
                text = resources.files("tenantry").joinpath("plans.toml").read_text("utf-8")
            else:
                text = Path(path).read_text("utf-8")
            return parse_catalog(text)
        except (OSError, UnicodeDecodeError) as error:
            self.faults.append(f"TENANTRY_PLANS: {path} cannot be read: {error}")
        except CatalogError as error:
            self.faults += [f"TENANTRY_PLANS: {fault}" for fault in error.faults]
        return parse_catalog('[[plans]]\nid = "free"\n')

    def accounts(self) -> frozenset[str]:
        """The connected accounts whose events count."""
        text = self.text(variables.PROVIDER_ACCOUNTS) or ""
        listed = frozenset(part.strip() for part in text.split(",") if part.strip())
        for account in sorted(listed):
            if _ACCOUNT.fullmatch(account) is None:
                self._fault(variables.PROVIDER_ACCOUNTS.name, f"{account!r} is not an account id (acct_...)")
        return listed

    def billing(self) -> BillingPolicy:
        mode = _MODES[self.choice(variables.PROVIDER_LIVEMODE)]
        of_key = mode_of_key(Secret(self.text(variables.PROVIDER_SECRET_KEY) or ""))
        return BillingPolicy(
            catalog=self.catalog(),
            subscriptions=SubscriptionRule(self.choice(variables.SUBSCRIPTIONS)),
            checkout_reference_links=self.flag(variables.CHECKOUT_REFERENCE_LINKS),
            parked_mail_hours=self.number(variables.PARKED_MAIL_HOURS),
            livemode=of_key if mode is None else mode,
            ignores_other_mode=mode is not None,
            accounts=self.accounts(),
        )

    def traces(self) -> bool:
        """Whether OpenTelemetry's own variables ask for traces."""
        if self.flag(variables.OTEL_SDK_DISABLED):
            return False
        exporter = self.text(variables.OTEL_TRACES_EXPORTER)
        if exporter is None:
            return any(map(self.text, _OTLP_ENDPOINTS))
        if exporter not in (_OTLP, "none"):
            self._fault(variables.OTEL_TRACES_EXPORTER.name, f"must be one of {_OTLP}, none")
        return exporter == _OTLP

    def otel_secrets(self) -> tuple[Secret, ...]:
        """What the headers hold with which traces are sent: a credential, as a rule."""
        pairs = [pair for name in _OTLP_HEADERS for pair in (self.text(name) or "").split(",")]
        values = [unquote(pair.partition("=")[2].strip()) for pair in pairs]
        words = [word for value in values for word in (value, value.rpartition(" ")[2])]
        return tuple(Secret(word) for word in dict.fromkeys(words) if word)

    def oidc(self) -> OidcConfig | None:
        issuer, audience = self.text(variables.OIDC_ISSUER), self.text(variables.OIDC_AUDIENCE)
        if issuer is None:
            return None
        if audience is None:
            self._fault(variables.OIDC_AUDIENCE.name, "is missing; it is the audience of access tokens for this API")
        allow_http = self.flag(variables.OIDC_ALLOW_HTTP)
        if not is_secure(issuer, allow_http=allow_http):
            self._fault(
                variables.OIDC_ISSUER.name, "must be https (plain http only on loopback, or with OIDC_ALLOW_HTTP=true)"
            )
        return OidcConfig(
            issuer=issuer,
            audience=audience or "",
            client_id=self.text(variables.OIDC_CLIENT_ID),
            org_claim=self.word(variables.OIDC_ORG_CLAIM),
            role_claim=self.word(variables.OIDC_ROLE_CLAIM),
            allow_http=allow_http,
        )

    def smtp(self) -> SmtpConfig | None:
        url = self.text(variables.SMTP_URL)
        if url is None:
            return None
        sender = self.text(variables.MAIL_FROM)
        if sender is None:
            self._fault(variables.MAIL_FROM.name, "is missing; mail needs a sender where SMTP_URL is set")
        plaintext = self.flag(variables.SMTP_ALLOW_PLAINTEXT)
        config = None
        for name, address in (("SMTP_URL", _ANY_SENDER), ("MAIL_FROM", sender or _ANY_SENDER)):
            try:
                config = parse_smtp_url(url, address, allow_plaintext=plaintext)
            except ValueError as error:
                self._fault(name, str(error))
                break
        return config

    def _attempt(self, act: Callable[[], Value]) -> Value | None:
        try:
            return act()
        except ValueError:
            return None


def _file_of(variable: Variable, values: Mapping[str, str]) -> str | None:
    """The path of the file that is to hold a secret, where one is named."""
    return (values.get(variable.file_name, "").strip() or None) if variable.secret else None


def _in_file(path: str) -> str:
    """What a file of one secret holds, without the white space around it. Raises `ValueError`."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_SECRET_FILE + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > _LARGEST_SECRET_FILE:
        raise ValueError(f"{path} is larger than 64 KiB")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text") from error
    if not text or "\0" in text:
        raise ValueError(f"{path} {'holds a NUL' if text else 'is empty'}")
    return text


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (entry.partition("=") for entry in text.split(";") if entry)
    return tuple((first, second) for first, _, second in pairs)


def _database_password(conninfo: str | None) -> Secret | None:
    try:
        password = psycopg.conninfo.conninfo_to_dict(conninfo or "").get("password")
    except (psycopg.ProgrammingError, UnicodeDecodeError):  # whoever connects will say so
        return None
    return Secret(str(password)) if password else None


def _is_known_default(secret: str) -> bool:
    lowered = secret.lower().removeprefix("whsec_")
    return lowered.startswith(_KNOWN_DEFAULTS) or len(set(lowered)) <= 3  # noqa: PLR2004  # such as "aaaa..."
