"""The check-up: what is wrong with a set-up, and how to mend it.

Each check gives findings. No finding shows a secret, nor another program's own words, which may repeat one.
"""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import httpx2
import msgspec
import psycopg

from tenantry.db.database import Lane
from tenantry.db.migrate import newest_revision
from tenantry.domain.billing.events import HANDLED_TYPES
from tenantry.domain.errors import DatabaseUnavailableError, ProviderRefusedError, ProviderUnavailableError
from tenantry.domain.plans import FREE, Catalog
from tenantry.gateways.identity.config import OidcConfig
from tenantry.gateways.identity.fetch import TOTAL_SECONDS, FetchError
from tenantry.gateways.identity.jwks import fetch_published_keys
from tenantry.gateways.mail import MailError, SmtpConfig
from tenantry.gateways.mail_probe import MailProbe
from tenantry.gateways.provider.api import ProviderApi, WebhookEndpoint
from tenantry.store import billing, checkup, notices
from tenantry.store.checkup import FaultyEvents, OldKey, Server

OLDEST_SERVER: Final = 15
KEY_AGE: Final = timedelta(days=365)
LEDGER_DAYS: Final = 30
"""How far back the ledger is looked through."""
STUCK_SECONDS: Final = 3600.0

_VERSION_UNIT: Final = 10_000
_DATABASE: Final = "database"
_SCHEMA: Final = "schema"
_MAIL: Final = "mail"
_IDENTITY: Final = "identity provider"
_PROVIDER: Final = "payment provider"
_LEDGER: Final = "billing ledger"
# What PostgreSQL's client says, and what we say instead: its own words may hold parts of a misread DATABASE_URL.
_TROUBLES: Final = (
    ("password authentication failed", "the user or password is refused"),
    ("no password supplied", "the server wants a password"),
    ("failed to resolve host", "the host name is not known"),
    ("could not translate host name", "the host name is not known"),
    ("pg_hba.conf", "the server lets this user not in from here (pg_hba.conf)"),
    ("certificate", "TLS does not work out"),
    ("SSL", "TLS does not work out"),
    ("does not exist", "the database or the user does not exist"),
    ("too many", "the server has no connection free"),
    ("remaining connection slots", "the server has no connection free"),
    ("refused", "nobody listens at that address"),
    ("No such file", "nobody listens at that address"),
    ("starting up", "the server is starting up"),
)


