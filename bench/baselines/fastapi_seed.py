"""Create and fill the tables of a FastAPI app; print the keys: ``python -m fastapi_seed APP TENANTS
KEYS PROJECTS``.

Key n belongs to tenant n modulo ``TENANTS``.
"""

import asyncio
import hashlib
import secrets
import sys
from datetime import UTC, datetime, timedelta
from importlib import import_module


async def main(app: str, tenants: int, keys: int, projects: int) -> None:
    """Create the tables of ``<app>.models``, in the database of ``<app>.database``."""
    engine = import_module(f"{app}.database").engine
    metadata = import_module(f"{app}.models").metadata
    now = datetime.now(UTC)
    tokens = [f"sk_{secrets.token_urlsafe(32)}" for _ in range(keys)]
    rows = {
        "tenants": [
            {"id": f"t{n}", "name": f"Tenant {n}", "stripe_customer_id": f"cus_{n}"}
            for n in range(tenants)
        ],
        "api_keys": [
            {
                "id": n,
                "tenant_id": f"t{n % tenants}",
                "digest": hashlib.sha256(token.encode()).hexdigest(),
            }
            for n, token in enumerate(tokens)
        ],
        "projects": [
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
    }
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        for table, values in rows.items():
            await connection.execute(metadata.tables[table].insert(), values)
    await engine.dispose()
    print("\n".join(tokens))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
