"""In-process authentication for ASGI applications that share the service's database; `fastapi` adds to it."""

from tenantry.asgi.middleware import ScopeRule, TenantryMiddleware, optional_principal_of, principal_of
from tenantry.asgi.tenantry import SchemaMismatchError, Tenantry
from tenantry.domain.permissions import AccessLevel, Mode, Principal, PrincipalKind
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
