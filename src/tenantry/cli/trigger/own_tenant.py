"""A tenant of their own for stories and chaos, so that nobody else's is harmed."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from tenantry.cli.exit_codes import NOT_FOUND, fail
from tenantry.cli.trigger.run import Tools
from tenantry.local.service import Sight


@asynccontextmanager
async def tenant_for(tools: Tools, kind: str) -> AsyncIterator[tuple[str, Sight]]:
    """The tenant that was named or else, for the operator, a new one, which is ended after the block.

    Without either it is the one of the API key. Ends the command where there is no such tenant.
    """
    if tools.tenant is None and tools.reader.is_operator:
        tenant_id = f"{kind}-{secrets.token_hex(4)}"
        await tools.reader.make_tenant(tenant_id, tenant_id.capitalize(), f"owner@{tenant_id}.example")
        try:
            yield tenant_id, await tools.reader.look(tenant_id)
        finally:
            await tools.reader.end_tenant(tenant_id)
        return
    tenant_id = await tools.tenant_id()
    sight = await tools.reader.look(tenant_id)
    if sight.is_missing:
        fail(f"There is no tenant {tenant_id}.", NOT_FOUND)
    if sight.tenant is None:
        click.echo(f"The tenant cannot be shown: {sight.trouble}.", err=True)
    yield tenant_id, sight
