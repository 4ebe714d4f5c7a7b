"""Every setting, declared once: its variable, how its text is read, its default and its meaning.

This is the only module that reads the environment and the ``.env`` file.
docs/reference/configuration.md is made from the declarations and their docstrings.
"""

import contextlib
import copy
import ipaddress
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, overload
from urllib.parse import SplitResult, unquote, urlsplit

import psycopg
from dotenv import dotenv_values

from tenantry.common.secret import Secret
from tenantry.domain.billing.state import BillingPolicy, SubscriptionRule
from tenantry.domain.issuers import ANY_DIRECTORY, DIRECTORY, Issuers, is_directory_id
from tenantry.domain.owner_mails import OwnerNotice
from tenantry.domain.permissions import Role
from tenantry.domain.plans import Catalog, CatalogError, parse_catalog
from tenantry.integrations.http_client import is_secure
from tenantry.integrations.oidc.claims import (
    DEFAULT_ROLES,
    STANDARD_AUDIENCE,
    TOKEN_LIFETIME,
    OidcConfig,
)
from tenantry.integrations.smtp import SmtpConfig, parse_smtp_url
from tenantry.integrations.stripe.client import mode_of_key
from tenantry.server.cors import ANY_ORIGIN

EMBEDDED: Final = "embedded"
"""The `DATABASE_URL` of a PostgreSQL that the command itself starts."""
FILE_SUFFIX: Final = "_FILE"
OTHER_CONNECTIONS: Final = 8
"""Connections of each process beside the pool: five for grouped paths, one for fetched snapshots,
two for jobs.
"""
DEMO_FLAG: Final = "TENANTRY_DEMO"
"""`tenantry demo` sets this for its own server processes, and the three below; they are no settings
for users.
"""
DEMO_PEOPLE: Final = "TENANTRY_DEMO_PEOPLE"
"""The users on the demo's sign-in page, as `sub=Name`, separated by semicolons."""
DEMO_PAGES: Final = "TENANTRY_DEMO_PAGES"
"""The demo's own pages on other ports, as `Label=address`, separated by semicolons."""
DEMO_COMMAND: Final = "TENANTRY_DEMO_COMMAND"
"""The path of the command, for the commands that pages show."""
REQUIRED: Final[Any] = object()
"""The default of a setting that must be set."""

_KNOWN_DEFAULTS: Final = (
    "changeme",
    "change-me",
    "change_me",
    "password",
    "example",
    "your-",
    "your_",
)
_FEWEST_CHARACTERS: Final = 4
"""A secret of fewer different characters, such as "aaaa", counts as a known default."""
_QUOTES: Final = frozenset("\"'`\u201c\u201d\u2018\u2019\u201e")
_OTHER_THAN_SECRETS: Final = {
    "sk": "a key of the provider's API, which belongs to PROVIDER_SECRET_KEY",
    "rk": "a restricted key of the provider's API, which belongs to PROVIDER_SECRET_KEY",
    "pk": "a publishable key of the provider",
    "we": "the id of an endpoint",
}
"""What people copy instead of a webhook secret, by the prefix."""
_PLACEHOLDER_SENDER: Final = "sender@localhost"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ACCOUNT: Final = re.compile(r"acct_[A-Za-z0-9_]{1,250}")
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_LARGEST_SECRET_FILE: Final = 64 * 1024
_HOURS_OF_A_YEAR: Final = 8760
_DAY: Final = 86_400
_NOT_AN_ADDRESS: Final = "must be an http or https address"

logger = logging.getLogger(__name__)

Value = TypeVar("Value")
Parsed_co = TypeVar("Parsed_co", covariant=True)