class Level(StrEnum):
    """How bad it is: an error keeps something from working."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """What a check found about a subject, and, unless it is fine, how to mend it."""

    level: Level
    subject: str
    message: str
    remedy: str | None = None


class MailQueue(msgspec.Struct, frozen=True):
    """Notifications that are still to be delivered (the oldest for so many seconds), and those given up."""

    queued: int
    failed: int
    oldest_seconds: float


def judge_settings(faults: Sequence[str]) -> list[Finding]:
    """One finding for each faulty setting (``NAME: what is wrong``)."""
    findings = []
    for fault in faults:
        name, _, message = fault.partition(": ")
        findings.append(Finding(Level.ERROR, name, message, _REMEDIES.get(name, f"Correct {name}.")))
    return findings or [Finding(Level.OK, "settings", "complete and well-formed")]


_MAKE_ONE: Final = "Make a secret with `openssl rand -hex 32` and keep it: the same one for every process."
_REMEDIES: Final = {
    "PROVIDER_WEBHOOK_SECRET": "Copy the endpoint's signing secret (whsec_...) from the payment provider's dashboard, "
    "or from the tool that forwards events to a local address.",
    "API_KEY_PEPPER": _MAKE_ONE,
    "SESSION_SECRET": _MAKE_ONE,
    "OPERATOR_TOKEN": _MAKE_ONE,
    "TENANTRY_PLANS": "Correct the plan catalog, or unset TENANTRY_PLANS for the package's own.",
}


def judge_catalog(catalog: Catalog) -> list[Finding]:
    """What the plan catalog offers; a plan without a price cannot be bought."""
    findings = [
        Finding(
            Level.WARNING,
            "plans",
            f"the plan {plan.id} has no price: no subscription leads to it",
            "Give it a stripe_price_id in the plan catalog (TENANTRY_PLANS).",
        )
        for plan in catalog.plans
        if not plan.stripe_price_ids and plan.id != FREE
    ]
    return findings or [Finding(Level.OK, "plans", ", ".join(plan.id for plan in catalog.plans))]


async def check_database(conninfo: str, catalog: Catalog, now: datetime, *, sends_mail: bool) -> list[Finding]:
    """The server, the schema, and what the data says; ``sends_mail`` tells whether a mail server is set."""
    lane = Lane(conninfo)
    try:
        async with lane.use(autocommit=True) as connection:
            await checkup.be_patient(connection)
            server, revision = await checkup.read_server(connection), await checkup.read_revision(connection)
            findings = [judge_server(server), judge_revision(revision, newest_revision())]
            if findings[-1].level is Level.ERROR:
                return findings
            counts = await notices.count_by_status(connection)
            queue = MailQueue(
                counts.get("queued", 0), counts.get("failed", 0), await notices.oldest_queued_seconds(connection)
            )
            keys, number = await checkup.read_old_keys(connection, now, now - KEY_AGE)
            prices = [price for plan in catalog.plans for price in plan.stripe_price_ids]
            events = await checkup.read_faulty_events(connection, now - timedelta(days=LEDGER_DAYS), prices)
            return [
                *findings,
                *judge_queue(queue, sends_mail=sends_mail),
                *judge_old_keys(keys, number, now),
                *judge_ledger(events, await billing.count_parked(connection)),
            ]
    except DatabaseUnavailableError as error:
        return [_no_database(_trouble(error.__cause__))]
    except psycopg.ProgrammingError as error:
        # Without a SQLSTATE it is not the server that speaks: the connection string cannot even be read.
        return [_no_database(f"a question was refused ({error.sqlstate})" if error.sqlstate else "its form is wrong")]
    finally:
        await lane.close()


def _no_database(why: str) -> Finding:
    return Finding(
        Level.ERROR,
        _DATABASE,
        f"cannot be used: {why}",
        "Check DATABASE_URL (postgresql://user:password@host:port/database, special characters percent-encoded) "
        "and that the server runs.",
    )


def _trouble(cause: BaseException | None) -> str:
    if isinstance(cause, TimeoutError):
        return "the server does not answer in time"
    text = str(cause)
    return next((ours for theirs, ours in _TROUBLES if theirs in text), "the connection is refused or breaks off")


def judge_server(server: Server) -> Finding:
    """Whether the server's version will do."""
    if server.number < OLDEST_SERVER * _VERSION_UNIT:
        return Finding(
            Level.ERROR,
            _DATABASE,
            f"PostgreSQL {server.version} is too old",
            f"Upgrade the server to PostgreSQL {OLDEST_SERVER} or newer.",
        )
    return Finding(Level.OK, _DATABASE, f"PostgreSQL {server.version}")


def judge_revision(revision: str | None, newest: str) -> Finding:
    """Whether the schema is the one that this release needs."""
    if revision is None or revision < newest:
        state = "was never made" if revision is None else f"is at {revision}, this release needs {newest}"
        return Finding(Level.ERROR, _SCHEMA, state, "Run `tenantry migrate`.")
    if revision > newest:
        return Finding(
            Level.WARNING, _SCHEMA, f"is at {revision}, ahead of this release ({newest})", "Install the newer release."
        )
    return Finding(Level.OK, _SCHEMA, f"revision {revision}")


def judge_queue(queue: MailQueue, *, sends_mail: bool) -> list[Finding]:
    """What waits to be mailed, and what has been given up."""
    findings = []
    if not sends_mail:
        findings.append(
            Finding(
                Level.WARNING,
                _MAIL,
                f"no mail server is set: mail stays queued ({queue.queued} now)",
                "Set SMTP_URL (smtp://user:password@host:port) and MAIL_FROM.",
            )
        )
    elif queue.queued and queue.oldest_seconds > STUCK_SECONDS:
        findings.append(
            Finding(
                Level.WARNING,
                _MAIL,
                f"{queue.queued} notifications are queued, the oldest for {queue.oldest_seconds / 3600:.1f} h",
                "See that `tenantry worker` runs (or `serve` with RUN_JOBS), and what its log says of the mail server.",
            )
        )
    if queue.failed:
        findings.append(
            Finding(
                Level.WARNING,
                _MAIL,
                f"{queue.failed} notifications could not be delivered and were given up",
                "See last_error in the table notifications; often the owner's address is wrong (PATCH the tenant).",
            )
        )
    return findings


