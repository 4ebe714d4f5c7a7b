"""The client of a tenantry service: API keys, projects, tenants, members and billing.

`Tenantry` is the synchronous client, `AsyncTenantry` the asynchronous one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tenantry_sdk import errors
from tenantry_sdk._models import (
    ApiKey,
    AuditEvent,
    BillingEvent,
    BillingState,
    Fault,
    HostedSession,
    Limits,
    Member,
    Membership,
    NewApiKey,
    Page,
    Plan,
    Project,
    RevokedKey,
    Tenant,
    TenantAccess,
    Whoami,
)
from tenantry_sdk._request import Response, record_responses
from tenantry_sdk._secret import Secret
from tenantry_sdk._sync._client import Tenantry
from tenantry_sdk._sync._pager import Pager
from tenantry_sdk._token_stores import FileStore, KeyringStore
from tenantry_sdk._tokens import ClientCredentials, RefreshToken, Token, TokenStore
from tenantry_sdk._version import __version__

if TYPE_CHECKING:
    from tenantry_sdk import webhooks
    from tenantry_sdk._async._client import AsyncTenantry
    from tenantry_sdk._async._pager import AsyncPager

__all__ = [
    "ApiKey",
    "AsyncPager",
    "AsyncTenantry",
    "AuditEvent",
    "BillingEvent",
    "BillingState",
    "ClientCredentials",
    "Fault",
    "FileStore",
    "HostedSession",
    "KeyringStore",
    "Limits",
    "Member",
    "Membership",
    "NewApiKey",
    "Page",
    "Pager",
    "Plan",
    "Project",
    "RefreshToken",
    "Response",
    "RevokedKey",
    "Secret",
    "Tenant",
    "TenantAccess",
    "Tenantry",
    "Token",
    "TokenStore",
    "Whoami",
    "__version__",
    "errors",
    "record_responses",
    "webhooks",
]

# Imported on first use, because many programs do not need them.
_LAZY: Final = {
    "webhooks": "tenantry_sdk.webhooks",
    "AsyncTenantry": "tenantry_sdk._async._client",
    "AsyncPager": "tenantry_sdk._async._pager",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
