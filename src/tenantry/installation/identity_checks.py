"""Checks of the mail server and the identity provider."""

import asyncio
from typing import Final

import httpx2

from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.common.encoding import NOT_JSON
from tenantry.domain.issuers import DIRECTORY_CLAIM
from tenantry.installation.findings import Finding, ok, problem, problem_if
from tenantry.integrations.http_client import FetchError, new_http_client
from tenantry.integrations.oidc.claims import STANDARD_AUDIENCE, OidcConfig
from tenantry.integrations.oidc.keys import ALGORITHMS, PublishedKeys, fetch_published_keys
from tenantry.integrations.smtp import MailDeliveryError, Mailer, SmtpConfig

_MOST_REASONS: Final = 5


async def check_mail(config: SmtpConfig | None) -> list[Finding]:
    """Check that the mail server accepts the login."""
    if config is None:
        return [problem("mail.no_server")]
    try:
        await Mailer(config).probe()
    except MailDeliveryError as trouble:
        return [problem("mail.fails", trouble=trouble)]
    return [ok("mail", f"{config.host}:{config.port} accepts the login")]


async def check_identity(config: OidcConfig | None) -> list[Finding]:
    """Check that the identity provider publishes its metadata and keys, and fits the settings."""
    if config is None:
        return [problem("identity provider.not_set")]
    is_standard = config.audience_claim == STANDARD_AUDIENCE
    is_client = is_standard and config.audiences == (config.client_id,)
    is_shared = config.issuers.only is None and config.org_claim != DIRECTORY_CLAIM
    return [
        await _discover(config),
        *problem_if(is_client, "identity provider.audience_is_client"),
        *problem_if(is_shared, "identity provider.several_directories", org_claim=config.org_claim),
    ]


async def _discover(config: OidcConfig) -> Finding:
    try:
        async with new_http_client() as client, asyncio.timeout(DEFAULT_TIMEOUTS.identity_provider):
            return _judge_keys(config, await fetch_published_keys(config, client))
    except FetchError as error:
        trouble = str(error)
    except NOT_JSON:
        trouble = "the answer is neither a discovery document nor a key set"
    except (TimeoutError, httpx2.TimeoutException):
        trouble = "does not answer in time"
    except (httpx2.HTTPError, OSError) as error:
        trouble = f"cannot be reached ({type(error).__name__})"
    return problem("identity provider.fails", issuer=config.issuer, trouble=trouble)


def _judge_keys(config: OidcConfig, published: PublishedKeys) -> Finding:
    """Judge whether tokens can be verified, and users sign in if the dashboard is set up."""
    if not published.by_id:
        reasons = "; ".join(map(str, published.ignored[:_MOST_REASONS]))
        return problem(
            "identity provider.no_usable_key",
            issuer=config.issuer,
            reasons=reasons or "the key set is empty",
            algorithms=", ".join(ALGORITHMS),
        )
    if config.client_id and not published.metadata.can_sign_in:
        return problem("identity provider.no_sign_in", issuer=config.issuer)
    return ok("identity provider", f"{config.issuer} publishes its keys")