def judge_old_keys(keys: Sequence[OldKey], number: int, now: datetime) -> list[Finding]:
    """Active keys that are a year old or more; ``number`` counts also those that are not listed."""
    findings = [
        Finding(
            Level.WARNING,
            f"API key {key.id}",
            f"{key.name!r} of {key.org_id} is {(now - key.created_at).days} days old",
            "Rotate it (Settings, API keys, or POST /api/v1/api-keys/{id}/rotate) and put the new secret in its place.",
        )
        for key in keys
    ]
    if number > len(keys):
        findings.append(
            Finding(
                Level.WARNING,
                "API keys",
                f"{number - len(keys)} more are older than a year",
                "Rotate the ones above, then check again.",
            )
        )
    return findings or [Finding(Level.OK, "API keys", "no active one is older than a year")]


def judge_ledger(events: FaultyEvents, parked: int) -> list[Finding]:
    """What the ledger tells of events that did not do what they were meant to."""
    since = f"in the last {LEDGER_DAYS} days"
    findings = []
    if parked:
        findings.append(
            Finding(
                Level.WARNING,
                _LEDGER,
                f"{parked} events wait for a tenant or customer that is not known",
                "Make the tenant with the id in metadata.orgId (`tenantry admin create-tenant`), or link the customer "
                "(PUT /api/v1/tenants/{id}); the events then take their place. After 30 days they are let go.",
            )
        )
    if events.invalid:
        findings.append(
            Finding(
                Level.WARNING,
                _LEDGER,
                f"{events.invalid} events {since} could not be used: their object lacks what its type needs",
                "See their reason in the table billing_events (outcome 'invalid') and the endpoint's API version.",
            )
        )
    if events.without_org:
        findings.append(
            Finding(
                Level.WARNING,
                _LEDGER,
                f"{events.without_org} subscription or checkout events {since} name no tenant",
                "Put the tenant's id into metadata.orgId of the subscription, as checkouts made through "
                "POST /api/v1/billing/checkout-sessions do.",
            )
        )
    findings += [
        Finding(
            Level.WARNING,
            _LEDGER,
            f"{count} subscription events {since} have the price {price}, which no plan has: their tenants are on free",
            "Add the price to a plan of the catalog (TENANTRY_PLANS).",
        )
        for price, count in events.unknown_prices
    ]
    return findings or [Finding(Level.OK, _LEDGER, f"nothing unexpected {since}")]


async def check_mail(config: SmtpConfig | None) -> list[Finding]:
    """Whether the mail server lets us in; that none is set is told with the queue."""
    if config is None:
        return []
    try:
        await MailProbe(config).probe()
    except MailError as error:
        return [Finding(Level.ERROR, _MAIL, str(error), "Check SMTP_URL, and that the mail server runs.")]
    return [Finding(Level.OK, _MAIL, f"{config.host}:{config.port} lets us in")]


async def check_identity(config: OidcConfig | None) -> list[Finding]:
    """Whether the identity provider can be discovered and publishes keys, and whether it fits the settings."""
    if config is None:
        return [
            Finding(
                Level.WARNING,
                _IDENTITY,
                "none is set: bearer tokens are refused, API keys work",
                "Set OIDC_ISSUER and OIDC_AUDIENCE (and OIDC_CLIENT_ID, OIDC_CLIENT_SECRET for the dashboard).",
            )
        ]
    findings = [await _discover(config)]
    if config.audience == config.client_id:
        findings.append(
            Finding(
                Level.WARNING,
                _IDENTITY,
                "OIDC_AUDIENCE equals OIDC_CLIENT_ID: tokens for the client alone are ID tokens and are refused",
                "Register an API (resource) of its own at the identity provider and set OIDC_AUDIENCE to its identifier.",
            )
        )
    return findings