class SettingsError(ValueError):
    """The settings are invalid; ``faults`` has one message for each fault, starting with the
    variable's name.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Kind(NamedTuple, Generic[Parsed_co]):
    """How the text of a variable is read. ``parse`` raises `ValueError` with one message for each
    fault.

    A secret may be in a file that the variable ``NAME_FILE`` names.
    """

    name: str
    parse: Callable[[str], Parsed_co]
    bounds: str = ""
    is_secret: bool = False
    parse_in_demo: Callable[[str], Parsed_co] | None = None


def number(least: int, most: int) -> Kind[int]:
    def parse(text: str) -> int:
        if _WHOLE_NUMBER.fullmatch(text) and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"must be a whole number, {least} to {most}")

    return Kind("number", parse, f"{least} to {most}")


def choice(*choices: str) -> Kind[str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return Kind("choice", parse, ", ".join(f"`{choice}`" for choice in choices))


def several(parse: Callable[[str], str], bounds: str) -> Kind[tuple[str, ...]]:
    """Read a list separated by commas; ``parse`` reads an entry."""
    return Kind(
        "text",
        lambda text: _read_each(parse, filter(None, map(str.strip, text.split(",")))),
        bounds,
    )


def secret(shortest: int = 1) -> Kind[Secret]:
    """Read a secret of at least ``shortest`` characters. 1: a third party issues it, and it is not
    checked.
    """
    bounds = f"at least {shortest} characters" if shortest > 1 else ""
    return Kind("secret", partial(_read_secret, shortest=shortest), bounds, True, _read_secret)  # noqa: FBT003


def secrets(
    shortest: int, check: Callable[[str], None] = lambda _: None
) -> Kind[tuple[Secret, ...]]:
    """Read secrets separated by commas, for a rotation. ``check`` raises `ValueError` for one that
    cannot be right.
    """

    def read(text: str, shortest: int) -> Secret:
        check(text)
        return _read_secret(text, shortest)

    def parse(text: str, shortest: int = shortest) -> tuple[Secret, ...]:
        return _read_each(partial(read, shortest=shortest), map(str.strip, text.split(",")))

    return Kind(
        "secrets",
        parse,
        f"each at least {shortest} characters",
        is_secret=True,
        parse_in_demo=partial(parse, shortest=1),
    )


def _read_each(read: Callable[[str], Value], texts: Iterable[str]) -> tuple[Value, ...]:
    values, faults = list[Value](), list[str]()
    for text in texts:
        try:
            values.append(read(text))
        except ValueError as error:
            faults += error.args
    if faults:
        raise ValueError(*faults)
    return tuple(values)


def _read_secret(text: str, shortest: int = 1) -> Secret:
    if not text:
        raise ValueError("holds an empty secret")
    if len(text) < shortest:
        raise ValueError(f"is shorter than {shortest} characters")
    lowered = text.lower().removeprefix("whsec_")
    if shortest > 1 and (
        lowered.startswith(_KNOWN_DEFAULTS) or len(set(lowered)) < _FEWEST_CHARACTERS
    ):
        raise ValueError("is a well-known default; make a new secret (openssl rand -hex 32)")
    return Secret(text)


def _check_webhook_secret(text: str) -> None:
    """Raise `ValueError` for a text that the payment provider issues for another purpose, or that
    was copied badly.
    """
    if text[:1] in _QUOTES or text[-1:] in _QUOTES:
        raise ValueError(
            "has quotes around it: remove them, because not every reader of such a file does"
        )
    if any(character.isspace() for character in text):
        raise ValueError(
            "contains white space: copy the endpoint's signing secret (whsec_...) again"
        )
    prefix = text.partition("_")[0]
    if prefix in _OTHER_THAN_SECRETS:
        what = _OTHER_THAN_SECRETS[prefix]
        raise ValueError(
            f"is {what} ({prefix}_...): copy the signing secret (whsec_...) of the webhook endpoint"
        )


def _read_flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return text.lower() in ("true", "1")


def _read_url(text: str) -> str:
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


def read_conninfo(text: str) -> str:
    """Return an address of PostgreSQL as it is. Raises `ValueError` for what is none."""
    try:
        psycopg.conninfo.conninfo_to_dict(text)
    except (psycopg.ProgrammingError, UnicodeDecodeError):
        # libpq's message quotes the text, and so the password
        raise ValueError(
            "must be an address of PostgreSQL (postgresql://...), with the special characters of its password "
            "percent-encoded (@ is %40, / is %2F), and parameters that libpq knows"
        ) from None
    return text


def _read_origin(text: str, no_path: str = "the service is at the root of its host") -> str:
    """The scheme, host and port of an address, as browsers write them (RFC 6454 section 6.2)."""
    parts = _split(text)
    host = parts.hostname or ""
    port = None
    with contextlib.suppress(ValueError):
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    faults = {
        "must not contain a user or password": "@" in parts.netloc,
        "must not have a query or a fragment: no `?`, no `#`": "?" in text or "#" in text,
        f"must not have a path: {no_path}": parts.path not in ("", "/"),
        "has an invalid port": port is None,
        "must name its host in ASCII letters (`xn--...`), digits, dots and hyphens": not _HOST.fullmatch(
            host
        ),
    }
    if any(faults.values()):
        raise ValueError(*(fault for fault, applies in faults.items() if applies))
    authority = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{authority}" + (
        "" if port == _DEFAULT_PORTS[parts.scheme] else f":{port}"
    )


def _read_page_origin(text: str) -> str:
    """The origin of pages, or `ANY_ORIGIN`."""
    if text == ANY_ORIGIN:
        return text
    if text.lower() == "null":
        raise ValueError(
            "must not contain null: every sandboxed page and local file has this origin"
        )
    shown = "an entry" if "@" in text else repr(text)  # not its password
    try:
        return _read_origin(text, "an origin is a scheme, a host and maybe a port")
    except ValueError as error:
        raise ValueError(*(f"{shown} {fault}" for fault in error.args)) from None


def _read_network(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not an address or network") from None
    return text


def _read_account(text: str) -> str:
    if _ACCOUNT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not an account id (acct_...)")
    return text


def _read_notice(text: str) -> str:
    if text not in set(OwnerNotice):
        raise ValueError(f"{text!r} is not a notice: choose from {', '.join(OwnerNotice)}")
    return text


def _read_claim(text: str) -> str:
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("must be the name of one claim")
    return text


def _read_directory(text: str) -> str:
    if text != ANY_DIRECTORY and not is_directory_id(text):
        raise ValueError(
            f"{text!r} is not the id of a directory: it is `tid` of its tokens, not a domain name"
        )
    return text


def _read_role(text: str) -> tuple[str, Role]:
    theirs, _, ours = (part.strip() for part in text.rpartition("="))
    if not theirs or ours not in set(Role):
        raise ValueError(f"{text!r} is not `theirs=ours`: ours is one of {', '.join(Role)}")
    return theirs, Role(ours)


def _read_role_map(text: str) -> Mapping[str, Role]:
    pairs = _read_each(_read_role, filter(None, map(str.strip, text.split(","))))
    if not pairs:
        raise ValueError("maps no role")
    numbers = Counter(theirs for theirs, _ in pairs)
    if twice := [f"{theirs!r} is mapped twice" for theirs, number in numbers.items() if number > 1]:
        raise ValueError(*twice)
    return dict(pairs)


_NOTICES: Final = ", ".join(f"`{notice}`" for notice in OwnerNotice)
TEXT: Final = Kind("text", str)
TEXT_WITH_PASSWORD: Final = Kind("text", str, is_secret=True)
DATABASE_URL: Final = Kind(
    "text", lambda text: None if text == EMBEDDED else read_conninfo(text), is_secret=True
)
POOLER_URL: Final = Kind("text", read_conninfo, "needs `DATABASE_URL`", is_secret=True)
URL: Final = Kind("address", _read_url, "http or https")
ORIGIN: Final = Kind("address", _read_origin, "http or https, a host, maybe a port")
AUDIENCES: Final = several(str, "separated by commas")
CLAIM: Final = Kind("text", _read_claim, "the name of a claim")
ROLE_MAP: Final = Kind("text", _read_role_map, "`theirs=ours`, separated by commas")
DIRECTORIES: Final = several(_read_directory, "ids, or `*`")
OTLP_HEADERS: Final = Kind("text", str, "`name=value`, separated by commas")
FLAG: Final = Kind("flag", _read_flag, "true, false, 1, 0")


class Setting(Generic[Value]):
    """One setting. As an attribute of `Settings` it reads its variable.

    ``default_text`` describes the default in the reference where the value does not.
    ``former_name`` is a variable that is deprecated, and read for one more release where ``name``
    is unset.
    """

    def __init__(
        self,
        name: str,
        kind: Kind[Value],
        default: Value,
        *,
        default_text: str = "",
        former_name: str = "",
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.default_text = default_text
        self.former_name = former_name
        self.is_secret = kind.is_secret
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
        # from now on Python finds the value before this descriptor
        settings.__dict__[self.attribute] = value
        return value

    def read(self, values: Mapping[str, str], *, is_demo: bool) -> Value:
        """Return the value. Raises `SettingsError`."""
        text = self.text(values)
        if text is None:
            if self.default is REQUIRED:
                raise SettingsError([f"{self.name}: is missing"])
            return self.default
        parse = (is_demo and self.kind.parse_in_demo) or self.kind.parse
        try:
            return parse(text)
        except ValueError as error:
            raise SettingsError([f"{self.name}: {fault}" for fault in error.args]) from None

    def text(self, values: Mapping[str, str]) -> str | None:
        """The text of the variable or of its file; None if it is missing or empty. Raises
        `SettingsError`.
        """
        text = values.get(self.name, "").strip() or None
        if text is None and (text := values.get(self.former_name, "").strip() or None):
            logger.warning("%s is deprecated: set %s instead", self.former_name, self.name)
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


class Settings:
    """The settings of a deployment. An attribute reads and checks its variable when it is first
    used.

    The ``load`` functions check all that a process needs before anything starts.
    """

    webhook_secrets = Setting(
        "PROVIDER_WEBHOOK_SECRET", secrets(16, _check_webhook_secret), REQUIRED
    )
    """The signing secret of the provider's webhook endpoint, `whsec_...`. Several, separated by
    commas, during a rotation: any of them may match.
    """
    peppers = Setting("API_KEY_PEPPER", secrets(32), REQUIRED)
    """The key that API keys are hashed with. Several, separated by commas, during a rotation: the
    service writes with the first and reads with all. Keep a copy: if it is lost, every API key is
    invalid.
    """
    session_secret = Setting("SESSION_SECRET", secret(32), REQUIRED)
    """The key that dashboard sessions are signed and encrypted with. A new one ends all sessions
    and changes nothing else.
    """

    database_url = Setting("DATABASE_URL", DATABASE_URL, None, default_text="required")
    """A PostgreSQL, 15 or newer: `postgresql://user:password@host:port/name`, or a `key=value`
    connection string. `embedded`: a PostgreSQL under `TENANTRY_DATA_DIR` that the command starts,
    for development. The database must be tenantry's own, without tables of others. `tenantry demo`
    ignores this setting: see [The demo](../how-to/demo.md).
    """
    _pooler_url = Setting("DATABASE_POOLER_URL", POOLER_URL, None, default_text="unset: no pooler")
    """The same database through a connection pooler in transaction mode, for ordinary work;
    `DATABASE_URL` must bypass the pooler.
    """
    database_pool_size = Setting("DATABASE_POOL_SIZE", number(1, 1000), 5)
    """Connections of each process for ordinary work. Each process uses up to eight more: five for
    grouped paths, one for snapshots fetched from the provider, two for the job queue; and one more
    if it runs jobs.
    """
    data_dir = Setting("TENANTRY_DATA_DIR", Kind("text", Path), Path(".tenantry"))
    """The folder of the embedded database or of the demo."""

    host = Setting("HOST", Kind("text", str), "127.0.0.1")
    """The address to listen on. The demo always listens on 127.0.0.1."""
    port = Setting("PORT", number(0, 65535), 3001)
    """The port to listen on; 0 chooses a free one."""
    _base_url = Setting("BASE_URL", ORIGIN, None, default_text="`http://127.0.0.1:PORT`")
    """The address at which users and the provider reach the service. The identity provider,
    checkout and portal send users back to it. With https, browsers send cookies over https alone.
    Capital letters and the scheme's default port make no difference. A path prefix is not
    supported.
    """
    cors_origins = Setting[tuple[str, ...]](
        "CORS_ORIGINS", several(_read_page_origin, "origins, or `*`"), ()
    )
    """The origins, separated by commas, whose pages may call the API with a credential of their
    own, such as `https://app.example.com`; `*` for all. Webhook and dashboard stay closed to other
    origins. See [Call the API from a browser](../how-to/browsers.md).
    """
    workers = Setting("WORKERS", number(1, 64), 1)
    """Server processes."""
    drain_seconds = Setting("DRAIN_SECONDS", number(0, 3600), 5)
    """How long a service that received SIGTERM still accepts connections, while `/readyz` answers
    503: as long as a load balancer needs to notice; in the demo 0. See [Stopping and
    restarting](../how-to/stopping.md).
    """
    max_connections = Setting("MAX_CONNECTIONS", number(64, 1_000_000), 8192)
    """Connections that each server process keeps open, or 256 fewer than the files that it may open
    if that is less. At the limit, the connection that has been idle longest closes. All limits:
    [Limits](limits.md).
    """
    run_jobs = Setting("RUN_JOBS", FLAG, default=True)
    """Whether server processes also run the background jobs (`serve --jobs`, `--no-jobs`)."""
    trusted_proxies = Setting[tuple[str, ...]](
        "TRUSTED_PROXIES", several(_read_network, "IP addresses, networks"), ()
    )
    """Addresses or networks, separated by commas, whose `X-Forwarded-For` and `X-Forwarded-Proto`
    the service trusts.
    """
    log_format = Setting("LOG_FORMAT", choice("console", "json"), "console")
    """Log lines on stderr, for people or for machines."""
    log_requests = Setting("LOG_REQUESTS", FLAG, default=False)
    """Log a line for each request ([operations.md](../how-to/operations.md#logs))."""
    log_requests_to = Setting[Path | None]("LOG_REQUESTS_TO", Kind("text", Path), None)
    """The path of a file for these lines, as JSON, with or without `LOG_REQUESTS`. `tenantry logs
    tail` follows it. The service opens a new file after a rotation.
    """
    operator_token = Setting("OPERATOR_TOKEN", secret(32), None)
    """The bearer token of your own backend, for `PUT`, `DELETE` and export of tenants. Unset: these
    answer 401.
    """

    webhook_tolerance = Setting("PROVIDER_WEBHOOK_TOLERANCE", number(1, 86_400), 300)
    """The maximum age of a signature in seconds, and how far in the future it may be."""
    provider_secret_key = Setting("PROVIDER_SECRET_KEY", secret(), None)
    """The key of the provider's API: for checkout and portal sessions, for resolving ambiguous
    events, and for reconciling tenants with the provider. Its prefix names its mode (`sk_live_`,
    `sk_test_`, `rk_live_`, `rk_test_`): events of the other mode are handled and counted as
    unexpected, unless `PROVIDER_LIVEMODE` is set. Unset: sessions answer 501, tenantry never calls
    the provider, and everything else works.
    """
    provider_api_base = Setting("PROVIDER_API_BASE", URL, "https://api.stripe.com")
    """The address of the provider's API."""
    _accounts = Setting[tuple[str, ...]](
        "PROVIDER_ACCOUNTS", several(_read_account, "`acct_...` ids"), ()
    )
    """The connected accounts (Stripe Connect), separated by commas, whose events count like the
    platform's. Events of other connected accounts are ignored.
    """
    _livemode = Setting("PROVIDER_LIVEMODE", choice("any", "live", "test"), "any")
    """Which mode's events count. `live` or `test`: events of the other mode are ignored; an event
    without a mode counts. `any`: the mode is recorded and counted, and filters nothing.
    """
    _plans = Setting("TENANTRY_PLANS", TEXT, None, default_text="the packaged catalog")
    """The path of the plan catalog."""
    _subscriptions = Setting("SUBSCRIPTIONS", choice("any", "each"), "any")
    """How the events of several subscriptions of one tenant count. `any`: every event changes the
    tenant, whichever subscription it is about. `each`: each subscription has its own state, and one
    of them gives the tenant its plan and status; for tenants that can have several. After a change
    run `tenantry tenants rebuild`.
    """
    _past_due_grace_days = Setting("PAST_DUE_GRACE_DAYS", number(0, 3650), 65)
    """How many days after a subscription became past due its tenant keeps the plan's limits. The
    provider's own retries should end earlier. 0: not at all. A change takes effect for a tenant
    with its next event or a rebuild.
    """
    _checkout_reference_links = Setting("CHECKOUT_REFERENCE_LINKS", FLAG, default=False)
    """Whether a checkout session's `client_reference_id` may name the tenant if its metadata does
    not. A buyer can set it on a payment link, so it links only a tenant that has no customer.
    """
    _parked_mail_hours = Setting("PARKED_MAIL_HOURS", number(0, _HOURS_OF_A_YEAR), 72)
    """A failed payment that was parked until its tenant became known still mails the owner if it is
    no older than this.
    """
    _owner_notices = Setting[tuple[str, ...]]("OWNER_NOTICES", several(_read_notice, _NOTICES), ())
    """Which [billing notices](../explanation/subscriptions.md#notices) owners get by mail beside
    those of failed payments, separated by commas. Set it only when all processes run a release that
    supports it. `trial_ending` needs `customer.subscription.trial_will_end` to be enabled at the
    provider.
    """
    reconcile_hours = Setting("RECONCILE_HOURS", number(0, _HOURS_OF_A_YEAR), 24)
    """How often tenantry compares all subscriptions at the provider with the tenants and repairs
    drift. 0: never. Needs `PROVIDER_SECRET_KEY`.
    """
    stale_tenant_hours = Setting(
        "STALE_TENANT_HOURS", number(1, _HOURS_OF_A_YEAR), 24, former_name="PERIOD_NEWS_HOURS"
    )
    """How long after the end of its paid period a tenant may have no event before it is reported as
    stale: an event was lost, or the endpoint does not receive events.
    """
    raw_body_days = Setting("RAW_BODY_DAYS", number(1, 36_500), 90)
    """How many days the raw bodies of events are kept. Folding, replay and explain use the ledger,
    which is kept permanently.
    """

    _issuer = Setting("OIDC_ISSUER", Kind("text", str, "https; http on loopback"), None)
    """The issuer, exactly as tokens name it in `iss`. It may contain `{tenantid}`, as Microsoft
    Entra ID's template of several directories; then set `OIDC_DIRECTORIES` too.
    """
    _directories = Setting[tuple[str, ...]]("OIDC_DIRECTORIES", DIRECTORIES, ())
    """The directories whose users are accepted, separated by commas: the values of `tid`, which
    takes the place of `{tenantid}` in the issuer. `*`: every directory of the provider
    ([Tokens](tokens.md#several-directories)).
    """
    _audiences = Setting[tuple[str, ...]]("OIDC_AUDIENCE", AUDIENCES, ())
    """The audience of access tokens for this API, or several: a token needs one of them. Required
    with `OIDC_ISSUER`. The dashboard's sign-in asks for tokens for the first.
    """
    _audience_claim = Setting("OIDC_AUDIENCE_CLAIM", CLAIM, STANDARD_AUDIENCE)
    """The claim that holds the audience. `client_id` or `azp`, with the ids of your clients as
    `OIDC_AUDIENCE`, is for providers whose access tokens have no `aud`; tokens that have one are
    then rejected.
    """
    _token_lifetime = Setting("OIDC_TOKEN_LIFETIME", number(1, 31_536_000), TOKEN_LIFETIME)
    """How many seconds may lie between `iat` and `exp` of a token; 30 s of leeway are added."""
    _client_id = Setting(
        "OIDC_CLIENT_ID", Kind("text", str, "no audience, unless these are clients"), None
    )
    """The client that users sign in to the dashboard with. Unset: the dashboard has no sign-in. The
    API rejects a token whose only audience in `aud` is this client: it is an ID token.
    """
    oidc_client_secret = Setting("OIDC_CLIENT_SECRET", secret(), None)
    """That client's secret. Unset: a public client, with PKCE alone."""
    _org_claim = Setting("OIDC_ORG_CLAIM", TEXT, "org_id")
    """The claim that names the tenant; dots reach into objects."""
    _role_claim = Setting("OIDC_ROLE_CLAIM", TEXT, "org_role")
    """The claim that names the role, as a text or a list of texts, of which the highest counts.
    `owner`, `admin`, `member` and the same after `org:` are known; any other value counts as
    `member`.
    """
    _role_map = Setting("OIDC_ROLE_MAP", ROLE_MAP, None)
    """The provider's names of the roles: `Owner=owner,Writer=admin`. Set, it replaces the names
    that are known without it.
    """
    email_subjects = Setting("OIDC_EMAIL_SUBJECTS", FLAG, default=False)
    """Whether the provider's user ids (`sub`) may be email addresses, as in Okta's access tokens.
    By default an address is rejected as a user id: it is almost always a mistake.
    """
    _allow_http = Setting("OIDC_ALLOW_HTTP", FLAG, default=False)
    """Accept a plain-http issuer that is not on loopback. An attacker on the network can then forge
    its keys.
    """
    tenants_per_user = Setting("TENANTS_PER_USER", number(0, 1_000_000), 20)
    """How many tenants one user may create; deleted ones do not count. 0: users create none. The
    operator may create any number.
    """

    _smtp_url = Setting("SMTP_URL", TEXT_WITH_PASSWORD, None)
    """`smtp://user:password@host:port` (port 587 by default, STARTTLS) or `smtps://...` (port 465,
    TLS from the start). User and password are percent-encoded and optional together.
    """
    _mail_from = Setting("MAIL_FROM", Kind("text", str, "one ASCII address"), None)
    """The sender, `billing@example.com` or `Name <billing@example.com>`; required with
    `SMTP_URL`.
    """
    _allow_plaintext_smtp = Setting("SMTP_ALLOW_PLAINTEXT", FLAG, default=False)
    """Send mail, and the password, to a server without TLS that is not on loopback."""

    # OpenTelemetry's own variables
    _otlp_endpoint = Setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT", TEXT, None, default_text="unset: no traces"
    )
    """Where spans are sent to: a collector that accepts OTLP over HTTP."""
    _otlp_traces_endpoint = Setting("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", TEXT, None)
    """The same, for traces alone."""
    _otlp_headers = Setting("OTEL_EXPORTER_OTLP_HEADERS", OTLP_HEADERS, None)
    """Headers that spans are sent with; their values are kept out of logs like secrets."""
    _otlp_traces_headers = Setting("OTEL_EXPORTER_OTLP_TRACES_HEADERS", OTLP_HEADERS, None)
    """The same, for traces alone."""
    _traces_exporter = Setting("OTEL_TRACES_EXPORTER", choice("otlp", "none"), None)
    """`otlp` sends spans even without an endpoint (to `http://localhost:4318`), `none` never does.
    Unset: spans are sent if there is an endpoint.
    """
    _telemetry_disabled = Setting("OTEL_SDK_DISABLED", FLAG, default=False)
    """`true` sends no spans."""

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
        """The connection string of the service's database; None for the embedded one, the default
        of the demo alone.
        """
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
            fault = (
                "is missing"
                if is_missing
                else "must be the address of the service's database, not `embedded`"
            )
            raise SettingsError([f"{setting.name}: {fault}"])
        return self.database_url

    @cached_property
    def database_pooler_url(self) -> str | None:
        """The connection string of the pooler."""
        if self._pooler_url is not None and self.database_url is None:
            raise SettingsError(
                ["DATABASE_POOLER_URL: needs DATABASE_URL too, which bypasses the pooler"]
            )
        return self._pooler_url

    @cached_property
    def catalog(self) -> Catalog:
        """The plan catalog in the file that a setting names, or the one that the package
        contains.
        """
        path = self._plans
        try:
            file = (
                resources.files("tenantry").joinpath("plans.toml") if path is None else Path(path)
            )
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
            past_due_grace=self._past_due_grace_days * _DAY,
            checkout_reference_links=self._checkout_reference_links,
            parked_mail_hours=self._parked_mail_hours,
            livemode=mode_of_key(self.provider_secret_key or Secret(""))
            if chosen is None
            else chosen,
            ignores_other_mode=chosen is not None,
            accounts=frozenset(self._accounts),
            notices=frozenset(map(OwnerNotice, self._owner_notices)),
        )

    @cached_property
    def issuers(self) -> Issuers | None:
        """The issuers whose users are members."""
        directories, is_template = self._directories, DIRECTORY in (self._issuer or "")
        fault = None
        if is_template and not directories:
            fault = f"is missing; OIDC_ISSUER contains {DIRECTORY}, so list the directories (`tid`) that are accepted"
        elif directories and not is_template:
            fault = f"needs an OIDC_ISSUER that contains {DIRECTORY}"
        elif ANY_DIRECTORY in directories and len(directories) > 1:
            fault = "`*` accepts every directory: list ids, or `*` alone"
        if fault is not None:
            raise SettingsError([f"OIDC_DIRECTORIES: {fault}"])
        return None if self._issuer is None else Issuers(self._issuer, directories)

    @cached_property
    def oidc(self) -> OidcConfig | None:
        """The trusted identity provider, if there is one."""
        issuers = self.issuers
        if issuers is None:
            return None
        faults = []
        if not self._audiences:
            faults.append(
                "OIDC_AUDIENCE: is missing; it is the audience of access tokens for this API"
            )
        if not is_secure(issuers.name, allow_http=self._allow_http):
            faults.append(
                "OIDC_ISSUER: must be https (plain http only on loopback, or with OIDC_ALLOW_HTTP=true)"
            )
        if faults:
            raise SettingsError(faults)
        return OidcConfig(
            issuers=issuers,
            audiences=self._audiences,
            audience_claim=self._audience_claim,
            client_id=self._client_id,
            org_claim=self._org_claim,
            role_claim=self._role_claim,
            roles=self._role_map or DEFAULT_ROLES,
            token_lifetime=self._token_lifetime,
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
            raise SettingsError(
                ["MAIL_FROM: is missing; mail needs a sender where SMTP_URL is set"]
            )
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
        """How many connections to PostgreSQL itself all processes of ``serve`` may open
        together.
        """
        ordinary = 0 if self.database_pooler_url else self.database_pool_size
        listening = 1 if self.run_jobs else 0  # for new jobs
        return self.workers * (ordinary + OTHER_CONNECTIONS + listening)

    def named_secrets(self) -> list[tuple[str, Secret]]:
        """The secrets that grant access, each with its variable."""
        found = list[tuple[str, Secret]]()
        for attribute, setting in SETTINGS.items():
            if setting.kind.name in ("secret", "secrets") and (value := getattr(self, attribute)):
                found += [
                    (setting.name, each)
                    for each in (value if isinstance(value, tuple) else (value,))
                ]
        return found

    def secrets(self) -> list[Secret]:
        """Every secret, so that logs can hide it."""
        passwords = [
            self.smtp and self.smtp.password,
            *map(_database_password, (self.database_url, self._pooler_url)),
        ]
        headers = f"{self._otlp_traces_headers or ''},{self._otlp_headers or ''}".split(",")
        credentials = [unquote(pair.partition("=")[2].strip()) for pair in headers]
        words = [word for text in credentials for word in (text, text.rpartition(" ")[2])]
        others = [Secret(word) for word in dict.fromkeys(words)]
        return [
            secret
            for secret in (*(each for _, each in self.named_secrets()), *passwords, *others)
            if secret
        ]


_COMPOSED: Final = (
    "catalog",
    "billing",
    "issuers",
    "oidc",
    "smtp",
    "traces",
    "base_url",
    "database_pooler_url",
)
_BILLING: Final = (
    "catalog",
    "_accounts",
    "_livemode",
    "_subscriptions",
    "_checkout_reference_links",
    "_parked_mail_hours",
    "_owner_notices",
    "provider_secret_key",
    "provider_api_base",
    "stale_tenant_hours",
)
SETTINGS: Final[dict[str, Setting[Any]]] = {
    attribute: setting
    for attribute, setting in vars(Settings).items()
    if isinstance(setting, Setting)
}
"""Every setting, in the order of the reference."""
SECRETS: Final = tuple(setting for setting in SETTINGS.values() if setting.is_secret)
VARIABLES: Final = frozenset(
    [setting.name for setting in SETTINGS.values()] + [secret.file_name for secret in SECRETS]
)
"""The variable of each setting, and those that name a secret's file."""


def read_env_file() -> dict[str, str]:
    """The ``.env`` file of the current folder; empty without one."""
    try:
        # bytes that are not UTF-8, of another program's settings, are read as in the environment
        with (Path.cwd() / ".env").open(encoding="utf-8", errors="surrogateescape") as stream:
            values = dotenv_values(stream=stream)
    except (FileNotFoundError, IsADirectoryError):
        return {}
    return {name: value for name, value in values.items() if value is not None}


def read_environment(env_file: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment over the ``.env`` file of the current folder, or over another content of that
    file.

    Secrets in files that ``NAME_FILE`` variables name are read and returned under their own names.
    A file that cannot be read, or a secret that is given in both ways, stays as it is: `load`
    reports it.
    """
    file = dict(read_env_file() if env_file is None else env_file)
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


def load_for_admin(values: Mapping[str, str], *, needs_pepper: bool) -> Settings:
    """Read and check the settings of the operator commands that use the database. Raises
    `SettingsError`.
    """
    needed = ("database_url", "data_dir", *_BILLING, "billing", "issuers", "email_subjects")
    return Settings(values).check([*needed, "peppers"] if needs_pepper else needed)


def load_for_authentication(values: Mapping[str, str]) -> Settings:
    """Read and check the settings of an application that authenticates in its process. Raises
    `SettingsError`.
    """
    needed = (
        "shared_database",
        "database_pooler_url",
        "database_pool_size",
        "catalog",
        "peppers",
        "oidc",
    )
    return Settings(values).check(needed)


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Return those of these variables that are set, for a child process that inherits no others."""
    return {name: os.environ[name] for name in names if name in os.environ}


def export_telemetry(values: Mapping[str, str]) -> None:
    """Export OpenTelemetry's variables from the ``.env`` file: its packages read the environment
    themselves.
    """
    export_environment({name: value for name, value in values.items() if name.startswith("OTEL_")})


def export_environment(values: Mapping[str, str]) -> None:
    """Export settings to the server processes that this one starts, with the secrets that were read
    from files.
    """
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
    password = psycopg.conninfo.conninfo_to_dict(conninfo or "").get("password")
    return Secret(str(password)) if password else None
