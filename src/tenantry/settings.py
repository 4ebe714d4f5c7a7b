"""The settings: one frozen value, read from the environment and a ``.env`` file.

The only module that reads the environment. Every fault is found before anything starts, and one message
names them all.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import psycopg
from dotenv import dotenv_values

from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.plans import Catalog, CatalogError, parse_catalog
from tenantry.gateways.identity.config import OidcConfig
from tenantry.gateways.identity.fetch import is_secure
from tenantry.gateways.mail import SmtpConfig, parse_smtp_url
from tenantry.gateways.provider.api import mode_of_key
from tenantry.kit.secret import Secret

SECRET_LENGTH: Final = 32
WEBHOOK_SECRET_LENGTH: Final = 16
DEMO_FLAG: Final = "TENANTRY_DEMO"
"""Set by `tenantry demo` for its own server processes; not a setting for people."""
DEMO_PEOPLE: Final = "TENANTRY_DEMO_PEOPLE"
"""Set likewise: whom the dashboard's sign-in page offers, as `sub=What to call them`, joined by semicolons."""
DEMO_PAGES: Final = "TENANTRY_DEMO_PAGES"
"""Set likewise: the demo's own pages on other ports, as `What to call it=address`, joined by semicolons."""
PROVIDER_API: Final = "https://api.stripe.com"
_KNOWN_DEFAULTS: Final = ("changeme", "change-me", "change_me", "password", "example", "your-", "your_")
_ANY_SENDER: Final = "anybody@localhost"
_LARGEST_PORT: Final = 65535
_MOST_WORKERS: Final = 64
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")

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
    run_jobs: bool
    log_format: str
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
    smtp: SmtpConfig | None
    session_secret: Secret
    operator_token: Secret | None
    trusted_proxies: tuple[str, ...]
    demo_people: tuple[tuple[str, str], ...]
    demo_pages: tuple[tuple[str, str], ...]

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
        return [*self.webhook_secrets, *self.peppers, *(secret for secret in maybe if secret)]


