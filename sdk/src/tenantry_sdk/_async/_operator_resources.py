"""The calls of the API across tenants, which need the operator's token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from tenantry_sdk._async._engine import AsyncEngine
from tenantry_sdk._async._events import AsyncChangeEvents
from tenantry_sdk._async._pager import AsyncPager
from tenantry_sdk._async._resources import Resource
from tenantry_sdk._models import (
    ApiKey,
    BillingExplanation,
    CustomerMove,
    Grant,
    ImportedKeyCounts,
    ImportPreview,
    ImportResult,
    ManagedTenant,
    QueuedEvents,
    TenantMatch,
    UnplacedEvent,
    UsageReport,
    WebhookEndpointStatus,
    WebhookTest,
)
from tenantry_sdk._options import CallOptions
from tenantry_sdk._request import Call, body, path, query
from tenantry_sdk._response import Response
from tenantry_sdk.types import (
    AccessState,
    HashAlgorithm,
    OperatorUsageGroup,
    SubscriptionStatus,
    UsageInterval,
)

_NDJSON: Final = {"Accept": "application/x-ndjson"}

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from msgspec import UnsetType
    from typing_extensions import Unpack


class AsyncOperatorTenants(Resource):
    """All tenants that have not ended."""

    def list(
        self,
        *,
        search: str | None = None,
        plan: str | None = None,
        status: SubscriptionStatus | None = None,
        access: AccessState | None = None,
        suspended: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[ManagedTenant]:
        """List the tenants that match every given condition, newest first.

        ``search`` is a part of the id, the name, the owner's address or a customer's id,
        case-insensitive.
        """
        return self._list(
            ManagedTenant,
            options,
            "/api/v1/operator/tenants",
            search=search,
            plan=plan,
            status=status,
            access=access,
            suspended=suspended,
            limit=limit,
            cursor=cursor,
        )

    async def get(self, tenant_id: str, **options: Unpack[CallOptions]) -> ManagedTenant:
        """Return a tenant. `tenants.put` changes it."""
        return await self._get(ManagedTenant, options, "/api/v1/operator/tenants/{}", tenant_id)

    async def suspend(
        self, tenant_id: str, *, reason: str | None = None, **options: Unpack[CallOptions]
    ) -> ManagedTenant:
        """Reject a tenant's credentials from now on; each refusal says the ``reason``."""
        return await self._write(
            "POST",
            ManagedTenant,
            body(reason=reason),
            options,
            "/api/v1/operator/tenants/{}/suspend",
            tenant_id,
        )

    async def resume(
        self, tenant_id: str, *, reason: str | None = None, **options: Unpack[CallOptions]
    ) -> ManagedTenant:
        """Accept a tenant's credentials again."""
        return await self._write(
            "POST",
            ManagedTenant,
            body(reason=reason),
            options,
            "/api/v1/operator/tenants/{}/resume",
            tenant_id,
        )

    async def explain(
        self, tenant_id: str, *, limit: int | None = None, **options: Unpack[CallOptions]
    ) -> BillingExplanation:
        """Return why a tenant has its plan and status, with its newest ``limit`` events (100)."""
        address = path("/api/v1/operator/tenants/{}/explanation", tenant_id)
        return await self._send(
            BillingExplanation, Call("GET", address, query(limit=limit)), options
        )


class AsyncCustomers(Resource):
    """The payment provider's customers, and which tenant each belongs to."""

    async def put(
        self,
        customer_id: str,
        *,
        org_id: str,
        move: bool = False,
        reason: str | None = None,
        **options: Unpack[CallOptions],
    ) -> CustomerMove:
        """Link a customer to a tenant, with the customer's events; with ``move`` also one that
        another tenant has.
        """
        content = body(org_id=org_id, move=move, reason=reason)
        return await self._write(
            "PUT", CustomerMove, content, options, "/api/v1/operator/customers/{}", customer_id
        )

    async def delete(
        self, customer_id: str, *, reason: str | None = None, **options: Unpack[CallOptions]
    ) -> CustomerMove:
        """Remove the link of a customer, whose events no longer count for the tenant."""
        address = path("/api/v1/operator/customers/{}", customer_id)
        return await self._send(
            CustomerMove, Call("DELETE", address, query(reason=reason)), options
        )


