"""Read the service: a tenant's state, its ledger, and the mails it sent."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Final, TypeVar

import httpx2
import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.common.secret import Secret
from tenantry.domain.names import display_text
from tenantry.domain.tenants import Tenant

TENANTS_PATH: Final = "/api/v1/tenants"
EVENTS_PATH: Final = "/api/v1/billing/events"
_WHOAMI_PATH: Final = "/api/v1/auth/whoami"
_MAIL_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_PER_PAGE: Final = 100

T = TypeVar("T")


class InboxMessage(msgspec.Struct, frozen=True):
    id: str
    to: str
    subject: str
    date: datetime
    text: str


class InboxPoller:
    """Finds new mail in the demo's inbox at ``base``; an inbox that cannot be reached counts as empty."""

    def __init__(self, client: httpx2.AsyncClient, base: str) -> None:
        self._client = client
        self._url = f"{base}/inbox/messages.json"
        self._known: set[str] = set()

    async def begin(self) -> None:
        """Mark all present messages as known."""
        self._known |= {message.id for message in await self._messages()}

    async def new_messages(self, tenant_name: str, *, count: int) -> list[InboxMessage]:
        """Wait up to ten seconds for ``count`` new messages that name the tenant; return them oldest first."""
        found: list[InboxMessage] = []
        quoted = f'"{display_text(tenant_name)}"'
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAIL_SECONDS):
                while len(found) < count:
                    new = [message for message in await self._messages() if message.id not in self._known]
                    self._known |= {message.id for message in new}
                    found += sorted((each for each in new if quoted in each.text), key=lambda message: message.id)
                    if len(found) < count:
                        await asyncio.sleep(_POLL_SECONDS)
        return found

    async def _messages(self) -> list[InboxMessage]:
        with contextlib.suppress(httpx2.HTTPError, *NOT_JSON):
            response = await self._client.get(self._url)
            return msgspec.json.decode(response.content, type=list[InboxMessage])
        return []


class ServiceUnreachableError(Exception):
    """The service does not respond, or sends an unusable response."""


class CredentialRejectedError(Exception):
    """The service rejects the API key or the operator's token."""


class Credentials(msgspec.Struct, frozen=True):
    """The API key of one tenant, and the operator's token for all."""

    api_key: Secret | None = None
    operator: Secret | None = None