async def _discover(config: OidcConfig) -> Finding:
    try:
        async with httpx2.AsyncClient() as client, asyncio.timeout(TOTAL_SECONDS):
            published = await fetch_published_keys(config, client)
    except FetchError as error:
        why = str(error)
    except (msgspec.MsgspecError, RecursionError):
        why = "answered with something else than a discovery document and a key set"
    except TimeoutError:
        why = "does not answer in time"
    except (httpx2.HTTPError, OSError) as error:
        why = f"cannot be reached ({type(error).__name__})"
    else:
        if published.by_id:
            return Finding(Level.OK, _IDENTITY, f"{config.issuer} publishes its keys")
        why = "publishes no key for RS256, ES256 or EdDSA"
    return Finding(
        Level.ERROR,
        _IDENTITY,
        f"{config.issuer}: {why}",
        "Check that OIDC_ISSUER is exactly the issuer in the provider's /.well-known/openid-configuration, "
        "and that this machine reaches it.",
    )


async def check_provider(api: ProviderApi | None, webhook_url: str) -> list[Finding]:
    """Whether the payment provider's API lets us in and sends its events to ``webhook_url``."""
    if api is None:
        return [
            Finding(
                Level.WARNING,
                _PROVIDER,
                "no API key is set: no checkout, no customer portal, and the endpoint's subscription is not checked",
                "Set PROVIDER_SECRET_KEY.",
            )
        ]
    try:
        endpoints = await api.webhook_endpoints()
    except ProviderRefusedError as error:
        return [Finding(Level.ERROR, _PROVIDER, error.detail, "Check PROVIDER_SECRET_KEY.")]
    except ProviderUnavailableError as error:
        return [
            Finding(Level.ERROR, _PROVIDER, error.detail, "Check PROVIDER_API_BASE, and that this machine reaches it.")
        ]
    if endpoints is None:
        return [
            Finding(
                Level.WARNING,
                _PROVIDER,
                "the API key has no right to read webhook endpoints: their subscription is not checked",
                "Give the restricted key that right, or compare the five event types in the provider's dashboard.",
            )
        ]
    return judge_endpoints(endpoints, webhook_url)


def judge_endpoints(endpoints: Collection[WebhookEndpoint], webhook_url: str) -> list[Finding]:
    """Whether an endpoint for our address is there, enabled, and subscribed to exactly the five types of SPEC 6.2."""
    ours = [endpoint for endpoint in endpoints if endpoint.url.rstrip("/") == webhook_url.rstrip("/")]
    if not ours:
        return [
            Finding(
                Level.WARNING,
                _PROVIDER,
                f"has no endpoint for {webhook_url}: no event arrives",
                f"Add it in the provider's dashboard, with the types {_listed(HANDLED_TYPES)}; its signing secret goes "
                "into PROVIDER_WEBHOOK_SECRET. On a local address use the provider's forwarding tool instead.",
            )
        ]
    return [_judge_endpoint(endpoint) for endpoint in ours]


def _judge_endpoint(endpoint: WebhookEndpoint) -> Finding:
    missing, surplus = HANDLED_TYPES.difference(endpoint.enabled_events), set(endpoint.enabled_events) - HANDLED_TYPES
    if "*" in endpoint.enabled_events:
        missing = frozenset()
    faults = []
    if endpoint.status != "enabled":
        faults.append(f"is {endpoint.status}")
    if missing:
        faults.append(f"lacks {_listed(missing)}")
    if surplus:
        faults.append(f"has beyond need {_listed(surplus)}")
    if not faults:
        return Finding(Level.OK, _PROVIDER, f"sends the five event types to {endpoint.url}")
    return Finding(
        Level.WARNING,
        _PROVIDER,
        f"the endpoint {endpoint.url} {'; '.join(faults)}",
        f"Enable it in the provider's dashboard for exactly {_listed(HANDLED_TYPES)}.",
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