class AsyncGrants(Resource):
    """What tenants have by contract."""

    def list(self, tenant_id: str, **options: Unpack[CallOptions]) -> AsyncPager[Grant]:
        """List the grants of a tenant that count now, by name."""
        return self._list(Grant, options, path("/api/v1/tenants/{}/grants", tenant_id))

    async def put(
        self,
        tenant_id: str,
        name: str,
        *,
        reason: str,
        plan: str | None = None,
        features: Mapping[str, bool | int] | UnsetType = UNSET,
        limits: Mapping[str, int] | UnsetType = UNSET,
        until: datetime | None = None,
        **options: Unpack[CallOptions],
    ) -> Grant:
        """Give a tenant a plan, features or limits, or replace the terms of a grant.

        ``limits`` are by their names in the API, such as ``apiKeys``. The same terms again change
        nothing.
        """
        content = body(reason=reason, plan=plan, features=features, limits=limits, until=until)
        return await self._write(
            "PUT", Grant, content, options, "/api/v1/tenants/{}/grants/{}", tenant_id, name
        )

    async def delete(self, tenant_id: str, name: str, **options: Unpack[CallOptions]) -> Grant:
        """End a grant now, and return it. Ending an ended grant succeeds."""
        call = Call("DELETE", path("/api/v1/tenants/{}/grants/{}", tenant_id, name))
        return await self._send(Grant, call, options)


