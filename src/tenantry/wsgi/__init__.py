"""In-process authentication for WSGI applications that share the service's database; `django` and
`flask` add to it.
"""

from tenantry.domain.permissions import AccessLevel, Mode, Principal, PrincipalKind
from tenantry.in_process.access_rules import ScopeRule
from tenantry.settings import Settings as AuthenticationSettings
from tenantry.settings import SettingsError
from tenantry.wsgi.middleware import TenantryMiddleware, optional_principal_of, principal_of
from tenantry.wsgi.tenantry import Tenantry

__all__ = [
    "AccessLevel",
    "AuthenticationSettings",
    "Mode",
    "Principal",
    "PrincipalKind",
    "ScopeRule",
    "SettingsError",
    "Tenantry",
    "TenantryMiddleware",
    "optional_principal_of",
    "principal_of",
]
