# Generated from _async/_operator_resources.py by sdk/make_sync.py: edit that file.
"""The calls of the API across tenants, which need the operator's token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from tenantry_sdk._models import (
    ApiKey,
    Grant,
    ImportResult,
    ManagedTenant,
    UnplacedEvent,
    UsageReport,
)
from tenantry_sdk._options import CallOptions
from tenantry_sdk._request import Call, body, path, query
from tenantry_sdk._sync._engine import Engine
from tenantry_sdk._sync._events import ChangeEvents
from tenantry_sdk._sync._pager import Pager
from tenantry_sdk._sync._resources import Resource
from tenantry_sdk.types import (
    AccessState,
    HashAlgorithm,
    OperatorUsageGroup,
    SubscriptionStatus,
    UsageInterval,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from msgspec import UnsetType
    from typing_extensions import Unpack


class OperatorTenants(Resource):
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
    ) -> Pager[ManagedTenant]:
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

    def get(self, tenant_id: str, **options: Unpack[CallOptions]) -> ManagedTenant:
        """Return a tenant. `tenants.put` changes, suspends and resumes it."""
        return self._get(ManagedTenant, options, "/api/v1/operator/tenants/{}", tenant_id)


class Grants(Resource):
    """What tenants have by contract."""

    def list(self, tenant_id: str, **options: Unpack[CallOptions]) -> Pager[Grant]:
        """List the grants of a tenant that count now, by name."""
        return self._list(Grant, options, path("/api/v1/tenants/{}/grants", tenant_id))

    def put(
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
        return self._write(
            "PUT", Grant, content, options, "/api/v1/tenants/{}/grants/{}", tenant_id, name
        )

    def delete(self, tenant_id: str, name: str, **options: Unpack[CallOptions]) -> Grant:
        """End a grant now, and return it. Ending an ended grant succeeds."""
        call = Call("DELETE", path("/api/v1/tenants/{}/grants/{}", tenant_id, name))
        return self._send(Grant, call, options)


class OperatorApiKeys(Resource):
    """API keys of all tenants."""

    def list(
        self,
        *,
        search: str,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Pager[ApiKey]:
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

    def import_keys(
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
        return self._write(
            "POST",
            ImportResult,
            content,
            options,
            "/api/v1/tenants/{}/api-keys/import",
            tenant_id,
        )

    def delete(
        self, key_id: str, *, force: bool | None = None, **options: Unpack[CallOptions]
    ) -> None:
        """Revoke a key of any tenant: the very next request with it is rejected.

        ``force`` revokes even the last OWNER key of an organization without an owner.
        """
        self._delete(options, "/api/v1/operator/api-keys/{}", key_id, force=force)


class ParkedEvents(Resource):
    """Provider events that belong to no tenant."""

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> Pager[UnplacedEvent]:
        """List the events, the last received first, each with the command that places it."""
        return self._list(
            UnplacedEvent,
            options,
            "/api/v1/operator/parked-events",
            limit=limit,
            cursor=cursor,
        )


class OperatorUsage(Resource):
    """How many requests the API keys of all tenants sent."""

    def get(
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
        return self._send(UsageReport, call, options)


class Operator:
    """Tenants, grants, keys and events across tenants. Needs the operator's token."""

    def __init__(self, engine: Engine) -> None:
        self.tenants: OperatorTenants = OperatorTenants(engine)
        self.grants: Grants = Grants(engine)
        self.api_keys: OperatorApiKeys = OperatorApiKeys(engine)
        self.parked_events: ParkedEvents = ParkedEvents(engine)
        self.usage: OperatorUsage = OperatorUsage(engine)
        self.events: ChangeEvents = ChangeEvents(engine)
