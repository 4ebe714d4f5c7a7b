"""A tenant of their own for stories and chaos, so that nobody else's is harmed."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from tenantry.cli.exit_codes import NOT_FOUND, fail
from tenantry_devkit.local.samples import customer_of
from tenantry_devkit.local.service import Sight
from tenantry_devkit.trigger.run import Tools


@asynccontextmanager
async def tenant_for(tools: Tools, kind: str) -> AsyncIterator[tuple[str, Sight]]:
    """The tenant that was named or else, for the operator, a new one, which is ended after the block.

    A usage error without either. Ends the command where there is no such tenant.
    """
    if tools.tenant is None and tools.reader.is_operator:
        tenant_id = f"{kind}-{secrets.token_hex(4)}"
        await tools.reader.make_tenant(
            tenant_id, tenant_id.capitalize(), f"owner@{tenant_id}.example", customer_of(tenant_id)
        )
        try:
            yield tenant_id, await tools.reader.look(tenant_id)
        finally:
            await tools.reader.end_tenant(tenant_id)
        return
    if tools.tenant is None:
        raise click.UsageError(
            f"Say which tenant: --tenant ORG. A {kind} changes it. (With OPERATOR_TOKEN it has a tenant of its own.)"
        )
    tenant_id = tools.tenant
    sight = await tools.reader.look(tenant_id)
    if sight.is_missing:
        fail(f"There is no tenant {tenant_id}.", NOT_FOUND)
    if sight.tenant is None:
        click.echo(f"The tenant cannot be shown: {sight.trouble}.", err=True)
    yield tenant_id, sight
