"""The client of a tenantry service: API keys, projects, tenants, members and billing.

`Tenantry` is the synchronous client, `AsyncTenantry` the asynchronous one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tenantry_sdk import errors
from tenantry_sdk._events import (
    ApiKeyEvent,
    AuditTrailEvent,
    ChangeEvent,
    EntitlementEvent,
    EventPage,
    GrantEvent,
    InvitationEvent,
    MemberEvent,
    TenantEvent,
)
from tenantry_sdk._models import (
    ApiKey,
    AuditEvent,
    BillingAddress,
    BillingEvent,
    BillingState,
    Consumption,
    Entitlement,
    Grant,
    Health,
    HostedSession,
    ImportedKey,
    ImportResult,
    Invitation,
    InvitationLink,
    Limits,
    ManagedTenant,
    Member,
    Membership,
    NewApiKey,
    Plan,
    PlanPrice,
    Principal,
    Project,
    RevokedKey,
    RoleDefinition,
    Tenant,
    TenantAccess,
    TenantExport,
    UnplacedEvent,
    UsageCount,
    UsageReport,
    Whoami,
)
from tenantry_sdk._options import CallOptions
from tenantry_sdk._response import Model, Response, record_responses
from tenantry_sdk._retry import Backoff
from tenantry_sdk._secret import Secret
from tenantry_sdk._sync._client import Tenantry
from tenantry_sdk._sync._events import EventFollower
from tenantry_sdk._sync._pager import Page, Pager
from tenantry_sdk._token_stores import FileStore, KeyringStore
from tenantry_sdk._tokens import ClientCredentials, RefreshToken, Token, TokenStore
from tenantry_sdk._version import __version__
from tenantry_sdk.errors import Fault

if TYPE_CHECKING:
    from tenantry_sdk import oauth, types, webhooks
    from tenantry_sdk._async._client import AsyncTenantry
    from tenantry_sdk._async._events import AsyncEventFollower
    from tenantry_sdk._async._pager import AsyncPage, AsyncPager

__all__ = [
    "ApiKey",
    "ApiKeyEvent",
    "AsyncEventFollower",
    "AsyncPage",
    "AsyncPager",
    "AsyncTenantry",
    "AuditEvent",
    "AuditTrailEvent",
    "Backoff",
    "BillingAddress",
    "BillingEvent",
    "BillingState",
    "CallOptions",
    "ChangeEvent",
    "ClientCredentials",
    "Consumption",
    "Entitlement",
    "EntitlementEvent",
    "EventFollower",
    "EventPage",
    "Fault",
    "FileStore",
    "Grant",
    "GrantEvent",
    "Health",
    "HostedSession",
    "ImportResult",
    "ImportedKey",
    "Invitation",
    "InvitationEvent",
    "InvitationLink",
    "KeyringStore",
    "Limits",
    "ManagedTenant",
    "Member",
    "MemberEvent",
    "Membership",
    "Model",
    "NewApiKey",
    "Page",
    "Pager",
    "Plan",
    "PlanPrice",
    "Principal",
    "Project",
    "RefreshToken",
    "Response",
    "RevokedKey",
    "RoleDefinition",
    "Secret",
    "Tenant",
    "TenantAccess",
    "TenantEvent",
    "TenantExport",
    "Tenantry",
    "Token",
    "TokenStore",
    "UnplacedEvent",
    "UsageCount",
    "UsageReport",
    "Whoami",
    "__version__",
    "errors",
    "oauth",
    "record_responses",
    "types",
    "webhooks",
]

# Imported on first use, because many programs do not need them.
_LAZY: Final = {
    "oauth": "tenantry_sdk.oauth",
    "types": "tenantry_sdk.types",
    "webhooks": "tenantry_sdk.webhooks",
    "AsyncTenantry": "tenantry_sdk._async._client",
    "AsyncEventFollower": "tenantry_sdk._async._events",
    "AsyncPage": "tenantry_sdk._async._pager",
    "AsyncPager": "tenantry_sdk._async._pager",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
