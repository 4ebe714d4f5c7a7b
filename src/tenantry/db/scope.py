"""Whose rows a transaction is about, and the database role that it is carried out in.

The roles themselves, and what each may, are in `tenantry.db.roles`.
"""

from typing import Final, NamedTuple

API: Final = "tenantry_api"
PEOPLE: Final = "tenantry_people"
BATCH: Final = "tenantry_batch"
READ: Final = "tenantry_read"
TENANT: Final = "tenantry.tenant_id"
"""The setting of a transaction that names the tenant whose rows it meets."""


class Scope(NamedTuple):
    """What a transaction may meet: a role, and for the role of the API the tenant."""

    role: str
    tenant_id: str = ""


def of_tenant(tenant_id: str) -> Scope:
    """One tenant's rows: the database shows no others, and takes none in."""
    return Scope(API, tenant_id)


OF_PEOPLE: Final = Scope(PEOPLE)
"""What belongs to a person rather than to a tenant: sessions, and which tenants the person belongs to."""
ACROSS_TENANTS: Final = Scope(BATCH)
"""Many tenants' rows in one statement: batches, jobs, and the operator's commands."""
