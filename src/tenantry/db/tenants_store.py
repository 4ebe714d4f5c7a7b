"""The row of a tenant, which every package may read."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.access import is_subscribed
from tenantry.domain.errors import NotFoundError
from tenantry.domain.issuers import Issuers
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import ManagedTenant, TenantRecord, to_managed_tenant

TENANT_COLUMNS: Final = (
    "id, name, plan, subscription_status, current_period_end, cancel_at_period_end, cancel_at, ends_at, seats, "
    "access::text, stripe_customer_id, owner_id, created_at, updated_at, time_zone"
)
"""The fields of `TenantRecord`."""
_RECORD: Final = len(TenantRecord.__struct_fields__)
_SELECT: Final = """
SELECT id, name, plan, subscription_status, current_period_end, cancel_at_period_end, cancel_at, ends_at, seats,
       access::text, stripe_customer_id, owner_id, created_at, updated_at, time_zone,
       owner_email, owner_email_follows, suspension, deleted_at IS NOT NULL,
       verified_email, folds->''->'state'->>'provider_status', leaves_key_mails
  FROM tenants
"""
FIND: Final = f"{_SELECT} WHERE id = %s"
FIND_AND_LOCK: Final = f"{FIND} FOR NO KEY UPDATE"
_FIND_SEVERAL: Final = f"{_SELECT} WHERE id = ANY (%s) AND deleted_at IS NULL"


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant's record with the columns that it omits."""

    record: TenantRecord
    owner_email: str
    owner_email_follows: bool  # whether the address follows the identity provider's
    suspension: str | None  # its reason, which may be empty; None while it is not suspended
    deleted: bool
    verified_email: str  # the owner address that was verified last; see `OwnerAddress`
    # what the subscription events last gave; None with ``SUBSCRIPTIONS=each``
    provider_status: str | None
    leaves_key_mails: bool

    @property
    def owner_address(self) -> OwnerAddress:
        """The owner's address, and whether it is verified."""
        return OwnerAddress(self.owner_email, self.verified_email)

    def managed(self, catalog: Catalog, now: datetime) -> ManagedTenant:
        """Return the record as the operator sees it at ``now``."""
        return to_managed_tenant(
            self.record,
            self.owner_email,
            catalog,
            now,
            suspension=self.suspension,
        )

    @property
    def suspended(self) -> bool:
        """Whether its credentials are refused."""
        return self.suspension is not None

    @property
    def is_subscribed(self) -> bool:
        """Whether the tenant has a subscription that has not ended."""
        return is_subscribed(self.record.subscription_status, self.provider_status)


class TenantUsers(NamedTuple):
    """The users of a tenant: those of the trusted ``issuers``, None for those of every issuer."""

    org_id: str
    issuers: Issuers | None

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of statements about these users: `issuer_values`, and the tenant as
        ``org``.
        """
        return {"org": self.org_id, **issuer_values(self.issuers)}


def issuer_values(issuers: Issuers | None) -> dict[str, Any]:
    """Return the parameters ``issuers`` and ``pattern`` of statements about users of these issuers;
    both are None for users of every issuer.
    """
    if issuers is None:
        return {"issuers": None, "pattern": None}
    return {"issuers": issuers.known, "pattern": issuers.pattern}


async def find_tenant(
    connection: Connection, tenant_id: str, *, lock: bool = False
) -> TenantRow | None:
    """Find a tenant, ended ones included."""
    row = await connection.fetch_row(FIND_AND_LOCK if lock else FIND, (tenant_id,))
    return _row(row) if row else None


async def find_tenants(connection: Connection, tenants: Sequence[str]) -> dict[str, TenantRow]:
    """Find those of these tenants that have not ended, by their ids."""
    rows = await connection.fetch(_FIND_SEVERAL, (list(tenants),))
    return {row[0]: _row(row) for row in rows}


def _row(row: Sequence[Any]) -> TenantRow:
    return TenantRow(TenantRecord(*row[:_RECORD]), *row[_RECORD:])


async def get_tenant(
    connection: Connection, tenant_id: str, *, lock: bool = False, even_ended: bool = False
) -> TenantRow:
    """Read a tenant. Raises `NotFoundError` without one, and for an ended one unless
    ``even_ended``.
    """
    found = await find_tenant(connection, tenant_id, lock=lock)
    if found is None or (found.deleted and not even_ended):
        raise NotFoundError("tenant")
    return found
