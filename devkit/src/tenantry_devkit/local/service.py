"""What the tools read from the service: a tenant's state, its ledger, and the mails it sent."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.common.secret import Secret
from tenantry.domain.names import display_text
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.endpoint import EVENTS_PATH, TENANTS_PATH, WHOAMI_PATH

_PATH: Final = "/inbox/messages.json"
_PATIENCE: Final = 10.0
_PACE: Final = 0.1


class Message(msgspec.Struct, frozen=True):
    """A message in the inbox."""

    id: str
    to: str
    subject: str
    date: datetime


class _InInbox(Message, frozen=True):
    text: str


class InboxWatch:
    """Tells of new mail in the inbox at ``base``; one that does not answer has none."""

    def __init__(self, client: httpx2.AsyncClient, base: str) -> None:
        self._client = client
        self._base = base
        self._known: set[str] = set()

    async def begin(self) -> None:
        """What is there by now is not new."""
        self._known |= {message.id for message in await self._messages()}

    async def fresh(self, about: str, *, wanted: int) -> list[Message]:
        """The new messages that name the tenant ``about``, oldest first, once there are as many as are wanted.

        After ten seconds those that are there; mail is sent by a job of the service's.
        """
        found: list[Message] = []
        quoted = f'"{display_text(about)}"'
        if not wanted:
            return found
        try:
            async with asyncio.timeout(_PATIENCE):
                while len(found) < wanted:
                    new = [message for message in await self._messages() if message.id not in self._known]
                    self._known |= {message.id for message in new}
                    fitting = sorted((each for each in new if quoted in each.text), key=lambda message: message.id)
                    found += [Message(each.id, each.to, each.subject, each.date) for each in fitting]
                    if len(found) < wanted:
                        await asyncio.sleep(_PACE)
        except TimeoutError:
            pass
        return found

    async def _messages(self) -> list[_InInbox]:
        try:
            answer = await self._client.get(f"{self._base}{_PATH}")
            return msgspec.json.decode(answer.content, type=list[_InInbox])
        except (httpx2.HTTPError, *NOT_JSON):
            return []


_PER_PAGE: Final = 100

T = TypeVar("T")


class ServiceAwayError(Exception):
    """The service does not answer, or with nothing of use."""


class CredentialRefusedError(Exception):
    """The service does not know the credential."""


class Credentials(msgspec.Struct, frozen=True):
    """What tenants may be read with: the API key of one of them, the operator's token for all."""

    api_key: Secret | None = None
    operator: Secret | None = None


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of a tenant's ledger, as far as it is shown."""

    id: str
    type: str
    created: datetime
    outcome: str
    reason: str


class Sight(msgspec.Struct, frozen=True):
    """What can be seen of a tenant: its record, and when its newest event was created.

    Without a record, ``trouble`` says why; ``is_missing`` is true where there is no such tenant.
    """

    tenant: Tenant | None = None
    newest: datetime | None = None
    trouble: str = ""
    is_missing: bool = False


class _Page(msgspec.Struct, rename="camel"):
    data: list[Entry]
    next_cursor: str | None


class _Export(msgspec.Struct, rename="camel"):
    tenant: Tenant
    billing_events: list[Entry]


class _Whoami(msgspec.Struct, rename="camel"):
    org_id: str | None


