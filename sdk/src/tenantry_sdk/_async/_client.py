"""The client."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tenantry_sdk._async._engine import AsyncCredentials, AsyncEngine
from tenantry_sdk._async._http import AsyncHttp
from tenantry_sdk._async._resources import (
    AsyncApiKeys,
    AsyncAuditEvents,
    AsyncAuth,
    AsyncBilling,
    AsyncMembers,
    AsyncMemberships,
    AsyncPlans,
    AsyncProjects,
    AsyncTenants,
)
from tenantry_sdk._async._token_renewal import AsyncFixedCredential, AsyncTokenRenewer
from tenantry_sdk._request import Call, Content, Response, visible
from tenantry_sdk._retry import BACKOFF, Backoff, Patience
from tenantry_sdk._secret import Secret
from tenantry_sdk._settings import base_url_of, credential_of
from tenantry_sdk._tokens import AsyncTokenSource
from tenantry_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx2
    from typing_extensions import Self


class AsyncTenantry:
    """A client of one service with one credential, for asynchronous code (asyncio and trio).

    ``api_key`` is the credential, or ``tokens`` says where access tokens come from: a `RefreshToken`,
    `ClientCredentials`, or a function of the caller's. Without either, ``TENANTRY_API_KEY`` is. ``base_url`` is
    ``TENANTRY_BASE_URL``'s, or http://127.0.0.1:3001. ``organization`` says which one a user acts for, of several.

    A call takes ``timeout`` seconds at most, waits and further attempts included, and each attempt
    ``attempt_timeout``. Reads, deletes and creates are attempted ``attempts`` times where an answer is lost, or is
    408, 429, 502, 503 or 504; the rest once. ``http_client`` is for proxies, certificates and tests;a caller that
    passes one closes it. ``allow_http`` lets a credential go to another machine unencrypted.

    Raises `ConfigurationError`. It holds connections: use it in ``async with``, or call `aclose`.
    """

    def __init__(
        self,
        api_key: str | Secret | None = None,
        *,
        base_url: str | None = None,
        tokens: AsyncTokenSource | None = None,
        organization: str | None = None,
        timeout: float = 30.0,
        attempt_timeout: float = 10.0,
        attempts: int = 4,
        http_client: httpx2.AsyncClient | None = None,
        allow_http: bool = False,
        _backoff: Backoff = BACKOFF,  # private: for tests
    ) -> None:
        if tokens is not None and api_key is not None:
            raise ConfigurationError("Pass api_key= or tokens=, not both.")
        patience = Patience(timeout, attempt_timeout, attempts, _backoff)
        address = base_url_of(base_url, allow_http=allow_http)
        http = AsyncHttp(http_client)
        credentials: AsyncCredentials = (
            AsyncFixedCredential(credential_of(api_key)) if tokens is None else AsyncTokenRenewer(tokens, http)
        )
        self._engine = AsyncEngine(http, address, credentials, patience, organization)
        self.api_keys = AsyncApiKeys(self._engine)
        self.projects = AsyncProjects(self._engine)
        self.tenants = AsyncTenants(self._engine)
        self.members = AsyncMembers(self._engine)
        self.memberships = AsyncMemberships(self._engine)
        self.plans = AsyncPlans(self._engine)
        self.billing = AsyncBilling(self._engine)
        self.auth = AsyncAuth(self._engine)
        self.audit_events = AsyncAuditEvents(self._engine)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
        idempotency_key: str | None = None,
    ) -> Response:
        """Any call at all, with its answer as it came: ``path`` begins with ``/api/v1/``, ``body`` is JSON.

        It is sent again as other calls are, a POST only with an ``idempotency_key``, and raises the same errors.
        """
        if not path.startswith("/"):
            raise ValueError("path has to begin with /")
        content = None if body is None else Content(body)
        key = None if idempotency_key is None else visible(idempotency_key, "idempotency_key")
        return await self._engine.send(Call(method, path, query or {}, content, key))

    async def aclose(self) -> None:
        """Wait for a token that is being renewed, and close the connections."""
        await self._engine.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncTenantry at {self._engine.base_url}>"