class TenantLedgerEntry(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    type: str
    created: datetime
    outcome: str
    reason: str


class TenantView(msgspec.Struct, frozen=True):
    """A tenant's record, if the credentials can read it, and the time of its newest event. ``problem`` says why not."""

    tenant: Tenant | None = None
    newest: datetime | None = None
    problem: str = ""
    is_missing: bool = False


class _Page(msgspec.Struct, rename="camel"):
    data: list[TenantLedgerEntry]
    next_cursor: str | None


class _Export(msgspec.Struct, rename="camel"):
    tenant: Tenant
    billing_events: list[TenantLedgerEntry]


class _Whoami(msgspec.Struct, rename="camel"):
    org_id: str | None


class ServiceReader:
    """Reads tenants with the tenant's own API key, or else with the operator's token.

    The methods raise `ServiceUnreachableError` and `CredentialRejectedError`.
    """

    def __init__(self, client: httpx2.AsyncClient, base: str, credentials: Credentials) -> None:
        self._client = client
        self._base = base
        self._credentials = credentials
        self._own: str | None = None

    @property
    def is_operator(self) -> bool:
        return self._credentials.operator is not None

    async def own_tenant(self) -> str | None:
        """Return the id of the API key's tenant; None without a key."""
        key = self._credentials.api_key
        if key is not None and self._own is None:
            self._own = self._decoded(await self._request("GET", _WHOAMI_PATH, key), _Whoami).org_id
        return self._own

    async def tenant_view(self, tenant_id: str) -> TenantView:
        key = await self._key_for(tenant_id)
        if key is not None:
            response = await self._request("GET", f"{TENANTS_PATH}/{tenant_id}", key)
            if response.status_code == HTTPStatus.FORBIDDEN:
                return TenantView(problem="the API key lacks the scope tenants:read")
            ledger = await self._request("GET", EVENTS_PATH, key, limit=1)
            newest = self._decoded(ledger, _Page).data if ledger.is_success else []
            return TenantView(self._decoded(response, Tenant), newest[0].created if newest else None)
        if self._credentials.operator is None:
            return TenantView(problem="TENANTRY_API_KEY is not a key of this tenant, and OPERATOR_TOKEN is not set")
        export = await self._export(tenant_id)
        if export is None:
            return TenantView(problem=f"there is no tenant {tenant_id}", is_missing=True)
        return TenantView(export.tenant, max((entry.created for entry in export.billing_events), default=None))

    async def entry(self, tenant_id: str, event_id: str) -> TenantLedgerEntry | None:
        """Return the ledger entry of an event; None if there is none, or the credentials cannot read it."""
        if key := await self._key_for(tenant_id):
            response = await self._request("GET", f"{EVENTS_PATH}/{event_id}", key)
            return self._decoded(response, TenantLedgerEntry) if response.is_success else None
        return next((entry for entry in await self.ledger(tenant_id) or [] if entry.id == event_id), None)

    async def ledger(self, tenant_id: str) -> Sequence[TenantLedgerEntry] | None:
        """Return a tenant's whole ledger, unordered; None if the credentials cannot read it."""
        key = await self._key_for(tenant_id)
        if key is None:
            export = await self._export(tenant_id) if self._credentials.operator else None
            return export.billing_events if export else None
        entries: list[TenantLedgerEntry] = []
        page = _Page([], "")
        while page.next_cursor is not None:
            cursor = {"cursor": page.next_cursor} if page.next_cursor else {}
            response = await self._request("GET", EVENTS_PATH, key, limit=_PER_PAGE, **cursor)
            if response.status_code == HTTPStatus.FORBIDDEN:
                return None
            page = self._decoded(response, _Page)
            entries += page.data
        return entries

    async def create_tenant(self, tenant_id: str, name: str, owner_email: str, customer: str | None = None) -> None:
        body = {"name": name, "ownerEmail": owner_email, **({"stripeCustomerId": customer} if customer else {})}
        response = await self._request("PUT", f"{TENANTS_PATH}/{tenant_id}", self._credentials.operator, body)
        self._decoded(response, Tenant)

    async def end_tenant(self, tenant_id: str) -> None:
        await self._request("DELETE", f"{TENANTS_PATH}/{tenant_id}", self._credentials.operator)

    async def _key_for(self, tenant_id: str) -> Secret | None:
        return self._credentials.api_key if await self.own_tenant() == tenant_id else None

    async def _export(self, tenant_id: str) -> _Export | None:
        response = await self._request("GET", f"{TENANTS_PATH}/{tenant_id}/export", self._credentials.operator)
        return None if response.status_code == HTTPStatus.NOT_FOUND else self._decoded(response, _Export)

    async def _request(
        self, method: str, path: str, credential: Secret | None, body: object = None, **query: str | int
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {credential.reveal()}"} if credential else {}
        try:
            response = await self._client.request(method, self._base + path, json=body, headers=headers, params=query)
        except httpx2.HTTPError as error:
            raise ServiceUnreachableError(f"{self._base} does not answer ({type(error).__name__}).") from None
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            name = "OPERATOR_TOKEN" if credential is self._credentials.operator else "the API key"
            raise CredentialRejectedError(f"{self._base} does not accept {name}.")
        if response.is_server_error:
            raise ServiceUnreachableError(f"{self._base} answers {response.status_code} to {method} {path}.")
        return response

    def _decoded(self, response: httpx2.Response, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except NOT_JSON:
            path, status = response.request.url.path, response.status_code
            raise ServiceUnreachableError(f"{self._base} sends an unusable answer to {path} ({status}).") from None
