"""In-process authentication for ASGI applications that share the service's database; `fastapi` adds
to it.
"""

from tenantry.asgi.middleware import TenantryAsgiMiddleware, optional_principal_of, principal_of
from tenantry.domain.permissions import AccessLevel, Mode, PrincipalKind, RequestPrincipal
from tenantry.in_process.access_rules import ScopeRule
from tenantry.in_process.principals import AsgiPrincipal
from tenantry.in_process.tenantry import AsgiAuthenticator, SchemaMismatchError
from tenantry.settings import Settings as AuthenticationSettings
from tenantry.settings import SettingsError

__all__ = [
    "AccessLevel",
    "AsgiAuthenticator",
    "AsgiPrincipal",
    "AuthenticationSettings",
    "Mode",
    "PrincipalKind",
    "RequestPrincipal",
    "SchemaMismatchError",
    "ScopeRule",
    "SettingsError",
    "TenantryAsgiMiddleware",
    "optional_principal_of",
    "principal_of",
]
