"""Make the tables and fill them; prints the API keys. ``python -m drf_api_key.seed TENANTS KEYS
PROJECTS``.
"""

import sys
from datetime import timedelta

import django
from django.core.management import call_command
from django.utils import timezone


def main(tenants: int, keys: int, projects: int) -> None:
    """Key n belongs to tenant n modulo ``tenants``; each tenant has so many ``projects``."""
    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    from .models import Project, Tenant, TenantAPIKey  # noqa: PLC0415  # models can be had once Django is set up

    now = timezone.now()
    Tenant.objects.bulk_create(Tenant(id=f"t{n}", name=f"Tenant {n}") for n in range(tenants))
    Project.objects.bulk_create(
        [
            Project(
                id=f"t{tenant}_{n}",
                tenant_id=f"t{tenant}",
                name=f"Project {n}",
                created_at=now - timedelta(minutes=n),
                updated_at=now,
            )
            for tenant in range(tenants)
            for n in range(projects)
        ],
        batch_size=2000,
    )
    records = [TenantAPIKey(name="bench", tenant_id=f"t{n % tenants}") for n in range(keys)]
    tokens = [TenantAPIKey.objects.assign_key(record) for record in records]
    TenantAPIKey.objects.bulk_create(records)
    print("\n".join(tokens))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
