"""Checks of the settings and the plan catalog, of the mail server and of the identity provider."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import httpx2

from tenantry.cli.demo_folder import is_loopback_url
from tenantry.cli.doctor import Finding, Level, Subject
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.encoding import NOT_JSON
from tenantry.common.secret import Secret
from tenantry.domain.plans import FREE, Catalog
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.jwks import FetchError, fetch_published_keys
from tenantry.integrations.smtp import MailDeliveryError, Mailer, SmtpConfig, SmtpProbe

SHORTEST: Final = 16
"""Characters of a secret."""
_BASE_URL: Final = Subject("BASE_URL")
_SECRETS: Final = Subject("secrets")
_PLANS: Final = Subject("plans")
_GENERATE: Final = "Generate a secret with `openssl rand -hex 32` and use the same one in every process."
_REMEDIES: Final = {
    "PROVIDER_WEBHOOK_SECRET": "Copy the endpoint's signing secret (whsec_...) from the payment provider's dashboard, "
    "or from the tool that forwards events to a local address.",
    "DATABASE_URL": "Set it in the environment or in .env.",
    "API_KEY_PEPPER": _GENERATE,
    "SESSION_SECRET": _GENERATE,
    "OPERATOR_TOKEN": _GENERATE,
    "TENANTRY_PLANS": "Correct the plan catalog, or unset TENANTRY_PLANS to use the built-in one.",
}
_NOT_HTTPS: Final = _BASE_URL.warning(
    "{base_url} is not https",
    "Keys, tokens and session cookies are sent unencrypted.",
    "Put a TLS proxy in front (TRUSTED_PROXIES), and set BASE_URL to its https address.",
)
_REPEATED: Final = _SECRETS.warning(
    "{names} contains the same secret twice",
    "It counts once: the rotation has not begun.",
    "Remove one of them. To rotate, put the new secret first (see docs/configuration.md).",
)
_SHARED: Final = _SECRETS.warning(
    "{names} hold the same secret",
    "One leak exposes both, and neither can be rotated alone.",
    "Give each its own (`openssl rand -hex 32`); docs/configuration.md describes how to rotate each.",
)
_SHORT: Final = _SECRETS.warning(
    "{name} is shorter than {shortest} characters",
    "It can be guessed.",
    "Generate a longer one where it is issued, and set it here.",
)
_NO_TRACES: Final = Subject("traces").warning(
    "OTEL_... variables ask for traces, but OpenTelemetry is not installed",
    "The service works, but sends no traces.",
    "pip install 'tenantry[otel]', or set OTEL_SDK_DISABLED=true.",
)
_NO_PRICE: Final = _PLANS.warning(
    "the plan {plan} has no price: no subscription leads to it",
    "No customer can buy it.",
    "Give it a stripe_price_id in the plan catalog (TENANTRY_PLANS).",
)


def judge_settings(faults: Sequence[str]) -> list[Finding]:
    """Report each faulty setting (``NAME: what is wrong``)."""
    findings = []
    for fault in faults:
        name, _, message = fault.partition(": ")
        remedy = _REMEDIES.get(name, f"Correct {name} in the environment or in .env.")
        findings.append(Finding(Level.ERROR, name, message, remedy, "The service does not start."))
    return findings or [Subject("settings").ok("complete and well-formed")]


def judge_address(base_url: str, *, is_demo: bool) -> list[Finding]:
    """Judge whether BASE_URL is https, or an address of this machine."""
    if is_demo:
        return []
    if is_loopback_url(base_url):
        return [_BASE_URL.ok(f"{base_url} is reachable from this machine only")]
    return [_BASE_URL.ok(base_url) if base_url.startswith("https:") else _NOT_HTTPS.found(base_url=base_url)]


def judge_secrets(secrets: Sequence[tuple[str, Secret]]) -> list[Finding]:
    """Judge whether each secret, given with its variable, is unique and long enough."""
    names: dict[Secret, list[str]] = {}
    for name, secret in secrets:
        names.setdefault(secret, []).append(name)
    findings = [
        (_SHARED if len(set(alike)) > 1 else _REPEATED).found(names=" and ".join(dict.fromkeys(alike)))
        for alike in names.values()
        if len(alike) > 1
    ]
    findings += [
        _SHORT.found(name=name, shortest=SHORTEST)
        for name, secret in dict.fromkeys(secrets)
        if len(secret.reveal()) < SHORTEST
    ]
    return findings or [_SECRETS.ok("all different and long enough")]


def judge_traces(*, are_wanted: bool, can_be_made: bool) -> list[Finding]:
    return [_NO_TRACES.found()] if are_wanted and not can_be_made else []


def judge_catalog(catalog: Catalog) -> list[Finding]:
    findings = [
        _NO_PRICE.found(plan=plan.id) for plan in catalog.plans if not plan.stripe_price_ids and plan.id != FREE
    ]
    return findings or [_PLANS.ok(", ".join(plan.id for plan in catalog.plans))]


CERTIFICATE_DAYS: Final = timedelta(days=14)
"""How long a certificate must still be valid."""
_MAIL: Final = Subject("mail")
_IDENTITY: Final = Subject("identity provider")

_MAIL_FAILS: Final = _MAIL.error(
    "{trouble}",
    "Mail stays queued: owners do not learn of failed payments or leaked keys.",
    "Check SMTP_URL, and that the mail server runs.",
)
_MAIL_WITHOUT_TLS: Final = _MAIL.warning(
    "{where} accepts the login without TLS",
    "The password and every mail are sent unencrypted.",
    "Use a mail server with TLS, and unset SMTP_ALLOW_PLAINTEXT.",
)
_CERTIFICATE_EXPIRES: Final = _MAIL.warning(
    "the certificate of {where} expires on {expires:%Y-%m-%d}", "After that no mail is sent.", "Renew it."
)
_NO_IDENTITY: Final = _IDENTITY.warning(
    "none is set: bearer tokens are rejected, API keys work",
    "People can sign in neither to the API nor to the dashboard.",
    "Set OIDC_ISSUER and OIDC_AUDIENCE (and OIDC_CLIENT_ID, OIDC_CLIENT_SECRET for the dashboard).",
)
_AUDIENCE_IS_CLIENT: Final = _IDENTITY.warning(
    "OIDC_AUDIENCE equals OIDC_CLIENT_ID: tokens for the client alone are ID tokens and are rejected",
    "Users with a valid token are rejected.",
    "Register a separate API at the identity provider and set OIDC_AUDIENCE to its identifier.",
)
_NO_SIGN_IN: Final = _IDENTITY.error(
    "{issuer} publishes no authorization_endpoint and token_endpoint",
    "Signing in to the dashboard fails.",
    "Set OIDC_ISSUER to a provider that signs people in, or unset OIDC_CLIENT_ID.",
)
_IDENTITY_FAILS: Final = _IDENTITY.error(
    "{issuer}: {trouble}",
    "Signing in fails, and tokens are rejected once the cached keys are a day old.",
    "Check that OIDC_ISSUER is exactly the issuer in the provider's /.well-known/openid-configuration, and that this "
    "machine reaches it.",
)


async def check_mail(config: SmtpConfig | None, now: datetime) -> list[Finding]:
    """Check that the mail server accepts the login; a missing one is reported with the mail queue."""
    if config is None:
        return []
    try:
        probed = await Mailer(config).probe()
    except MailDeliveryError as trouble:
        return [_MAIL_FAILS.found(trouble=trouble)]
    return judge_mail_server(config, probed, now)


def judge_mail_server(config: SmtpConfig, probed: SmtpProbe, now: datetime) -> list[Finding]:
    """Judge whether the connection to the mail server is encrypted, with a certificate that stays valid."""
    where = f"{config.host}:{config.port}"
    if not probed.over_tls and not config.on_loopback:
        return [_MAIL_WITHOUT_TLS.found(where=where)]
    if probed.good_until is not None and probed.good_until - now < CERTIFICATE_DAYS:
        return [_CERTIFICATE_EXPIRES.found(where=where, expires=probed.good_until)]
    return [_MAIL.ok(f"{where} accepts the login{' over TLS' if probed.over_tls else ''}")]


async def check_identity(config: OidcConfig | None) -> list[Finding]:
    """Check that the identity provider publishes its metadata and keys, and fits the settings."""
    if config is None:
        return [_NO_IDENTITY.found()]
    return [await _discover(config), *_AUDIENCE_IS_CLIENT.found_if(config.audience == config.client_id)]


async def _discover(config: OidcConfig) -> Finding:
    try:
        async with new_http_client() as client, asyncio.timeout(DEFAULT_TIMEOUTS.identity_provider):
            published = await fetch_published_keys(config, client)
    except FetchError as error:
        trouble = str(error)
    except NOT_JSON:
        trouble = "the answer is neither a discovery document nor a key set"
    except (TimeoutError, httpx2.TimeoutException):
        trouble = "does not answer in time"
    except (httpx2.HTTPError, OSError) as error:
        trouble = f"cannot be reached ({type(error).__name__})"
    else:
        if published.by_id and config.client_id and not published.metadata.can_sign_in:
            return _NO_SIGN_IN.found(issuer=config.issuer)
        if published.by_id:
            return _IDENTITY.ok(f"{config.issuer} publishes its keys")
        trouble = "publishes no key for RS256, ES256 or EdDSA"
    return _IDENTITY_FAILS.found(issuer=config.issuer, trouble=trouble)
