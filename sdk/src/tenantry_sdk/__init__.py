"""tenantry: API keys, projects, tenants and billing of a tenantry service, from Python.

`Tenantry` is the client, `AsyncTenantry` the same for asynchronous code.
"""

from tenantry_sdk import errors, webhooks
from tenantry_sdk._async._client import AsyncTenantry
from tenantry_sdk._async._pager import AsyncPager
from tenantry_sdk._models import (
    ApiKey,
    AuditEvent,
    BillingEvent,
    BillingState,
    Fault,
    HostedSession,
    Limits,
    Member,
    NewApiKey,
    Page,
    Plan,
    Project,
    RevokedKey,
    Tenant,
    Whoami,
)
from tenantry_sdk._request import Response, record_responses
from tenantry_sdk._secret import Secret
from tenantry_sdk._store import FileStore, KeyringStore, Token, TokenStore
from tenantry_sdk._sync._client import Tenantry
from tenantry_sdk._sync._pager import Pager
from tenantry_sdk._tokens import ClientCredentials, RefreshToken
from tenantry_sdk._version import __version__

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
    "Tenantry",
    "Token",
    "TokenStore",
    "Whoami",
    "__version__",
    "errors",
    "record_responses",
    "webhooks",
]
