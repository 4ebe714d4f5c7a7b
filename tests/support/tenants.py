"""Tenants, written directly to the database."""

from datetime import datetime

from tenantry.accounts import tenants_store as tenants
from tenantry.db.connection import Connection


async def add_acme(connection: Connection, now: datetime) -> None:
    """The tenant acme, as the operator would make it."""
    await tenants.insert(
        connection,
        tenant_id="acme",
        name="Acme",
        owner_id="usr_1",
        owner_email="owner@acme.example",
        plan="free",
        now=now,
    )
