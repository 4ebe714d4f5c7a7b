"""The export of a tenant: all its data in one document."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.accounts import invitations_store as invitations
from tenantry.accounts import members_store as members
from tenantry.accounts import projects_store as projects
from tenantry.audit import trail as audit
from tenantry.auth import api_keys_store, entitlements_store, usage_store, user_profiles_store
from tenantry.auth.entitlements_store import UsageRecord
from tenantry.billing import ledger_store as billing
from tenantry.billing.ledger_queries import view
from tenantry.billing.ledger_queries_store import read_all_entries
from tenantry.common.encoding import doc
from tenantry.db.connection import Connection
from tenantry.db.tenants_store import TenantRow
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.audit import AuditEvent
from tenantry.domain.billing.explanation import BillingEventView
from tenantry.domain.invitations import Invitation
from tenantry.domain.permissions import Mode
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import Project, Tenant, to_tenant
from tenantry.domain.usage import UsageCount


class TenantExport(msgspec.Struct, frozen=True, rename="camel"):
    """All data of a tenant, except key digests and raw event bodies."""

    tenant: Annotated[Tenant, doc("The tenant's record.")]
    owner_email: Annotated[str, doc("The address that receives billing mail.", "ada@acme.example")]
    owner_email_verified: Annotated[
        bool,
        doc(
            "Whether the owner's address is verified; only then does it receive security notices.",
            example=True,
        ),
    ]
    suspended: Annotated[bool, doc("Whether the tenant's credentials are refused.", example=False)]
    customers: Annotated[
        list[str],
        doc("The payment provider's customers that are linked to it.", ["cus_Rk2pXw7Lm3"]),
    ]
    members: Annotated[list[dict[str, Any]], doc("Users and their roles, including removed ones.")]
    api_keys: Annotated[list[ApiKey], doc("All keys, without secrets.")]
    audit_events: Annotated[list[AuditEvent], doc("The whole audit trail.")]
    projects: Annotated[list[Project], doc("All projects of both modes.")]
    billing_events: Annotated[list[BillingEventView], doc("The whole ledger.")]
    usage: Annotated[
        list[UsageRecord] | UnsetType,
        doc(
            "What it used of metered features, for 400 days after each period; absent if it used none."
        ),
    ] = UNSET
    requests: Annotated[
        list[UsageCount] | UnsetType,
        doc("How many requests each API key sent each day, for 400 days; absent without any."),
    ] = UNSET
    invitations: Annotated[
        list[Invitation] | UnsetType,
        doc("Invitations by mail, until 30 days after their end; absent if there are none."),
    ] = UNSET
    users: Annotated[
        list[dict[str, Any]] | UnsetType,
        doc("Name, verified address and last visit of its users, for a year; absent without any."),
    ] = UNSET


async def read_export(
    connection: Connection, found: TenantRow, catalog: Catalog, now: datetime
) -> TenantExport:
    """Read the data of a tenant, ended ones included."""
    tenant_id = found.record.id
    return TenantExport(
        tenant=to_tenant(found.record, catalog, now),
        owner_email=found.owner_email,
        owner_email_verified=found.owner_address.is_verified,
        suspended=found.suspended,
        customers=await billing.customers_of(connection, tenant_id),
        members=await members.read_all(connection, tenant_id),
        api_keys=await api_keys_store.read_all(connection, tenant_id, now),
        audit_events=await audit.read_all(connection, tenant_id),
        projects=[
            *await projects.read_all(connection, tenant_id, Mode.LIVE),
            *await projects.read_all(connection, tenant_id, Mode.TEST),
        ],
        billing_events=[view(row) for row in await read_all_entries(connection, tenant_id)],
        usage=await entitlements_store.read_all(connection, tenant_id) or UNSET,
        requests=await usage_store.read_all(connection, tenant_id, now) or UNSET,
        invitations=await invitations.read_all(connection, tenant_id, now) or UNSET,
        users=await user_profiles_store.read_all(connection, tenant_id) or UNSET,
    )