class ServiceReader:
    """Reads tenants at ``base``; the methods raise `ServiceAwayError` and `CredentialRefusedError`.

    A tenant's own API key is used where it is one of that tenant, else the operator's token.
    """

    def __init__(self, client: httpx2.AsyncClient, base: str, credentials: Credentials) -> None:
        self._client = client
        self._base = base
        self._credentials = credentials
        self._own: str | None = None

    @property
    def is_operator(self) -> bool:
        """Whether tenants can be made and ended."""
        return self._credentials.operator is not None

    async def own_tenant(self) -> str | None:
        """The tenant that the API key belongs to; None without a key."""
        key = self._credentials.api_key
        if key is not None and self._own is None:
            self._own = self._decoded(await self._ask("GET", WHOAMI_PATH, key), _Whoami).org_id
        return self._own

    async def look(self, tenant_id: str) -> Sight:
        """What can be seen of a tenant now."""
        key = await self._key_for(tenant_id)
        if key is not None:
            answer = await self._ask("GET", f"{TENANTS_PATH}/{tenant_id}", key)
            if answer.status_code == HTTPStatus.FORBIDDEN:
                return Sight(trouble="the API key lacks the scope tenants:read")
            ledger = await self._ask("GET", EVENTS_PATH, key, limit=1)
            newest = self._decoded(ledger, _Page).data if ledger.is_success else []
            return Sight(self._decoded(answer, Tenant), newest[0].created if newest else None)
        if self._credentials.operator is None:
            return Sight(trouble="TENANTRY_API_KEY is not a key of this tenant, and OPERATOR_TOKEN is not set")
        answer = await self._ask("GET", f"{TENANTS_PATH}/{tenant_id}/export", self._credentials.operator)
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return Sight(trouble=f"there is no tenant {tenant_id}", is_missing=True)
        export = self._decoded(answer, _Export)
        return Sight(export.tenant, max((entry.created for entry in export.billing_events), default=None))

    async def entry(self, tenant_id: str, event_id: str) -> Entry | None:
        """A tenant's ledger entry of an event; None where there is none, or it cannot be seen."""
        key = await self._key_for(tenant_id)
        if key is None:
            return next((entry for entry in await self.ledger(tenant_id) or [] if entry.id == event_id), None)
        answer = await self._ask("GET", f"{EVENTS_PATH}/{event_id}", key)
        return self._decoded(answer, Entry) if answer.is_success else None

    async def ledger(self, tenant_id: str) -> Sequence[Entry] | None:
        """All of a tenant's ledger, in no order; None where it cannot be seen."""
        key = await self._key_for(tenant_id)
        if key is None:
            if self._credentials.operator is None:
                return None
            answer = await self._ask("GET", f"{TENANTS_PATH}/{tenant_id}/export", self._credentials.operator)
            return self._decoded(answer, _Export).billing_events if answer.is_success else None
        entries: list[Entry] = []
        more: dict[str, Any] = {}
        while True:
            answer = await self._ask("GET", EVENTS_PATH, key, limit=_PER_PAGE, **more)
            if answer.status_code == HTTPStatus.FORBIDDEN:
                return None
            page = self._decoded(answer, _Page)
            entries += page.data
            if page.next_cursor is None:
                return entries
            more = {"cursor": page.next_cursor}

    async def make_tenant(self, tenant_id: str, name: str, owner_email: str, customer: str | None = None) -> None:
        """Make a tenant, with this customer of the provider's if there is one, as the operator."""
        link = {} if customer is None else {"stripeCustomerId": customer}
        body = {"name": name, "ownerEmail": owner_email, **link}
        answer = await self._ask("PUT", f"{TENANTS_PATH}/{tenant_id}", self._credentials.operator, body)
        self._decoded(answer, Tenant)

    async def end_tenant(self, tenant_id: str) -> None:
        """End a tenant, as the operator; its data are kept for 30 days."""
        await self._ask("DELETE", f"{TENANTS_PATH}/{tenant_id}", self._credentials.operator)

    async def _key_for(self, tenant_id: str) -> Secret | None:
        return self._credentials.api_key if await self.own_tenant() == tenant_id else None

    async def _ask(
        self, method: str, path: str, credential: Secret | None, body: object = None, **query: str | int
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {credential.reveal()}"} if credential else {}
        try:
            answer = await self._client.request(method, self._base + path, json=body, headers=headers, params=query)
        except httpx2.HTTPError as error:
            raise ServiceAwayError(f"{self._base} does not answer ({type(error).__name__}).") from None
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            name = "OPERATOR_TOKEN" if credential is self._credentials.operator else "the API key"
            raise CredentialRefusedError(f"{self._base} does not accept {name}.")
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ServiceAwayError(f"{self._base} answers {answer.status_code} to {method} {path}.")
        return answer

    def _decoded(self, answer: httpx2.Response, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except NOT_JSON:
            where = answer.request.url.path
            raise ServiceAwayError(
                f"{self._base} answers {answer.status_code} to {where}, and nothing of use."
            ) from None
