"""Authentication in an application's own process: no request to the service, the same answers.

For any ASGI application that shares the service's database. `tenantry.asgi.fastapi` has what FastAPI adds.
"""

from tenantry.asgi.middleware import ScopeRule, TenantryMiddleware, optional_principal_of, principal_of
from tenantry.asgi.tenantry import SchemaMismatchError, Tenantry
from tenantry.domain.access import AccessLevel, Mode, Principal, PrincipalKind
from tenantry.settings import Settings as AuthenticationSettings
from tenantry.settings import SettingsError

__all__ = [
    "AccessLevel",
    "AuthenticationSettings",
    "Mode",
    "Principal",
    "PrincipalKind",
    "SchemaMismatchError",
    "ScopeRule",
    "SettingsError",
    "Tenantry",
    "TenantryMiddleware",
    "optional_principal_of",
    "principal_of",
]