def read_environment() -> dict[str, str]:
    """The environment over the ``.env`` file of the current folder, if there is one."""
    file = {name: value for name, value in dotenv_values(Path.cwd() / ".env").items() if value is not None}
    return {**file, **os.environ}


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Those of these variables that are set: for a process that is to have no other."""
    return {name: os.environ[name] for name in names if name in os.environ}


def export_environment(values: Mapping[str, str]) -> None:
    """Hand settings down to the server processes that this one starts."""
    os.environ.update(values)


def load(values: Mapping[str, str]) -> Settings:
    """Read the settings. Raises `SettingsError`.

    In demo mode secrets may be weak; they may not be missing there either: the demo makes its own.
    """
    demo = values.get(DEMO_FLAG) == "true"
    reader = _Reader(values, demo=demo)
    settings = Settings(
        demo=demo,
        database_url=reader.text("DATABASE_URL"),
        database_pooler_url=reader.pooler_url(),
        database_pool_size=reader.number("DATABASE_POOL_SIZE", 5, least=1, most=1000),
        data_dir=Path(reader.text("TENANTRY_DATA_DIR") or ".tenantry"),
        host=reader.text("HOST") or "127.0.0.1",
        port=reader.number("PORT", 3001, least=0, most=_LARGEST_PORT),
        base_url=reader.origin("BASE_URL", f"http://127.0.0.1:{reader.text('PORT') or 3001}"),
        workers=reader.number("WORKERS", 1, least=1, most=_MOST_WORKERS),
        run_jobs=reader.flag("RUN_JOBS", default=True),
        log_format=reader.choice("LOG_FORMAT", "console", ("console", "json")),
        webhook_secrets=reader.secrets("PROVIDER_WEBHOOK_SECRET", WEBHOOK_SECRET_LENGTH),
        webhook_tolerance=reader.number("PROVIDER_WEBHOOK_TOLERANCE", 300, least=1, most=86_400),
        provider_secret_key=reader.optional_secret("PROVIDER_SECRET_KEY", 1),
        provider_api_base=reader.url("PROVIDER_API_BASE", PROVIDER_API),
        reconcile_hours=reader.number("RECONCILE_HOURS", 24, least=0, most=8760),
        period_news_hours=reader.number("PERIOD_NEWS_HOURS", 24, least=1, most=8760),
        raw_body_days=reader.number("RAW_BODY_DAYS", 90, least=1, most=36_500),
        billing=reader.billing(),
        peppers=reader.secrets("API_KEY_PEPPER", SECRET_LENGTH),
        oidc=reader.oidc(),
        oidc_client_secret=reader.optional_secret("OIDC_CLIENT_SECRET", 1),
        smtp=reader.smtp(),
        session_secret=next(iter(reader.secrets("SESSION_SECRET", SECRET_LENGTH)), Secret("")),
        operator_token=reader.optional_secret("OPERATOR_TOKEN", SECRET_LENGTH),
        trusted_proxies=reader.addresses("TRUSTED_PROXIES"),
        demo_people=_pairs(values.get(DEMO_PEOPLE, "")) if demo else (),
        demo_pages=_pairs(values.get(DEMO_PAGES, "")) if demo else (),
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
    provider_secret_key: Secret | None
    provider_api_base: str
    period_news_hours: int


def load_for_admin(values: Mapping[str, str], *, needs_pepper: bool) -> AdminSettings:
    """Read the few settings that operator commands need. Raises `SettingsError`."""
    reader = _Reader(values, demo=values.get(DEMO_FLAG) == "true")
    settings = AdminSettings(
        database_url=reader.text("DATABASE_URL"),
        data_dir=Path(reader.text("TENANTRY_DATA_DIR") or ".tenantry"),
        billing=reader.billing(),
        peppers=reader.secrets("API_KEY_PEPPER", SECRET_LENGTH) if needs_pepper else (),
        issuer=reader.text("OIDC_ISSUER"),
        provider_secret_key=reader.optional_secret("PROVIDER_SECRET_KEY", 1),
        provider_api_base=reader.url("PROVIDER_API_BASE", PROVIDER_API),
        period_news_hours=reader.number("PERIOD_NEWS_HOURS", 24, least=1, most=8760),
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
        database_url=reader.required("DATABASE_URL"),
        database_pooler_url=reader.pooler_url(),
        database_pool_size=reader.number("DATABASE_POOL_SIZE", 5, least=1, most=1000),
        catalog=reader.catalog(),
        peppers=reader.secrets("API_KEY_PEPPER", SECRET_LENGTH),
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

    def text(self, name: str) -> str | None:
        """The variable's text; None when it is missing or empty."""
        return self._values.get(name, "").strip() or None

    def required(self, name: str) -> str:
        text = self.text(name)
        if text is None:
            self.faults.append(f"{name}: is missing")
        return text or ""

    def pooler_url(self) -> str | None:
        text = self.text("DATABASE_POOLER_URL")
        if text is not None and self.text("DATABASE_URL") is None:
            self.faults.append("DATABASE_POOLER_URL: needs DATABASE_URL too, which leads past the pooler")
        return text

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        if text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most:  # noqa: PLR2004
            return int(text)
        self.faults.append(f"{name}: must be a whole number, {least} to {most}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false", "1", "0"):
            self.faults.append(f"{name}: must be true or false")
        return text.lower() in ("true", "1")

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        text = self.text(name) or default
        if text in choices:
            return text
        self.faults.append(f"{name}: must be one of {', '.join(choices)}")
        return default

    def url(self, name: str, default: str) -> str:
        text = self.text(name) or default
        parts = self._attempt(lambda: urlsplit(text))
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            self.faults.append(f"{name}: must be an http or https address")
        return text.rstrip("/")

    def origin(self, name: str, default: str) -> str:
        """An address of a scheme, a host and maybe a port alone, as browsers write it (RFC 6454 section 6.2)."""
        text = self.text(name)
        if text is None:
            return default
        parts = self._attempt(lambda: urlsplit(text))
        host = parts.hostname if parts else None
        if parts is None or parts.scheme not in _DEFAULT_PORTS or not host:
            self.faults.append(f"{name}: must be an http or https address")
            return default
        port = self._attempt(lambda: parts.port or _DEFAULT_PORTS[parts.scheme])
        faults = {
            "must not hold a user or a password": "@" in parts.netloc,
            "must not have a query or a fragment: no `?`, no `#`": "?" in text or "#" in text,
            "must not have a path: the service is at the root of its host": parts.path not in ("", "/"),
            "has a port that is none": port is None,
            "must name its host in letters of ASCII (`xn--...`), digits, dots and dashes": not _HOST.fullmatch(host),
        }
        self.faults += [f"{name}: {fault}" for fault, is_there in faults.items() if is_there]
        authority = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{authority}" + ("" if port == _DEFAULT_PORTS[parts.scheme] else f":{port}")

    def secrets(self, name: str, shortest: int) -> tuple[Secret, ...]:
        parts = [part.strip() for part in (self.text(name) or "").split(",")]
        if parts == [""]:
            self.faults.append(f"{name}: is missing")
            return ()
        for part in parts:
            self._check_secret(name, part, shortest)
        return tuple(Secret(part) for part in parts)

    def optional_secret(self, name: str, shortest: int) -> Secret | None:
        text = self.text(name)
        if text is None:
            return None
        self._check_secret(name, text, shortest)
        return Secret(text)

    def _check_secret(self, name: str, text: str, shortest: int) -> None:
        if not text:
            self.faults.append(f"{name}: holds an empty secret")
        elif self._demo or shortest == 1:
            return
        elif len(text) < shortest:
            self.faults.append(f"{name}: is shorter than {shortest} characters")
        elif _is_known_default(text):
            self.faults.append(f"{name}: is a well-known default; make a secret of your own (openssl rand -hex 32)")

    def addresses(self, name: str) -> tuple[str, ...]:
        listed = tuple(part.strip() for part in (self.text(name) or "").split(",") if part.strip())
        for address in listed:
            if self._attempt(lambda address=address: ipaddress.ip_network(address, strict=False)) is None:  # type: ignore[misc]
                self.faults.append(f"{name}: {address!r} is not an address or network")
        return listed

    def catalog(self) -> Catalog:
        path = self.text("TENANTRY_PLANS")
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

    def billing(self) -> BillingPolicy:
        return BillingPolicy(
            catalog=self.catalog(),
            subscriptions=SubscriptionRule(self.choice("SUBSCRIPTIONS", "any", ("any", "newest"))),
            checkout_reference_links=self.flag("CHECKOUT_REFERENCE_LINKS", default=False),
            parked_mail_hours=self.number("PARKED_MAIL_HOURS", 72, least=0, most=8760),
            livemode=mode_of_key(Secret(self.text("PROVIDER_SECRET_KEY") or "")),
        )

    def oidc(self) -> OidcConfig | None:
        issuer, audience = self.text("OIDC_ISSUER"), self.text("OIDC_AUDIENCE")
        if issuer is None:
            return None
        if audience is None:
            self.faults.append("OIDC_AUDIENCE: is missing; it is the audience of access tokens for this API")
        allow_http = self.flag("OIDC_ALLOW_HTTP", default=False)
        if not is_secure(issuer, allow_http=allow_http):
            self.faults.append("OIDC_ISSUER: must be https (plain http only on loopback, or with OIDC_ALLOW_HTTP=true)")
        return OidcConfig(
            issuer=issuer,
            audience=audience or "",
            client_id=self.text("OIDC_CLIENT_ID"),
            org_claim=self.text("OIDC_ORG_CLAIM") or "org_id",
            role_claim=self.text("OIDC_ROLE_CLAIM") or "org_role",
            allow_http=allow_http,
        )

    def smtp(self) -> SmtpConfig | None:
        url = self.text("SMTP_URL")
        if url is None:
            return None
        sender = self.text("MAIL_FROM")
        if sender is None:
            self.faults.append("MAIL_FROM: is missing; mail needs a sender where SMTP_URL is set")
        plaintext = self.flag("SMTP_ALLOW_PLAINTEXT", default=False)
        config = None
        for name, address in (("SMTP_URL", _ANY_SENDER), ("MAIL_FROM", sender or _ANY_SENDER)):
            try:
                config = parse_smtp_url(url, address, allow_plaintext=plaintext)
            except ValueError as error:
                self.faults.append(f"{name}: {error}")
                break
        return config

    def _attempt(self, act: Callable[[], Value]) -> Value | None:
        try:
            return act()
        except ValueError:
            return None


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (entry.partition("=") for entry in text.split(";") if entry)
    return tuple((first, second) for first, _, second in pairs)


def _database_password(conninfo: str | None) -> Secret | None:
    try:
        password = psycopg.conninfo.conninfo_to_dict(conninfo or "").get("password")
    except psycopg.ProgrammingError:  # whoever connects will say so
        return None
    return Secret(str(password)) if password else None


def _is_known_default(secret: str) -> bool:
    lowered = secret.lower().removeprefix("whsec_")
    return lowered.startswith(_KNOWN_DEFAULTS) or len(set(lowered)) <= 3  # noqa: PLR2004  # such as "aaaa..."
