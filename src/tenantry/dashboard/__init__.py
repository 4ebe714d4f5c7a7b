"""The dashboard: the pages that a tenant's people use. Made by the server, complete without script."""

from tenantry.dashboard.routes import Dashboard

__all__ = ["Dashboard"]
