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
    PaymentReversalEvent,
    TenantEvent,
)
from tenantry_sdk._models import (
    Access,
    AccessEnding,
    ApiKey,
    AuditEvent,
    BillingAddress,
    BillingEvent,
    BillingExplanation,
    BillingState,
    BillingStateDetails,
    Consumption,
    CurrencyAmount,
    CustomerMove,
    Entitlement,
    FieldComparison,
    Grant,
    Health,
    HostedSession,
    ImportedKey,
    ImportedKeyCounts,
    ImportPreview,
    ImportResult,
    Invitation,
    InvitationLink,
    Limits,
    ManagedTenant,
    Member,
    Membership,
    NewApiKey,
    PaymentReversal,
    Plan,
    PlanPrice,
    Project,
    QueuedEvents,
    Rejection,
    RevokedKey,
    RoleDefinition,
    SubscriptionState,
    Tenant,
    TenantAccess,
    TenantExport,
    TenantMatch,
    UnplacedEvent,
    UsageCount,
    UsageReport,
    WebhookEndpointStatus,
    WebhookTest,
    Whoami,
)
from tenantry_sdk._options import CallOptions
from tenantry_sdk._response import Model, Response, record_responses
from tenantry_sdk._retry import Backoff
from tenantry_sdk._secret import Secret
from tenantry_sdk._sync._client import Tenantry
from tenantry_sdk._sync._events import EventFollower, EventPager
from tenantry_sdk._sync._pager import Page, Pager
from tenantry_sdk._sync._principal import Principal
from tenantry_sdk._token_stores import FileStore, KeyringStore
from tenantry_sdk._tokens import ClientCredentials, RefreshToken, Token, TokenStore
from tenantry_sdk._version import __version__
from tenantry_sdk.errors import Fault

if TYPE_CHECKING:
    from tenantry_sdk import frameworks, oauth, types, webhooks
    from tenantry_sdk._async._client import AsyncTenantry
    from tenantry_sdk._async._events import AsyncEventFollower, AsyncEventPager
    from tenantry_sdk._async._pager import AsyncPage, AsyncPager
    from tenantry_sdk._async._principal import AsyncPrincipal

__all__ = [
    "Access",
    "AccessEnding",
    "ApiKey",
    "ApiKeyEvent",
    "AsyncEventFollower",
    "AsyncEventPager",
    "AsyncPage",
    "AsyncPager",
    "AsyncPrincipal",
    "AsyncTenantry",
    "AuditEvent",
    "AuditTrailEvent",
    "Backoff",
    "BillingAddress",
    "BillingEvent",
    "BillingExplanation",
    "BillingState",
    "BillingStateDetails",
    "CallOptions",
    "ChangeEvent",
    "ClientCredentials",
    "Consumption",
    "CurrencyAmount",
    "CustomerMove",
    "Entitlement",
    "EntitlementEvent",
    "EventFollower",
    "EventPage",
    "EventPager",
    "Fault",
    "FieldComparison",
    "FileStore",
    "Grant",
    "GrantEvent",
    "Health",
    "HostedSession",
    "ImportPreview",
    "ImportResult",
    "ImportedKey",
    "ImportedKeyCounts",
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
    "PaymentReversal",
    "PaymentReversalEvent",
    "Plan",
    "PlanPrice",
    "Principal",
    "Project",
    "QueuedEvents",
    "RefreshToken",
    "Rejection",
    "Response",
    "RevokedKey",
    "RoleDefinition",
    "Secret",
    "SubscriptionState",
    "Tenant",
    "TenantAccess",
    "TenantEvent",
    "TenantExport",
    "TenantMatch",
    "Tenantry",
    "Token",
    "TokenStore",
    "UnplacedEvent",
    "UsageCount",
    "UsageReport",
    "WebhookEndpointStatus",
    "WebhookTest",
    "Whoami",
    "__version__",
    "errors",
    "frameworks",
    "oauth",
    "record_responses",
    "types",
    "webhooks",
]

# Imported on first use, because many programs do not need them.
_LAZY: Final = {
    "frameworks": "tenantry_sdk.frameworks",
    "oauth": "tenantry_sdk.oauth",
    "types": "tenantry_sdk.types",
    "webhooks": "tenantry_sdk.webhooks",
    "AsyncTenantry": "tenantry_sdk._async._client",
    "AsyncEventFollower": "tenantry_sdk._async._events",
    "AsyncEventPager": "tenantry_sdk._async._events",
    "AsyncPage": "tenantry_sdk._async._pager",
    "AsyncPager": "tenantry_sdk._async._pager",
    "AsyncPrincipal": "tenantry_sdk._async._principal",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
