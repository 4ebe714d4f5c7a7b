"""The use cases behind operator commands, built in one place."""

import re
from collections.abc import Sequence

import msgspec

from tenantry.accounts.erasure import PersonErasure
from tenantry.accounts.invitations import InvitationService
from tenantry.accounts.memberships.members import MemberService
from tenantry.accounts.owner_addresses import OwnerConfirmations
from tenantry.accounts.restore import Restore
from tenantry.accounts.tenant_directory import TenantDirectory
from tenantry.accounts.tenants import TenantService
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.key_import import KeyImportService
from tenantry.auth.operator_keys import OperatorKeyService
from tenantry.billing.customer_links import CustomerLinks
from tenantry.billing.grants import GrantService
from tenantry.billing.ledger_queries import OperatorLedger
from tenantry.common.clock import system_clock
from tenantry.common.secret import Secret
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.api_keys import Pepper
from tenantry.domain.webhook_endpoints import EndpointState
from tenantry.installation.webhook_operations import WebhookOperations
from tenantry.integrations.webhook_client import WebhookClient
from tenantry.outbound.webhooks import OutboundWebhooks
from tenantry.settings import Settings


class OperatorServices(msgspec.Struct, frozen=True):
    """Use cases on one database, for the operator."""

    api_keys: ApiKeyService
    operator_keys: OperatorKeyService
    key_import: KeyImportService
    tenants: TenantService
    directory: TenantDirectory
    grants: GrantService
    links: CustomerLinks
    ledger: OperatorLedger
    confirmations: OwnerConfirmations
    webhooks: WebhookOperations
    restore: Restore
    erasure: PersonErasure


def operator_services(
    settings: Settings,
    database: Database,
    *,
    asks_provider: bool = True,
    peppers: Sequence[Secret] = (),
    imported: re.Pattern[bytes] | None = None,
) -> OperatorServices:
    """Build them. With ``asks_provider`` questions to the provider follow a change, if its API is
    set up. New and imported keys, and erasing people, need ``peppers``; ``imported`` is the pattern
    of imported keys.
    """
    policy, issuers, clock = settings.billing, settings.issuers, system_clock
    outbox = Outbox(
        asks_provider=asks_provider and settings.provider_secret_key is not None,
        follows_seats=asks_provider and settings.follows_seats,
    )
    known = [Pepper(pepper.reveal().encode()) for pepper in peppers]
    api_keys = ApiKeyService(
        database,
        policy.catalog,
        known[0] if known else Pepper(b""),
        clock,
        issuers,
        key_format=settings.key_format,
        proxies=settings.credentials.proxies,
    )
    operator_keys = OperatorKeyService(api_keys)
    tenants = TenantService(
        database,
        policy,
        outbox,
        clock,
        issuers,
        email_subjects=settings.email_subjects,
    )
    grants = GrantService(database, policy, outbox, clock)
    members = MemberService(database, issuers, policy.catalog, clock)
    invitations = InvitationService(database, issuers, policy.catalog, clock, None)
    erasure = PersonErasure(database, known, members, invitations, clock)
    return OperatorServices(
        api_keys=api_keys,
        operator_keys=operator_keys,
        key_import=KeyImportService(database, known, clock, imported, settings.credentials.proxies),
        tenants=tenants,
        directory=TenantDirectory(database, policy.catalog, operator_keys, clock),
        grants=grants,
        links=CustomerLinks(database, policy, outbox, clock),
        ledger=OperatorLedger(database, policy, clock),
        confirmations=OwnerConfirmations(database, outbox, policy.catalog, clock),
        webhooks=WebhookOperations(
            OutboundWebhooks(database, outbox, WebhookClient(), clock, policy.catalog.webhooks)
        ),
        restore=Restore(database, api_keys, members, tenants, grants, invitations, erasure, clock),
        erasure=erasure,
    )


async def read_disabled(settings: Settings, conninfo: str) -> list[EndpointState]:
    """Return the webhook endpoints that are disabled. Raises `DatabaseUnavailableError` and
    `psycopg.Error`.
    """
    async with Database(conninfo, 1) as database:
        states = await operator_services(settings, database).webhooks.webhooks.states()
    return [state for state in states if state.disabled_at is not None]
