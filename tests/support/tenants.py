"""Tenants, written directly to the database."""

from datetime import datetime

from tenantry.accounts import tenants_store as tenants
from tenantry.db.connection import Connection
from tenantry.domain.owner_mails import OwnerAddress
from tests.support.guarded_events import written_by_test


async def add_acme(connection: Connection, now: datetime) -> None:
    """The tenant acme, as the operator would make it."""
    address = OwnerAddress("owner@acme.example", "owner@acme.example")
    await written_by_test(connection)
    await tenants.insert(connection, "acme", "Acme", "usr_1", address, now)
