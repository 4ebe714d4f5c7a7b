"""Every setting, declared once: its variable, default, bounds and meaning, and how its text is read.

This is the only module that reads the environment and the ``.env`` file. docs/reference/configuration.md is made from
the declarations.
"""

import contextlib
import copy
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar, overload
from urllib.parse import SplitResult, unquote, urlsplit

import psycopg
from dotenv import dotenv_values

from tenantry.common.secret import Secret
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.plans import Catalog, CatalogError, parse_catalog
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.jwks import is_secure
from tenantry.integrations.smtp import SmtpConfig, parse_smtp_url
from tenantry.integrations.stripe.api import mode_of_key

EMBEDDED: Final = "embedded"
"""The `DATABASE_URL` of a PostgreSQL that the command itself starts."""
FILE_SUFFIX: Final = "_FILE"
OTHER_CONNECTIONS: Final = 8
"""Connections of each process beside the pool: five for grouped paths, one for fetched snapshots, two for jobs."""
DEMO_FLAG: Final = "TENANTRY_DEMO"
"""`tenantry demo` sets this for its own server processes, and the three below; they are no settings for users."""
DEMO_PEOPLE: Final = "TENANTRY_DEMO_PEOPLE"
"""The users on the demo's sign-in page, as `sub=Name`, separated by semicolons."""
DEMO_PAGES: Final = "TENANTRY_DEMO_PAGES"
"""The demo's own pages on other ports, as `Label=address`, separated by semicolons."""
DEMO_COMMAND: Final = "TENANTRY_DEMO_COMMAND"
"""The path of the command, for the commands that pages show."""

_KNOWN_DEFAULTS: Final = ("changeme", "change-me", "change_me", "password", "example", "your-", "your_")
_FEWEST_CHARACTERS: Final = 4
"""A secret of fewer different characters, such as "aaaa", counts as a known default."""
_PLACEHOLDER_SENDER: Final = "sender@localhost"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ACCOUNT: Final = re.compile(r"acct_[A-Za-z0-9_]{1,250}")
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LARGEST_SECRET_FILE: Final = 64 * 1024
_HOURS_OF_A_YEAR: Final = 8760
_NOT_AN_ADDRESS: Final = "must be an http or https address"

Value = TypeVar("Value")


class SettingsError(ValueError):
    """The settings are invalid; ``faults`` has one message for each fault, starting with the variable's name."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Setting(Generic[Value]):
    """One setting. As an attribute of `Settings` it reads its variable; ``name``, ``kind`` etc. document it.

    ``parse`` turns the text into a value and raises `ValueError` with one message for each fault. A secret may be in a
    file that the variable ``NAME_FILE`` names.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Value],
        default: Value,
        meaning: str,
        *,
        kind: str = "text",
        default_text: str = "unset",
        bounds: str = "",
        is_secret: bool = False,
        is_required: bool = False,
        parse_in_demo: Callable[[str], Value] | None = None,
    ) -> None:
        self.name = name
        self.parse = parse
        self.parse_in_demo = parse_in_demo
        self.default = default
        self.meaning = meaning
        self.kind = kind
        self.default_text = "required" if is_required else default_text
        self.bounds = bounds
        self.is_secret = is_secret
        self.is_required = is_required
        self.file_name = name + FILE_SUFFIX

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute

    @overload
    def __get__(self, settings: None, owner: type) -> Self: ...
    @overload
    def __get__(self, settings: "Settings", owner: type) -> Value: ...
    def __get__(self, settings: "Settings | None", owner: type) -> Self | Value:
        if settings is None:
            return self
        value = self.read(settings.values, is_demo=settings.demo)
        settings.__dict__[self.attribute] = value  # from now on Python finds the value before this descriptor
        return value

    def read(self, values: Mapping[str, str], *, is_demo: bool) -> Value:
        """Return the value. Raises `SettingsError`."""
        text = self.text(values)
        if text is None:
            if self.is_required:
                raise SettingsError([f"{self.name}: is missing"])
            return self.default
        try:
            return self.parse_in_demo(text) if is_demo and self.parse_in_demo else self.parse(text)
        except ValueError as error:
            raise SettingsError([f"{self.name}: {fault}" for fault in error.args]) from None

    def text(self, values: Mapping[str, str]) -> str | None:
        """The text of the variable or of its file; None if it is missing or empty. Raises `SettingsError`."""
        text = values.get(self.name, "").strip() or None
        path = self.file(values)
        if path is None:
            return text
        if text is not None:
            raise SettingsError([f"{self.file_name}: {self.name} is set too: remove one of them"])
        try:
            return _secret_in(path)
        except ValueError as error:
            raise SettingsError([f"{self.file_name}: {error}"]) from error

    def file(self, values: Mapping[str, str]) -> str | None:
        """The path of the file that holds the secret, if a variable names one."""
        return (values.get(self.file_name, "").strip() or None) if self.is_secret else None