class AsyncOperatorApiKeys(Resource):
    """API keys of all tenants."""

    def list(
        self,
        *,
        search: str,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[ApiKey]:
        """List the keys with this id, first or last four characters, or both
        (``svc_live_AbCd...wxyz``).

        Never pass a whole secret.
        """
        return self._list(
            ApiKey,
            options,
            "/api/v1/operator/api-keys",
            search=search,
            limit=limit,
            cursor=cursor,
        )

    async def import_keys(
        self,
        tenant_id: str,
        *,
        algorithm: HashAlgorithm,
        keys: Sequence[Mapping[str, object]],
        **options: Unpack[CallOptions],
    ) -> ImportResult:
        """Import keys of another system into a tenant, by their hashes: all, or none.

        Each key is an object in the API's spelling, with ``digest``, ``name``, and ``scopes`` or
        ``accessLevel``; at most 1,000. With an ``externalId`` for each, the call can be repeated.
        """
        content = body(algorithm=algorithm, keys=keys)
        return await self._write(
            "POST",
            ImportResult,
            content,
            options,
            "/api/v1/tenants/{}/api-keys/import",
            tenant_id,
        )

    async def preview_import(
        self,
        tenant_id: str,
        *,
        algorithm: HashAlgorithm,
        keys: Sequence[Mapping[str, object]],
        **options: Unpack[CallOptions],
    ) -> ImportPreview:
        """Return what `import_keys` would do with these keys, and import nothing."""
        return await self._write(
            "POST",
            ImportPreview,
            body(algorithm=algorithm, keys=keys),
            options,
            "/api/v1/tenants/{}/api-keys/preview-import",
            tenant_id,
        )

    async def delete(
        self,
        key_id: str,
        *,
        force: bool | None = None,
        reason: str | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Revoke a key of any tenant: the very next request with it is rejected.

        ``force`` is as in `api_keys.delete`.
        """
        await self._delete(
            options, "/api/v1/operator/api-keys/{}", key_id, force=force, reason=reason
        )


class AsyncImportedKeys(Resource):
    """API keys that were imported from another system."""

    def count(self, **options: Unpack[CallOptions]) -> AsyncPager[ImportedKeyCounts]:
        """Count the imported keys of each tenant that has one."""
        return self._list(ImportedKeyCounts, options, "/api/v1/operator/imported-keys")

    def list(
        self,
        tenant_id: str,
        *,
        unused: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[ApiKey]:
        """List the imported keys of a tenant, newest first; with ``unused`` only active ones that
        were not used yet.
        """
        address = path("/api/v1/operator/imported-keys/{}", tenant_id)
        return self._list(ApiKey, options, address, unused=unused, limit=limit, cursor=cursor)


class AsyncWebhookEndpoints(Resource):
    """The endpoints of the plan catalog that receive webhooks."""

    def list(self, **options: Unpack[CallOptions]) -> AsyncPager[WebhookEndpointStatus]:
        """List the endpoints, their state, and how many events wait for each."""
        return self._list(WebhookEndpointStatus, options, "/api/v1/operator/webhook-endpoints")

    async def test(self, name: str, **options: Unpack[CallOptions]) -> WebhookTest:
        """Send a signed message of the type ``webhook.test`` to an endpoint, once. The answer may
        take 15 s.
        """
        address = path("/api/v1/operator/webhook-endpoints/{}/test", name)
        return await self._send(WebhookTest, Call("POST", address), options)

    async def enable(self, name: str, **options: Unpack[CallOptions]) -> QueuedEvents:
        """Enable an endpoint that was disabled, and send it all events that are held."""
        address = path("/api/v1/operator/webhook-endpoints/{}/enable", name)
        return await self._send(QueuedEvents, Call("POST", address), options)

    async def resend(
        self,
        name: str,
        *,
        event: str | None = None,
        since: datetime | None = None,
        **options: Unpack[CallOptions],
    ) -> QueuedEvents:
        """Send an endpoint the events that were not delivered; or one ``event``, or all ``since`` a
        time, delivered or not.
        """
        content = body(event=event, since=since)
        return await self._write(
            "POST",
            QueuedEvents,
            content,
            options,
            "/api/v1/operator/webhook-endpoints/{}/resend",
            name,
        )


class AsyncOperatorAuditEvents(Resource):
    """The audit trail of all tenants."""

    async def export(
        self, *, since: datetime | None = None, **options: Unpack[CallOptions]
    ) -> Response:
        """Return the audit trail, tenant by tenant, as `audit_events.export` does."""
        call = Call("GET", "/api/v1/operator/audit-events", query(since=since), headers=_NDJSON)
        return await self._engine.with_options(options).send(call)


class AsyncOperatorBillingEvents(Resource):
    """The payment provider's events of all tenants."""

    async def body(self, event_id: str, **options: Unpack[CallOptions]) -> bytes:
        """Return what the provider sent for an event, byte for byte."""
        address = path("/api/v1/operator/billing-events/{}/body", event_id)
        return (await self._engine.with_options(options).send(Call("GET", address))).content


class AsyncParkedEvents(Resource):
    """Provider events that belong to no tenant."""

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPager[UnplacedEvent]:
        """List the events, the last received first, each with the command that places it."""
        return self._list(
            UnplacedEvent,
            options,
            "/api/v1/operator/parked-events",
            limit=limit,
            cursor=cursor,
        )


class AsyncOperatorUsage(Resource):
    """How many requests the API keys of all tenants sent."""

    async def get(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        interval: UsageInterval | None = None,
        group_by: OperatorUsageGroup | None = None,
        org_id: str | None = None,
        key_id: str | None = None,
        **options: Unpack[CallOptions],
    ) -> UsageReport:
        """Return counts as `usage.get` does, of all tenants or one; ``key_id`` needs ``org_id``."""
        parameters = query(
            since=since,
            until=until,
            interval=interval,
            group_by=group_by,
            org_id=org_id,
            key_id=key_id,
        )
        call = Call("GET", "/api/v1/operator/usage", parameters)
        return await self._send(UsageReport, call, options)


class AsyncOperator(Resource):
    """Tenants, grants, keys and events across tenants. Needs the operator's token."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self.tenants: AsyncOperatorTenants = AsyncOperatorTenants(engine)
        self.grants: AsyncGrants = AsyncGrants(engine)
        self.api_keys: AsyncOperatorApiKeys = AsyncOperatorApiKeys(engine)
        self.imported_keys: AsyncImportedKeys = AsyncImportedKeys(engine)
        self.customers: AsyncCustomers = AsyncCustomers(engine)
        self.webhook_endpoints: AsyncWebhookEndpoints = AsyncWebhookEndpoints(engine)
        self.audit_events: AsyncOperatorAuditEvents = AsyncOperatorAuditEvents(engine)
        self.billing_events: AsyncOperatorBillingEvents = AsyncOperatorBillingEvents(engine)
        self.parked_events: AsyncParkedEvents = AsyncParkedEvents(engine)
        self.usage: AsyncOperatorUsage = AsyncOperatorUsage(engine)
        self.events: AsyncChangeEvents = AsyncChangeEvents(engine)

    def find(self, text: str, **options: Unpack[CallOptions]) -> AsyncPager[TenantMatch]:
        """Find tenants by an id, a customer, the owner's address, or a key: its id, or its first or
        last four characters.

        Never pass a whole secret.
        """
        return self._list(TenantMatch, options, "/api/v1/operator/find", text=text)
