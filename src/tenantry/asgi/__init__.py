"""In-process authentication for ASGI applications that share the service's database; `fastapi` adds
to it.
"""

from tenantry.asgi.middleware import TenantryMiddleware, optional_principal_of, principal_of
from tenantry.domain.permissions import AccessLevel, Mode, Principal, PrincipalKind
from tenantry.in_process.access_rules import ScopeRule
from tenantry.in_process.tenantry import SchemaMismatchError, Tenantry
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