def _as_text(text: str) -> str | None:
    return text


def _optional(
    name: str, meaning: str, *, default_text: str = "unset", bounds: str = "", is_secret: bool = False
) -> Setting[str | None]:
    return Setting(name, _as_text, None, meaning, default_text=default_text, bounds=bounds, is_secret=is_secret)


def _word(name: str, default: str, meaning: str, *, bounds: str = "") -> Setting[str]:
    return Setting(name, str, default, meaning, default_text=f"`{default}`", bounds=bounds)


def _number(name: str, default: int, bounds: tuple[int, int], meaning: str) -> Setting[int]:
    least, most = bounds

    def parse(text: str) -> int:
        if _WHOLE_NUMBER.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"must be a whole number, {least} to {most}")

    return Setting(name, parse, default, meaning, kind="number", default_text=f"{default}", bounds=f"{least} to {most}")


def _flag(name: str, meaning: str, *, default: bool = False) -> Setting[bool]:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError("must be true or false")
        return text.lower() in ("true", "1")

    return Setting(
        name, parse, default, meaning, kind="flag", default_text=str(default).lower(), bounds="true, false, 1, 0"
    )


def _choice(name: str, choices: tuple[str, ...], meaning: str) -> Setting[str]:
    """A setting with a few values; the first of them is the default."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    bounds = ", ".join(f"`{choice}`" for choice in choices)
    return Setting(name, parse, choices[0], meaning, kind="choice", default_text=f"`{choices[0]}`", bounds=bounds)


def _list(name: str, check: Callable[[str], None], meaning: str, *, bounds: str) -> Setting[tuple[str, ...]]:
    """A list separated by commas; ``check`` raises `ValueError` for an invalid entry."""

    def parse(text: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        faults = []
        for part in parts:
            try:
                check(part)
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError(*faults)
        return parts

    return Setting(name, parse, (), meaning, default_text="none", bounds=bounds)


def _secrets(name: str, shortest: int, meaning: str) -> Setting[tuple[Secret, ...]]:
    """Secrets separated by commas; at least one is required."""
    return Setting(
        name,
        partial(_parse_secrets, shortest=shortest),
        (),
        meaning,
        kind="secrets",
        bounds=f"each at least {shortest} characters",
        is_secret=True,
        is_required=True,
        parse_in_demo=partial(_parse_secrets, shortest=1),
    )


def _parse_secrets(text: str, *, shortest: int) -> tuple[Secret, ...]:
    parts = [part.strip() for part in text.split(",")]
    faults = [fault for part in parts if (fault := _fault_of_secret(part, shortest))]
    if faults:
        raise ValueError(*faults)
    return tuple(map(Secret, parts))


def _secret(name: str, shortest: int, meaning: str) -> Setting[Secret | None]:
    """A secret of at least ``shortest`` characters. 1: a third party issues it, and it is not checked."""
    return Setting(
        name,
        partial(_parse_secret, shortest=shortest),
        None,
        meaning,
        kind="secret",
        bounds=f"at least {shortest} characters" if shortest > 1 else "",
        is_secret=True,
        parse_in_demo=partial(_parse_secret, shortest=1),
    )


def _parse_secret(text: str, *, shortest: int) -> Secret:
    fault = _fault_of_secret(text, shortest)
    if fault:
        raise ValueError(fault)
    return Secret(text)


def _fault_of_secret(text: str, shortest: int) -> str | None:
    if not text:
        return "holds an empty secret"
    if len(text) < shortest:
        return f"is shorter than {shortest} characters"
    lowered = text.lower().removeprefix("whsec_")
    if shortest > 1 and (lowered.startswith(_KNOWN_DEFAULTS) or len(set(lowered)) < _FEWEST_CHARACTERS):
        return "is a well-known default; make a new secret (openssl rand -hex 32)"
    return None


def _url(text: str) -> str:
    _split(text)
    return text.rstrip("/")


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(_NOT_AN_ADDRESS) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(_NOT_AN_ADDRESS)
    return parts


def _origin(text: str) -> str:
    """The scheme, host and port of an address, as browsers write them (RFC 6454 section 6.2)."""
    parts = _split(text)
    host = parts.hostname or ""
    port = None
    with contextlib.suppress(ValueError):
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    faults = {
        "must not contain a user or password": "@" in parts.netloc,
        "must not have a query or a fragment: no `?`, no `#`": "?" in text or "#" in text,
        "must not have a path: the service is at the root of its host": parts.path not in ("", "/"),
        "has an invalid port": port is None,
        "must name its host in ASCII letters (`xn--...`), digits, dots and hyphens": not _HOST.fullmatch(host),
    }
    if any(faults.values()):
        raise ValueError(*(fault for fault, applies in faults.items() if applies))
    authority = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{authority}" + ("" if port == _DEFAULT_PORTS[parts.scheme] else f":{port}")


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not an address or network") from None


def _check_account(text: str) -> None:
    if _ACCOUNT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not an account id (acct_...)")


class Settings:
    """The settings of a deployment. An attribute reads and checks its variable when it is first used.

    The ``load`` functions check all that a process needs before anything starts.
    """

    # Required

    webhook_secrets = _secrets(
        "PROVIDER_WEBHOOK_SECRET",
        16,
        "The signing secret of the provider's webhook endpoint, `whsec_...`. Several, separated by commas, during a "
        "rotation: any of them may match.",
    )
    peppers = _secrets(
        "API_KEY_PEPPER",
        32,
        "The key that API keys are hashed with. Several, separated by commas, during a rotation: the service writes "
        "with the first and reads with all. Keep a copy: if it is lost, every API key is invalid.",
    )
    session_secret = Setting(
        "SESSION_SECRET",
        partial(_parse_secret, shortest=32),
        Secret(""),
        "The key that dashboard sessions are signed and encrypted with. A new one ends all sessions and changes "
        "nothing else.",
        kind="secret",
        bounds="at least 32 characters",
        is_secret=True,
        is_required=True,
        parse_in_demo=partial(_parse_secret, shortest=1),
    )

    # Database

    database_url = Setting(
        "DATABASE_URL",
        lambda text: None if text == EMBEDDED else text,
        None,
        "A PostgreSQL, 15 or newer: `postgresql://user:password@host:port/name`, or a `key=value` connection string. "
        "`embedded`: a PostgreSQL under `TENANTRY_DATA_DIR` that the command starts, for development. Only "
        "`tenantry demo` works without it.",
        default_text="required",
        is_secret=True,
    )
    _pooler_url = _optional(
        "DATABASE_POOLER_URL",
        "The same database through a connection pooler in transaction mode, for ordinary work; `DATABASE_URL` must "
        "bypass the pooler.",
        default_text="unset: no pooler",
        bounds="needs `DATABASE_URL`",
        is_secret=True,
    )
    database_pool_size = _number(
        "DATABASE_POOL_SIZE",
        5,
        (1, 1000),
        "Connections of each process for ordinary work. Each process uses up to eight more: five for grouped paths, "
        "one for snapshots fetched from the provider, two for the job queue.",
    )
    data_dir = Setting(
        "TENANTRY_DATA_DIR",
        Path,
        Path(".tenantry"),
        "The folder of the embedded database and of the demo.",
        default_text="`.tenantry`",
    )

    # Server

    host = _word("HOST", "127.0.0.1", "The address to listen on.", bounds="the demo: loopback only")
    port = _number("PORT", 3001, (0, 65535), "The port to listen on; 0 chooses a free one.")
    _base_url = Setting[str | None](
        "BASE_URL",
        _origin,
        None,
        "The address at which users and the provider reach the service. The identity provider, checkout and portal "
        "send users back to it. With https, browsers send cookies over https alone. Capital letters and the scheme's "
        "default port make no difference. A path prefix is not supported.",
        kind="address",
        default_text="`http://127.0.0.1:PORT`",
        bounds="http or https, a host, maybe a port",
    )
    workers = _number("WORKERS", 1, (1, 64), "Server processes.")
    drain_seconds = _number(
        "DRAIN_SECONDS",
        5,
        (0, 3600),
        "How long a service that received SIGTERM still accepts connections, while `/readyz` answers 503: as long as "
        "a load balancer needs to notice; in the demo 0. See [stopping.md](../stopping.md).",
    )
    max_connections = _number(
        "MAX_CONNECTIONS",
        8192,
        (64, 1_000_000),
        "Connections that each server process keeps open, or 256 fewer than the files that it may open if that is "
        "less. At the limit, the connection that has been idle longest closes. All limits: [limits.md](../limits.md).",
    )
    run_jobs = _flag(
        "RUN_JOBS", "Whether server processes also run the background jobs (`serve --jobs`, `--no-jobs`).", default=True
    )
    trusted_proxies = _list(
        "TRUSTED_PROXIES",
        _check_network,
        "Addresses or networks, separated by commas, whose `X-Forwarded-For` and `X-Forwarded-Proto` the service "
        "trusts.",
        bounds="IP addresses, networks",
    )
    log_format = _choice("LOG_FORMAT", ("console", "json"), "Log lines on stderr, for people or for machines.")
    log_requests = _flag("LOG_REQUESTS", "Log a line for each request ([operations.md](../operations.md#logs)).")
    operator_token = _secret(
        "OPERATOR_TOKEN",
        32,
        "The bearer token of your own backend, for `PUT`, `DELETE` and export of tenants. Unset: these answer 401.",
    )

    # Payment provider

    webhook_tolerance = _number(
        "PROVIDER_WEBHOOK_TOLERANCE",
        300,
        (1, 86_400),
        "The maximum age of a signature in seconds, and how far in the future it may be.",
    )
    provider_secret_key = _secret(
        "PROVIDER_SECRET_KEY",
        1,
        "The key of the provider's API: for checkout and portal sessions, for resolving ambiguous events, and for "
        "reconciling tenants with the provider. Its prefix names its mode (`sk_live_`, `sk_test_`, `rk_live_`, "
        "`rk_test_`): events of the other mode are handled and counted as unexpected, unless `PROVIDER_LIVEMODE` is "
        "set. Unset: sessions answer 501, tenantry never calls the provider, and everything else works.",
    )
    provider_api_base = Setting(
        "PROVIDER_API_BASE",
        _url,
        "https://api.stripe.com",
        "The address of the provider's API.",
        kind="address",
        default_text="`https://api.stripe.com`",
        bounds="http or https",
    )
    _accounts = _list(
        "PROVIDER_ACCOUNTS",
        _check_account,
        "The connected accounts (Stripe Connect), separated by commas, whose events count like the platform's. Events "
        "of other connected accounts are ignored.",
        bounds="`acct_...` ids",
    )
    _livemode = _choice(
        "PROVIDER_LIVEMODE",
        ("any", "live", "test"),
        "Which mode's events count. `live` or `test`: events of the other mode are ignored; an event without a mode "
        "counts. `any`: the mode is recorded and counted, and filters nothing.",
    )
    _plans = _optional("TENANTRY_PLANS", "The path of the plan catalog.", default_text="the packaged catalog")
    _subscriptions = _choice(
        "SUBSCRIPTIONS",
        ("any", "newest"),
        "Which of a tenant's subscriptions count. `any`: every event counts, whichever subscription it is about. "
        "`newest`: the end of an older subscription changes nothing while a newer one is active.",
    )
    _checkout_reference_links = _flag(
        "CHECKOUT_REFERENCE_LINKS",
        "Whether a checkout session's `client_reference_id` may name the tenant if its metadata does not. A buyer can "
        "set it on a payment link.",
    )
    _parked_mail_hours = _number(
        "PARKED_MAIL_HOURS",
        72,
        (0, _HOURS_OF_A_YEAR),
        "A failed payment that was parked until its tenant became known still mails the owner if it is no older than "
        "this.",
    )
    reconcile_hours = _number(
        "RECONCILE_HOURS",
        24,
        (0, _HOURS_OF_A_YEAR),
        "How often tenantry compares each linked tenant with the provider and repairs drift. 0: never. Needs "
        "`PROVIDER_SECRET_KEY`.",
    )
    period_news_hours = _number(
        "PERIOD_NEWS_HOURS",
        24,
        (1, _HOURS_OF_A_YEAR),
        "How long after the end of its paid period a tenant may have no event before it is reported as stale: an "
        "event was lost, or the endpoint does not receive events.",
    )
    raw_body_days = _number(
        "RAW_BODY_DAYS",
        90,
        (1, 36_500),
        "How many days the raw bodies of events are kept. Folding, replay and explain use the ledger, which is kept "
        "permanently.",
    )

    # Identity provider

    issuer = _optional(
        "OIDC_ISSUER", "The issuer, exactly as tokens name it in `iss`.", bounds="https; http on loopback"
    )
    _audience = _optional("OIDC_AUDIENCE", "The audience of access tokens for this API; required with `OIDC_ISSUER`.")
    _client_id = _optional(
        "OIDC_CLIENT_ID",
        "The client that users sign in to the dashboard with. Unset: the dashboard has no sign-in. The API rejects a "
        "token whose only audience is this client: it is an ID token.",
        bounds="differs from `OIDC_AUDIENCE`",
    )
    oidc_client_secret = _secret(
        "OIDC_CLIENT_SECRET", 1, "That client's secret. Unset: a public client, with PKCE alone."
    )
    _org_claim = _word("OIDC_ORG_CLAIM", "org_id", "The claim that names the tenant; dots reach into objects.")
    _role_claim = _word("OIDC_ROLE_CLAIM", "org_role", "The claim that names the role: `owner`, `admin`, `member`.")
    email_subjects = _flag(
        "OIDC_EMAIL_SUBJECTS",
        "Whether the provider's user ids (`sub`) may be email addresses, as in Okta's access tokens. By default an "
        "address is rejected as a user id: it is almost always a mistake.",
    )
    _allow_http = _flag(
        "OIDC_ALLOW_HTTP",
        "Accept a plain-http issuer that is not on loopback. An attacker on the network can then forge its keys.",
    )
    tenants_per_user = _number(
        "TENANTS_PER_USER",
        20,
        (0, 1_000_000),
        "How many tenants one user may create; deleted ones do not count. 0: users create none. The operator may "
        "create any number.",
    )

    # Mail

    _smtp_url = _optional(
        "SMTP_URL",
        "`smtp://user:password@host:port` (port 587 by default, STARTTLS) or `smtps://...` (port 465, TLS from the "
        "start). User and password are percent-encoded and optional together.",
        is_secret=True,
    )
    _mail_from = _optional(
        "MAIL_FROM",
        "The sender, `billing@example.com` or `Name <billing@example.com>`; required with `SMTP_URL`.",
        bounds="one ASCII address",
    )
    _allow_plaintext_smtp = _flag(
        "SMTP_ALLOW_PLAINTEXT", "Send mail, and the password, to a server without TLS that is not on loopback."
    )

    # Traces

    _otlp_endpoint = _optional(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Where spans are sent to: a collector that accepts OTLP over HTTP.",
        default_text="unset: no traces",
    )
    _otlp_traces_endpoint = _optional("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The same, for traces alone.")
    _otlp_headers = _optional(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "Headers that spans are sent with; their values are kept out of logs like secrets.",
        bounds="`name=value`, separated by commas",
    )
    _otlp_traces_headers = _optional(
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "The same, for traces alone.", bounds="`name=value`, separated by commas"
    )
    _traces_exporter = _optional(
        "OTEL_TRACES_EXPORTER",
        "`otlp` sends spans even without an endpoint (to `http://localhost:4318`), `none` never does. Unset: spans "
        "are sent if there is an endpoint.",
        bounds="`otlp`, `none`",
    )
    _telemetry_disabled = _flag("OTEL_SDK_DISABLED", "`true` sends no spans.")

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.demo = values.get(DEMO_FLAG) == "true"

    def replace(self, **values: object) -> Self:
        """Return a copy with other values of these attributes."""
        changed = copy.copy(self)
        changed.__dict__.update(values)
        return changed

    def check(self, names: Iterable[str]) -> Self:
        """Read these attributes. Raises `SettingsError` with every fault."""
        faults: list[str] = []
        for name in names:
            try:
                getattr(self, name)
            except SettingsError as error:
                faults += [fault for fault in error.faults if fault not in faults]
        if faults:
            raise SettingsError(faults)
        return self

    @cached_property
    def base_url(self) -> str:
        """The address of the service, without a slash at the end."""
        return self._base_url or f"http://127.0.0.1:{self.port}"

    @cached_property
    def own_database(self) -> str | None:
        """The connection string of the service's database; None for the embedded one, the default of the demo alone."""
        setting = Settings.database_url
        if setting.text(self.values) is None and not self.demo:
            expected = "the address of a PostgreSQL, or `embedded` for one that this command starts"
            raise SettingsError([f"{setting.name}: is missing: {expected}"])
        return self.database_url

    @cached_property
    def shared_database(self) -> str:
        """The connection string of a database that another process runs."""
        setting = Settings.database_url
        if self.database_url is None:
            is_missing = setting.text(self.values) is None
            fault = "is missing" if is_missing else "must be the address of the service's database, not `embedded`"
            raise SettingsError([f"{setting.name}: {fault}"])
        return self.database_url

    @cached_property
    def database_pooler_url(self) -> str | None:
        """The connection string of the pooler."""
        if self._pooler_url is not None and self.database_url is None:
            raise SettingsError(["DATABASE_POOLER_URL: needs DATABASE_URL too, which bypasses the pooler"])
        return self._pooler_url

    @cached_property
    def catalog(self) -> Catalog:
        """The plan catalog in the file that a setting names, or the one that the package contains."""
        path = self._plans
        try:
            file = resources.files("tenantry").joinpath("plans.toml") if path is None else Path(path)
            return parse_catalog(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError([f"TENANTRY_PLANS: {path} cannot be read: {error}"]) from error
        except CatalogError as error:
            raise SettingsError([f"TENANTRY_PLANS: {fault}" for fault in error.faults]) from error

    @cached_property
    def billing(self) -> BillingPolicy:
        """The rules that the fold of events follows."""
        chosen = {"live": True, "test": False}.get(self._livemode)
        return BillingPolicy(
            catalog=self.catalog,
            subscriptions=SubscriptionRule(self._subscriptions),
            checkout_reference_links=self._checkout_reference_links,
            parked_mail_hours=self._parked_mail_hours,
            livemode=mode_of_key(self.provider_secret_key or Secret("")) if chosen is None else chosen,
            ignores_other_mode=chosen is not None,
            accounts=frozenset(self._accounts),
        )

    @cached_property
    def oidc(self) -> OidcConfig | None:
        """The trusted identity provider, if there is one."""
        if self.issuer is None:
            return None
        faults = []
        if self._audience is None:
            faults.append("OIDC_AUDIENCE: is missing; it is the audience of access tokens for this API")
        if not is_secure(self.issuer, allow_http=self._allow_http):
            faults.append("OIDC_ISSUER: must be https (plain http only on loopback, or with OIDC_ALLOW_HTTP=true)")
        if faults:
            raise SettingsError(faults)
        return OidcConfig(
            issuer=self.issuer,
            audience=self._audience or "",
            client_id=self._client_id,
            org_claim=self._org_claim,
            role_claim=self._role_claim,
            allow_http=self._allow_http,
        )

    @cached_property
    def smtp(self) -> SmtpConfig | None:
        """The mail server and the sender, if there is one."""
        if self._smtp_url is None:
            return None
        read = partial(parse_smtp_url, self._smtp_url, allow_plaintext=self._allow_plaintext_smtp)
        try:
            read(_PLACEHOLDER_SENDER)
        except ValueError as error:
            raise SettingsError([f"SMTP_URL: {error}"]) from error
        if self._mail_from is None:
            raise SettingsError(["MAIL_FROM: is missing; mail needs a sender where SMTP_URL is set"])
        try:
            return read(self._mail_from)
        except ValueError as error:
            raise SettingsError([f"MAIL_FROM: {error}"]) from error

    @cached_property
    def traces(self) -> bool:
        """Whether OpenTelemetry's variables ask for traces."""
        if self._telemetry_disabled:
            return False
        if self._traces_exporter is None:
            return bool(self._otlp_endpoint or self._otlp_traces_endpoint)
        if self._traces_exporter not in ("otlp", "none"):
            raise SettingsError(["OTEL_TRACES_EXPORTER: must be one of otlp, none"])
        return self._traces_exporter == "otlp"

    @property
    def demo_people(self) -> tuple[tuple[str, str], ...]:
        """The users that the demo's sign-in page offers: subject and name."""
        return _pairs(self.values.get(DEMO_PEOPLE, "")) if self.demo else ()

    @property
    def demo_pages(self) -> tuple[tuple[str, str], ...]:
        """The demo's own pages: label and address."""
        return _pairs(self.values.get(DEMO_PAGES, "")) if self.demo else ()

    @property
    def command(self) -> str:
        """The command, as pages show it."""
        return self.values.get(DEMO_COMMAND, "tenantry") if self.demo else "tenantry"

    @property
    def connections(self) -> int:
        """How many connections to PostgreSQL itself all processes of ``serve`` may open together."""
        ordinary = 0 if self.database_pooler_url else self.database_pool_size
        return self.workers * (ordinary + OTHER_CONNECTIONS)

    def named_secrets(self) -> list[tuple[str, Secret]]:
        """The secrets that grant access, each with its variable."""
        named = (Settings.webhook_secrets, Settings.peppers, Settings.session_secret, Settings.operator_token,
                 Settings.oidc_client_secret, Settings.provider_secret_key)  # fmt: skip
        held = [(setting.name, getattr(self, setting.attribute)) for setting in named]
        flat = [(name, each) for name, value in held for each in (value if isinstance(value, tuple) else (value,))]
        return [(name, secret) for name, secret in flat if secret]

    def secrets(self) -> list[Secret]:
        """Every secret, so that logs can hide it."""
        passwords = [self.smtp and self.smtp.password, *map(_database_password, (self.database_url, self._pooler_url))]
        headers = f"{self._otlp_traces_headers or ''},{self._otlp_headers or ''}".split(",")
        credentials = [unquote(pair.partition("=")[2].strip()) for pair in headers]
        words = [word for text in credentials for word in (text, text.rpartition(" ")[2])]
        others = [Secret(word) for word in dict.fromkeys(words)]
        return [secret for secret in (*(each for _, each in self.named_secrets()), *passwords, *others) if secret]


_COMPOSED: Final = ("catalog", "billing", "oidc", "smtp", "traces", "base_url", "database_pooler_url")
_BILLING: Final = ("catalog", "_accounts", "_livemode", "_subscriptions", "_checkout_reference_links",
                   "_parked_mail_hours", "provider_secret_key", "provider_api_base", "period_news_hours")  # fmt: skip
SETTINGS: Final[dict[str, Setting[Any]]] = {
    attribute: setting for attribute, setting in vars(Settings).items() if isinstance(setting, Setting)
}
"""Every setting, in the order of the reference."""
SECRETS: Final = tuple(setting for setting in SETTINGS.values() if setting.is_secret)


def read_environment() -> dict[str, str]:
    """The environment over the ``.env`` file of the current folder, if there is one.

    Secrets in files that ``NAME_FILE`` variables name are read and returned under their own names. A file that cannot
    be read, or a secret that is given in both ways, stays as it is: `load` reports it.
    """
    file = {name: value for name, value in dotenv_values(Path.cwd() / ".env").items() if value is not None}
    for secret in SECRETS:  # either form in the environment goes before either form in the file
        if secret.name in os.environ or secret.file_name in os.environ:
            file.pop(secret.name, None)
            file.pop(secret.file_name, None)
    values = {**file, **os.environ}
    for secret in SECRETS:
        path = secret.file(values)
        if path is not None and not values.get(secret.name, "").strip():
            with contextlib.suppress(ValueError):
                values[secret.name] = _secret_in(path)
                del values[secret.file_name]
    return values


def load(values: Mapping[str, str]) -> Settings:
    """Read and check every setting. Raises `SettingsError`.

    The demo accepts weak secrets, but none may be missing.
    """
    return Settings(values).check(("own_database", *SETTINGS, *_COMPOSED))


def load_database_url(values: Mapping[str, str]) -> str | None:
    """Read the address of the database alone; None for the embedded one. Raises `SettingsError`."""
    return Settings(values).check(["own_database"]).database_url


def load_for_admin(values: Mapping[str, str], *, needs_pepper: bool) -> Settings:
    """Read and check the settings of the operator commands that use the database. Raises `SettingsError`."""
    needed = ("database_url", "data_dir", *_BILLING, "billing", "issuer", "email_subjects")
    return Settings(values).check([*needed, "peppers"] if needs_pepper else needed)


def load_for_authentication(values: Mapping[str, str]) -> Settings:
    """Read and check the settings of an application that authenticates in its process. Raises `SettingsError`."""
    needed = ("shared_database", "database_pooler_url", "database_pool_size", "catalog", "peppers", "oidc")
    return Settings(values).check(needed)


def load_identity(values: Mapping[str, str]) -> OidcConfig | None:
    """Read the trusted identity provider alone, if there is one. Raises `SettingsError`."""
    return Settings(values).check(["oidc"]).oidc


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Return those of these variables that are set, for a child process that inherits no others."""
    return {name: os.environ[name] for name in names if name in os.environ}


def export_telemetry(values: Mapping[str, str]) -> None:
    """Export OpenTelemetry's variables from the ``.env`` file: its packages read the environment themselves."""
    export_environment({name: value for name, value in values.items() if name.startswith("OTEL_")})


def export_environment(values: Mapping[str, str]) -> None:
    """Export settings to the server processes that this one starts, with the secrets that were read from files."""
    os.environ.update(values)
    for secret in SECRETS:
        if secret.name in values:
            os.environ.pop(secret.file_name, None)


def _secret_in(path: str) -> str:
    """Return the text of a secret's file, without surrounding white space. Raises `ValueError`."""
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
        raise ValueError(f"{path} is not UTF-8 text") from error
    if not text or "\0" in text:
        raise ValueError(f"{path} {'contains a NUL' if text else 'is empty'}")
    return text


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (entry.partition("=") for entry in text.split(";") if entry)
    return tuple((first, second) for first, _, second in pairs)


def _database_password(conninfo: str | None) -> Secret | None:
    try:
        password = psycopg.conninfo.conninfo_to_dict(conninfo or "").get("password")
    except (psycopg.ProgrammingError, UnicodeDecodeError):  # connecting reports it
        return None
    return Secret(str(password)) if password else None
