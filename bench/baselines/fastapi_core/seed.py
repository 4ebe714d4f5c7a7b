"""Make the tables and fill them; prints the API keys. ``python -m fastapi_core.seed TENANTS KEYS PROJECTS``."""

import asyncio
import hashlib
import secrets
import sys
from datetime import UTC, datetime, timedelta

from sqlalchemy import insert

from . import database
from .database import api_keys, engine, metadata


async def main(tenants: int, keys: int, projects: int) -> None:
    """Key n belongs to tenant n modulo ``tenants``; each tenant has so many ``projects``."""
    now = datetime.now(UTC)
    tokens = [f"sk_{secrets.token_urlsafe(32)}" for _ in range(keys)]
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(
            insert(database.tenants),
            [{"id": f"t{n}", "name": f"Tenant {n}", "stripe_customer_id": f"cus_{n}"} for n in range(tenants)],
        )
        await connection.execute(
            insert(api_keys),
            [
                {"id": n, "tenant_id": f"t{n % tenants}", "digest": hashlib.sha256(token.encode()).hexdigest()}
                for n, token in enumerate(tokens)
            ],
        )
        await connection.execute(
            insert(database.projects),
            [
                {
                    "id": f"t{tenant}_{n}",
                    "tenant_id": f"t{tenant}",
                    "name": f"Project {n}",
                    "created_at": now - timedelta(minutes=n),
                    "updated_at": now,
                }
                for tenant in range(tenants)
                for n in range(projects)
            ],
        )
    await engine.dispose()
    print("\n".join(tokens))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
