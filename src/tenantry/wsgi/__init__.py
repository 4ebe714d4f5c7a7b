"""In-process authentication for WSGI applications that share the service's database; `django` and
`flask` add to it.
"""

from tenantry.domain.permissions import AccessLevel, Mode, PrincipalKind, RequestPrincipal
from tenantry.in_process.access_rules import ScopeRule
from tenantry.in_process.principals import WsgiPrincipal
from tenantry.settings import Settings as AuthenticationSettings
from tenantry.settings import SettingsError
from tenantry.wsgi.middleware import TenantryWsgiMiddleware, optional_principal_of, principal_of
from tenantry.wsgi.tenantry import WsgiAuthenticator

__all__ = [
    "AccessLevel",
    "AuthenticationSettings",
    "Mode",
    "PrincipalKind",
    "RequestPrincipal",
    "ScopeRule",
    "SettingsError",
    "TenantryWsgiMiddleware",
    "WsgiAuthenticator",
    "WsgiPrincipal",
    "optional_principal_of",
    "principal_of",
]
