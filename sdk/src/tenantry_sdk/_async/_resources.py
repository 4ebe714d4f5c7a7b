"""The calls of the API, by resource."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import UNSET, UnsetType

from tenantry_sdk._async._compat import shielded
from tenantry_sdk._async._engine import AsyncEngine
from tenantry_sdk._async._pager import AsyncPager
from tenantry_sdk._async._principal import AsyncPrincipal, accepted_by, consume
from tenantry_sdk._entitlements import consumption, note_failure, returning
from tenantry_sdk._models import (
    ApiKey,
    AuditEvent,
    BillingAddress,
    BillingEvent,
    Consumption,
    Entitlement,
    Health,
    HostedSession,
    Invitation,
    InvitationLink,
    ManagedTenant,
    Member,
    Membership,
    NewApiKey,
    Plan,
    Project,
    Rejection,
    RevokedKey,
    RoleDefinition,
    Tenant,
    TenantExport,
    UsageReport,
    Whoami,
)
from tenantry_sdk._options import CallOptions, checked_headers, with_headers
from tenantry_sdk._request import (
    Call,
    Content,
    Strings,
    body,
    creation,
    given,
    listed,
    listed_if_set,
    path,
    query,
)
from tenantry_sdk._response import Response, check_deleted
from tenantry_sdk._secret import Secret, revealed
from tenantry_sdk._verify import Headers, verify_call, verify_error
from tenantry_sdk.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    LostKeyError,
    TenantryError,
)
from tenantry_sdk.types import (
    AcceptedMode,
    AccessLevel,
    AuditAction,
    InvitationStatus,
    KeyStatus,
    MemberStatus,
    Mode,
    OnUnavailable,
    OwnMembershipStatus,
    Role,
    UsageGroup,
    UsageInterval,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from typing_extensions import Unpack

T = TypeVar("T")

_LOST_KEYS: Final = 3
_WHOAMI: Final = "/api/v1/auth/whoami"


class Resource:
    """The calls of one resource."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def _send(self, kind: type[T], call: Call, options: CallOptions) -> T:
        return (await self._engine.with_options(options).send(call)).parse(kind)

    async def _get(self, kind: type[T], options: CallOptions, template: str, *ids: str) -> T:
        return await self._send(kind, Call("GET", path(template, *ids)), options)

    async def _create(
        self,
        kind: type[T],
        path: str,
        content: Content,
        idempotency_key: str | None,
        options: CallOptions,
    ) -> T:
        return await self._send(kind, creation(path, content, idempotency_key), options)

    async def _write(
        self,
        method: str,
        kind: type[T],
        content: Content,
        options: CallOptions,
        template: str,
        *ids: str,
    ) -> T:
        return await self._send(kind, Call(method, path(template, *ids), {}, content), options)

    async def _delete(
        self,
        options: CallOptions,
        template: str,
        *ids: str,
        vanishes: bool = False,
        **parameters: str | bool | None,
    ) -> None:
        call = Call("DELETE", path(template, *ids), query(**parameters), vanishes=vanishes)
        check_deleted(await self._engine.with_options(options).send(call))

    def _list(
        self,
        kind: type[T],
        options: CallOptions,
        path: str,
        **parameters: str | int | bool | datetime | None,
    ) -> AsyncPager[T]:
        return AsyncPager(self._engine.with_options(options), path, query(**parameters), kind)


class AsyncApiKeys(Resource):
    """API keys of the caller's organization."""

    async def create(
        self,
        *,
        name: str,
        scopes: Strings = (),
        expires_at: datetime | None = None,
        access_level: AccessLevel | None = None,
        mode: Mode | None = None,
        external_id: str | None = None,
        metadata: dict[str, str] | None = None,
        allowed_addresses: Strings = (),
        enabled: bool = True,
        requests_per_minute: int | None = None,
        org_id: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> NewApiKey:
        """Create a key; only this result has its ``secret``.

        ``scopes`` are ``<resource>:<action>``, either part ``*`` for any; ``access_level="OWNER"``
        takes none. ``mode`` is by default the caller's. ``expires_at`` needs a time zone.
        ``external_id`` is the id that another system of yours gives the key. Without
        ``allowed_addresses``, which may be networks, it works from any address. Without ``org_id``
        the client asks the service for the organization of its credential first.

        If the response is lost, the client revokes the key with the unknown secret and creates
        another one. A caller that passes an ``idempotency_key`` handles this itself, and gets
        `ConflictError` with the code ``idempotency_replay`` for an existing key. Raises
        `LostKeyError` if the lost key could not be revoked.
        """
        engine = self._engine.with_options(options)
        ends = engine.deadline()
        fields = {
            "name": name,
            "scopes": listed(scopes, "scopes"),
            "expires_at": expires_at,
            **given(
                access_level=access_level,
                mode=mode,
                external_id=external_id,
                metadata=metadata or None,
                allowed_addresses=listed(allowed_addresses, "allowed_addresses") or None,
                enabled=None if enabled else False,
                requests_per_minute=requests_per_minute,
            ),
        }
        body(**fields)  # raises for an invalid value before anything is sent
        org_id = org_id or engine.tenant_id
        if org_id is None:
            org_id = (await engine.send(Call("GET", _WHOAMI), ends)).parse(Whoami).org_id
        content = body(org_id=org_id, **fields)
        for _ in range(_LOST_KEYS):
            call = creation("/api/v1/api-keys", content, idempotency_key)
            try:
                return (await engine.send(call, ends)).parse(NewApiKey)
            except ConflictError as error:
                lost = _lost_key(error)
                if lost is None or idempotency_key is not None:
                    raise
                await _revoke_lost(engine, lost, ends)
        raise LostKeyError(
            "Every response with a key's secret was lost; these keys are revoked.", None
        )

    def list(
        self,
        *,
        org_id: str | None = None,
        status: KeyStatus | None = None,
        search: str | None = None,
        external_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[ApiKey]:
        """List keys, newest first.

        ``search`` is a part of the name, the id, the external id, or the first or last characters
        of the secret; never a whole secret. ``external_id`` is a whole external id.
        """
        return self._list(
            ApiKey,
            options,
            "/api/v1/api-keys",
            org_id=org_id,
            status=status,
            search=search,
            external_id=external_id,
            limit=limit,
            cursor=cursor,
        )

    async def get(self, key_id: str, **options: Unpack[CallOptions]) -> ApiKey:
        """Return a key, without its secret."""
        return await self._get(ApiKey, options, "/api/v1/api-keys/{}", key_id)

    async def update(
        self,
        key_id: str,
        *,
        name: str | UnsetType = UNSET,
        scopes: Strings | UnsetType = UNSET,
        expires_at: datetime | UnsetType | None = UNSET,
        external_id: str | UnsetType | None = UNSET,
        metadata: dict[str, str] | UnsetType | None = UNSET,
        allowed_addresses: Strings | UnsetType = UNSET,
        enabled: bool | UnsetType = UNSET,
        requests_per_minute: int | UnsetType | None = UNSET,
        **options: Unpack[CallOptions],
    ) -> ApiKey:
        """Change an active key; omitted values stay. ``expires_at=None`` removes the expiry, and so
        for the other values. ``metadata`` and ``allowed_addresses`` replace all of them.
        """
        content = body(
            name=name,
            scopes=listed_if_set(scopes, "scopes"),
            expires_at=expires_at,
            external_id=external_id,
            metadata=metadata,
            allowed_addresses=listed_if_set(allowed_addresses, "allowed_addresses"),
            enabled=enabled,
            requests_per_minute=requests_per_minute,
        )
        return await self._write("PATCH", ApiKey, content, options, "/api/v1/api-keys/{}", key_id)

    async def rotate(
        self,
        key_id: str,
        *,
        overlap_seconds: int = 0,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> NewApiKey:
        """Replace this key by a new one; the old key works for ``overlap_seconds`` more (a week at
        most).

        If the response is lost, the client rotates the new key in turn, without an overlap:
        ``rotated_from`` of the result is then that key. With the caller's ``idempotency_key`` it
        behaves like `create`. A key that rotates itself cannot do that: if its response is lost,
        `LostKeyError` is raised, and another key has to revoke the new key and create a
        replacement.
        """
        engine = self._engine.with_options(options)
        return await _rotate(engine, key_id, body(overlap_seconds=overlap_seconds), idempotency_key)

    async def delete(
        self,
        key_id: str,
        *,
        force: bool | None = None,
        reason: str | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        """Revoke a key: the next request with it is rejected. Revoking it again changes nothing.

        ``force`` revokes even the last OWNER key of an organization without an owner.
        """
        await self._delete(options, "/api/v1/api-keys/{}", key_id, force=force, reason=reason)

    async def report_leak(self, secret: str | Secret, **options: Unpack[CallOptions]) -> RevokedKey:
        """Revoke a leaked key. This needs no credential."""
        content = body(secret=revealed(secret))
        del secret  # tracebacks must not show it
        call = Call("POST", "/api/v1/api-keys/report-leak", {}, content, is_anonymous=True)
        return await self._send(RevokedKey, call, options)


class AsyncProjects(Resource):
    """Projects of the caller's organization and mode."""

    async def create(
        self,
        *,
        name: str,
        description: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Project:
        """Create a project."""
        content = body(name=name, **given(description=description))
        return await self._create(Project, "/api/v1/projects", content, idempotency_key, options)

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPager[Project]:
        """List projects, newest first."""
        return self._list(Project, options, "/api/v1/projects", limit=limit, cursor=cursor)

    async def get(self, project_id: str, **options: Unpack[CallOptions]) -> Project:
        """Return a project."""
        return await self._get(Project, options, "/api/v1/projects/{}", project_id)

    async def update(
        self,
        project_id: str,
        *,
        name: str | UnsetType = UNSET,
        description: str | UnsetType | None = UNSET,
        **options: Unpack[CallOptions],
    ) -> Project:
        """Change a project; omitted values stay. ``description=None`` clears it."""
        content = body(name=name, description=description)
        return await self._write(
            "PATCH", Project, content, options, "/api/v1/projects/{}", project_id
        )

    async def delete(self, project_id: str, **options: Unpack[CallOptions]) -> None:
        """Delete a project."""
        await self._delete(options, "/api/v1/projects/{}", project_id, vanishes=True)


class AsyncTenants(Resource):
    """The caller's tenants; with the operator's token, all tenants."""

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPager[Tenant]:
        """List the tenants that the caller belongs to."""
        return self._list(Tenant, options, "/api/v1/tenants", limit=limit, cursor=cursor)

    async def get(self, tenant_id: str, **options: Unpack[CallOptions]) -> Tenant:
        """Return a tenant, with its plan and subscription."""
        return await self._get(Tenant, options, "/api/v1/tenants/{}", tenant_id)

    async def create(
        self,
        *,
        name: str,
        owner_email: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Tenant:
        """Create a tenant with the caller as its owner. Needs a user's token."""
        content = body(name=name, **given(owner_email=owner_email))
        return await self._create(Tenant, "/api/v1/tenants", content, idempotency_key, options)

    async def update(
        self,
        tenant_id: str,
        *,
        name: str | UnsetType = UNSET,
        owner_email: str | UnsetType = UNSET,
        time_zone: str | UnsetType | None = UNSET,
        **options: Unpack[CallOptions],
    ) -> Tenant:
        """Change a tenant; omitted values stay. ``time_zone`` is an IANA name; None means that of
        each reader.
        """
        content = body(name=name, owner_email=owner_email, time_zone=time_zone)
        return await self._write("PATCH", Tenant, content, options, "/api/v1/tenants/{}", tenant_id)

    async def transfer(
        self,
        tenant_id: str,
        *,
        user_id: str,
        owner_email: str | UnsetType = UNSET,
        reason: str | UnsetType = UNSET,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Tenant:
        """Transfer the tenant to another owner, who must be a member."""
        content = body(user_id=user_id, owner_email=owner_email, reason=reason)
        return await self._create(
            Tenant,
            path("/api/v1/tenants/{}/transfer", tenant_id),
            content,
            idempotency_key,
            options,
        )

    async def owner_address(self, tenant_id: str, **options: Unpack[CallOptions]) -> BillingAddress:
        """Return the address for billing mail, and whether it is verified."""
        where = "/api/v1/tenants/{}/owner-address"
        return await self._get(BillingAddress, options, where, tenant_id)

    async def end(
        self,
        tenant_id: str,
        *,
        name: str,
        reason: str | UnsetType = UNSET,
        **options: Unpack[CallOptions],
    ) -> None:
        """End a tenant, whose ``name`` confirms it. Needs an owner's token.

        Raises `ConflictError` while a subscription renews.
        """
        content = body(name=name, reason=reason)
        call = Call("POST", path("/api/v1/tenants/{}/end", tenant_id), {}, content)
        check_deleted(await self._engine.with_options(options).send(call))

    async def put(
        self,
        tenant_id: str,
        *,
        name: str,
        owner_email: str,
        owner_id: str | UnsetType | None = UNSET,
        stripe_customer_id: str | UnsetType | None = UNSET,
        suspended: bool | UnsetType = UNSET,
        reason: str | UnsetType = UNSET,
        **options: Unpack[CallOptions],
    ) -> ManagedTenant:
        """Create a tenant, or set the given fields. Needs the operator's token.

        ``stripe_customer_id=None`` removes the links of all the tenant's customers. The ``reason``
        of a suspension is in each refusal.
        """
        content = body(
            name=name,
            owner_email=owner_email,
            owner_id=owner_id,
            stripe_customer_id=stripe_customer_id,
            suspended=suspended,
            reason=reason,
        )
        return await self._write(
            "PUT", ManagedTenant, content, options, "/api/v1/tenants/{}", tenant_id
        )

    async def delete(
        self, tenant_id: str, *, reason: str | None = None, **options: Unpack[CallOptions]
    ) -> None:
        """Delete a tenant: its keys end immediately, its data after 30 days. Needs the operator's
        token.
        """
        await self._delete(options, "/api/v1/tenants/{}", tenant_id, reason=reason)

    async def verify_owner_address(
        self, tenant_id: str, **options: Unpack[CallOptions]
    ) -> BillingAddress:
        """Record that the owner's address is verified. Needs the operator's token."""
        address = path("/api/v1/tenants/{}/verify-owner-address", tenant_id)
        return await self._send(BillingAddress, Call("POST", address), options)

    async def export(self, tenant_id: str, **options: Unpack[CallOptions]) -> TenantExport:
        """Return all data of a tenant. Needs the operator's token."""
        return await self._get(TenantExport, options, "/api/v1/tenants/{}/export", tenant_id)


class AsyncMembers(Resource):
    """Users of the caller's organization, and their roles."""

    async def create(
        self,
        *,
        user_id: str,
        role: Role,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Member:
        """Invite a user, who must accept."""
        content = body(user_id=user_id, role=role)
        return await self._create(Member, "/api/v1/members", content, idempotency_key, options)

    def list(
        self,
        *,
        user_id: str | None = None,
        role: Role | None = None,
        status: MemberStatus | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[Member]:
        """List members and invited users, newest first."""
        return self._list(
            Member,
            options,
            "/api/v1/members",
            user_id=user_id,
            role=role,
            status=status,
            limit=limit,
            cursor=cursor,
        )

    async def get(self, member_id: str, **options: Unpack[CallOptions]) -> Member:
        """Return a member."""
        return await self._get(Member, options, "/api/v1/members/{}", member_id)

    async def update(self, member_id: str, *, role: Role, **options: Unpack[CallOptions]) -> Member:
        """Change the role of a member."""
        return await self._write(
            "PATCH", Member, body(role=role), options, "/api/v1/members/{}", member_id
        )

    async def delete(self, member_id: str, **options: Unpack[CallOptions]) -> None:
        """Remove a member, whose next request is rejected, or withdraw an invitation."""
        await self._delete(options, "/api/v1/members/{}", member_id)


class AsyncRoles(Resource):
    """The roles that members may have."""

    def list(self, **options: Unpack[CallOptions]) -> AsyncPager[RoleDefinition]:
        """List all roles, the highest first: the built-in ones, and the service's own."""
        return self._list(RoleDefinition, options, "/api/v1/roles")


class AsyncInvitations(Resource):
    """Invitations by mail to the caller's organization, where the service has them enabled."""

    async def create(
        self,
        *,
        email: str,
        role: Role,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Invitation:
        """Mail a link by which the user of this address becomes a member.

        The link is valid for seven days.
        """
        content = body(email=email, role=role)
        return await self._create(
            Invitation,
            "/api/v1/invitations",
            content,
            idempotency_key,
            options,
        )

    def list(
        self,
        *,
        status: InvitationStatus | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[Invitation]:
        """List invitations, newest first."""
        return self._list(
            Invitation,
            options,
            "/api/v1/invitations",
            status=status,
            limit=limit,
            cursor=cursor,
        )

    async def get(self, invitation_id: str, **options: Unpack[CallOptions]) -> Invitation:
        """Return an invitation."""
        return await self._get(Invitation, options, "/api/v1/invitations/{}", invitation_id)

    async def link(self, invitation_id: str, **options: Unpack[CallOptions]) -> InvitationLink:
        """Return the link of an open invitation, to pass it on by another way than mail.

        Only a user who receives mail at the invited address can accept.
        """
        return await self._get(
            InvitationLink, options, "/api/v1/invitations/{}/link", invitation_id
        )

    async def resend(
        self,
        invitation_id: str,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Invitation:
        """Mail the link again, which is then valid for seven more days; three mails at most."""
        address = path("/api/v1/invitations/{}/resend", invitation_id)
        return await self._create(Invitation, address, body(), idempotency_key, options)

    async def delete(self, invitation_id: str, **options: Unpack[CallOptions]) -> None:
        """Withdraw an invitation, whose link then no longer works."""
        await self._delete(options, "/api/v1/invitations/{}", invitation_id)

    async def accept(
        self,
        *,
        token: str | Secret,
        proof: str | Secret = "",
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Membership:
        """Make the caller, a user, a member by the ``token`` of an invitation's link.

        With the ``proof`` of the mailed link, any user can accept, once. Without it, the identity
        provider must have verified the invited address as the caller's.
        """
        content = body(token=revealed(token), proof=revealed(proof))
        return await self._create(
            Membership,
            "/api/v1/invitations/accept",
            content,
            idempotency_key,
            options,
        )

    async def request_confirmation(
        self, *, token: str | Secret, **options: Unpack[CallOptions]
    ) -> None:
        """Mail the link with the ``proof`` to the invited address.

        Needs the token of a user. Raises `PermissionDeniedError` for a user whose verified address
        is another one.
        """
        call = Call(
            "POST", path("/api/v1/invitations/confirmation"), {}, body(token=revealed(token))
        )
        await self._engine.with_options(options).send(call)


class AsyncMemberships(Resource):
    """The caller's memberships and invitations in all organizations. Needs a user's token, of any
    scope.
    """

    def list(
        self,
        *,
        status: OwnMembershipStatus | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[Membership]:
        """List memberships, newest first."""
        return self._list(
            Membership,
            options,
            "/api/v1/me/memberships",
            status=status,
            limit=limit,
            cursor=cursor,
        )

    async def accept(
        self,
        membership_id: str,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Membership:
        """Accept an invitation. Repeating it changes nothing."""
        address = path("/api/v1/memberships/{}/accept", membership_id)
        return await self._create(Membership, address, body(), idempotency_key, options)

    async def delete(self, membership_id: str, **options: Unpack[CallOptions]) -> None:
        """Decline an invitation, or leave the organization."""
        await self._delete(options, "/api/v1/me/memberships/{}", membership_id)


class AsyncPlans(Resource):
    """The plan catalog."""

    def list(self, **options: Unpack[CallOptions]) -> AsyncPager[Plan]:
        """List all plans."""
        return self._list(Plan, options, "/api/v1/plans")


class AsyncEntitlements(Resource):
    """The features and quotas of the caller's organization."""

    def list(self, **options: Unpack[CallOptions]) -> AsyncPager[Entitlement]:
        """List the features of the plan catalog, and what the organization has of each."""
        return self._list(Entitlement, options, "/api/v1/entitlements")

    async def get(self, feature: str, **options: Unpack[CallOptions]) -> Entitlement:
        """Return what the organization has of a feature. Raises `UnknownFeatureError` for one that
        the plan catalog does not declare.
        """
        return await self._get(Entitlement, options, "/api/v1/entitlements/{}", feature)

    async def consume(
        self,
        feature: str,
        amount: int = 1,
        *,
        idempotency_key: str | None = None,
        on_unavailable: OnUnavailable = "raise",
        **options: Unpack[CallOptions],
    ) -> Consumption:
        """Count ``amount`` (1 to 1,000,000,000) of a metered feature, all of it or nothing.

        Retries count once. For 24 hours an ``idempotency_key`` of yours counts once for the
        organization and the feature, whichever credential sends it; live and test mode are apart.
        Raises `QuotaExceededError` if less is left, `FeatureNotGrantedError` and
        `UnknownFeatureError`.

        If the service is unreachable, overloaded or broken, ``on_unavailable`` decides: ``raise``
        raises that error, ``deny`` raises `EntitlementDeniedError`, and ``allow`` returns a result
        whose ``counted`` is False. Pass a short ``timeout`` too: it ends the retries.
        """
        call = consumption(feature, amount, idempotency_key)
        return await consume(self._engine.with_options(options), call, on_unavailable)

    async def give_back(
        self, feature: str, *, idempotency_key: str, **options: Unpack[CallOptions]
    ) -> Consumption:
        """Give back what was consumed with an ``idempotency_key`` in the last 24 hours, by any
        credential. For the operator's client: ``client.tenant("acme").entitlements``.

        Repeating it changes nothing, and returns the same. The key is used up: `consume` raises
        `ConflictError` for it. Raises `NotFoundError` if nothing was consumed with the key, and
        `PermissionDeniedError` for other clients.
        """
        return await self._send(Consumption, returning(feature, idempotency_key), options)

    @asynccontextmanager
    async def consuming(
        self,
        feature: str,
        amount: int = 1,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Consumption]:
        """Count ``amount`` for a block, as `consume`, and give it back if the block raises.

        If giving back fails, the block's error is raised, with a note (Python 3.11), and a warning
        is logged. Without an ``idempotency_key`` a random one is used. Raises `ConfigurationError`
        for another client than the operator's that acts for a tenant.
        """
        if self._engine.tenant_id is None:
            raise ConfigurationError("consuming() needs the operator's client: tenant(id).")
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        call = returning(feature, key)
        consumed = await self.consume(feature, amount, idempotency_key=key, **options)
        try:
            yield consumed
        except BaseException as error:
            try:
                with shielded():
                    await self._send(Consumption, call, options)
            except Exception as failure:  # noqa: BLE001  # the block's error matters more
                note_failure(error, feature, failure)
            raise


class AsyncUsage(Resource):
    """How many requests the organization's API keys sent."""

    async def get(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        interval: UsageInterval | None = None,
        group_by: UsageGroup | None = None,
        key_id: str | None = None,
        **options: Unpack[CallOptions],
    ) -> UsageReport:
        """Return counts by hour (the default) or day, by default of the last 24 hours or 30 days.

        Hours are kept for 90 days, and days for 400. Needs the scope ``usage:read``.
        """
        parameters = query(
            since=since, until=until, interval=interval, group_by=group_by, key_id=key_id
        )
        return await self._send(UsageReport, Call("GET", "/api/v1/usage", parameters), options)


class AsyncRejections(Resource):
    """Why requests of the organization's keys and users were refused."""

    def list(
        self,
        *,
        key_id: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[Rejection]:
        """List refused requests in the caller's mode, newest first; equal ones of a minute are one.

        The newest 1,000 are kept, at most 200 of a key or user, for 7 days. Needs the scope
        ``audit:read``.
        """
        return self._list(
            Rejection,
            options,
            "/api/v1/rejections",
            key_id=key_id,
            since=since,
            limit=limit,
            cursor=cursor,
        )


class AsyncBillingEvents(Resource):
    """The organization's ledger of provider events."""

    def list(
        self, *, limit: int | None = None, cursor: str | None = None, **options: Unpack[CallOptions]
    ) -> AsyncPager[BillingEvent]:
        """List events, newest first."""
        return self._list(
            BillingEvent, options, "/api/v1/billing/events", limit=limit, cursor=cursor
        )

    async def get(self, event_id: str, **options: Unpack[CallOptions]) -> BillingEvent:
        """Return an event by the provider's id."""
        return await self._get(BillingEvent, options, "/api/v1/billing/events/{}", event_id)

    async def deliver(
        self, body: bytes | str, signature: str, **options: Unpack[CallOptions]
    ) -> Response:
        """Deliver a provider event to the service, for tests and relays. It needs no credential,
        and is sent once.

        ``signature`` is the header of `webhooks.sign_provider_event`. Raises `BadRequestError` for
        a signature that does not match.
        """
        content = Content(body.encode() if isinstance(body, str) else body)
        headers = checked_headers({"Provider-Signature": signature})
        call = Call(
            "POST", "/api/v1/webhooks/payment-provider", {}, content, headers, is_anonymous=True
        )
        return await self._engine.with_options(options).send(call)


class AsyncCheckoutSessions(Resource):
    """Checkout pages of the provider."""

    async def create(
        self,
        *,
        plan: str,
        price: str | None = None,
        quantity: int | None = None,
        addons: Mapping[str, int] | None = None,
        currency: str | None = None,
        success_url: str | UnsetType = UNSET,
        cancel_url: str | UnsetType = UNSET,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> HostedSession:
        """Create a checkout page for a plan, at one of its prices: by default the first, once.

        ``addons`` are quantities by the add-on's id. ``currency`` is one of the price's; without
        it the provider decides.
        """
        ordered = [{"id": each, "quantity": number} for each, number in (addons or {}).items()]
        content = body(
            plan=plan,
            **given(price=price, quantity=quantity, addons=ordered or None, currency=currency),
            success_url=success_url,
            cancel_url=cancel_url,
        )
        return await self._create(
            HostedSession, "/api/v1/billing/checkout-sessions", content, idempotency_key, options
        )


class AsyncPortalSessions(Resource):
    """Pages of the provider on which a customer manages the subscription."""

    async def create(
        self,
        *,
        return_url: str | UnsetType = UNSET,
        idempotency_key: str | None = None,
        **options: Unpack[CallOptions],
    ) -> HostedSession:
        """Create a portal page for the organization's customer."""
        content = body(return_url=return_url)
        return await self._create(
            HostedSession, "/api/v1/billing/portal-sessions", content, idempotency_key, options
        )


class AsyncBilling:
    """The ledger, checkout and the customer portal."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.events: AsyncBillingEvents = AsyncBillingEvents(engine)
        self.checkout_sessions: AsyncCheckoutSessions = AsyncCheckoutSessions(engine)
        self.portal_sessions: AsyncPortalSessions = AsyncPortalSessions(engine)


class AsyncAuth(Resource):
    """The caller."""

    async def whoami(self, **options: Unpack[CallOptions]) -> Whoami:
        """Return the identity and the permissions of the credential."""
        return await self._get(Whoami, options, _WHOAMI)

    async def verify(
        self,
        request_headers: Headers,
        scope: str | None,
        *,
        feature: str | None = None,
        mode: AcceptedMode = "live",
        client_address: str | None = None,
        api_key_header: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPrincipal:
        """Check the credential of a request that your own service received, and return its caller.

        ``request_headers`` are those of that request; `Authorization` and ``X-Organization-Id``
        count. The caller needs ``scope``; None accepts every valid credential. With ``feature`` the
        tenant needs this feature of the plan catalog, too. Test keys need another ``mode`` than
        ``live``. ``client_address`` is the IP address of your client. It counts if the service
        trusts yours (`TRUSTED_PROXIES`): the service records it as the last use of a key, and a key
        with allowed addresses is rejected without it. ``api_key_header`` is the service's
        `API_KEY_HEADER`, if your clients may send keys in it.

        The service is asked in one request each time: a revoked key is rejected at the next one.
        The client's own credential is not sent, and it needs none.

        Raises `AuthenticationError`, `PermissionDeniedError`, `FeatureNotGrantedError`,
        `UnknownFeatureError` if the plan catalog lacks the feature, `RateLimitedError`,
        `HeadTooLargeError`, or `UnavailableError` if the credential cannot be checked: all of them
        `APIError`. To pass the rejection on, answer with ``status_code``,
        ``headers_to_pass_on`` and ``content``. A wrong address raises `UnreadableAnswerError`. A
        lost connection is retried once, nothing else.
        """
        call = verify_call(
            request_headers,
            scope,
            feature,
            mode,
            client_address,
            api_key_header,
        )
        del request_headers  # tracebacks must not show the credential
        try:
            sent = with_headers(call, options)
            response = await self._engine.with_options(options).send(sent)
        except TenantryError as error:
            found = verify_error(error)
            if found is error:
                raise
            raise found from error
        return accepted_by(self._engine, call, response)


class AsyncAuditEvents(Resource):
    """The audit trail."""

    def list(
        self,
        *,
        action: AuditAction | None = None,
        actor_id: str | None = None,
        target_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncPager[AuditEvent]:
        """List entries of the audit trail, newest first."""
        return self._list(
            AuditEvent,
            options,
            "/api/v1/audit-events",
            action=action,
            actor_id=actor_id,
            target_id=target_id,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        )

    async def export(
        self,
        *,
        action: AuditAction | None = None,
        actor_id: str | None = None,
        target_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        **options: Unpack[CallOptions],
    ) -> Response:
        """Return the audit trail, newest first: ``content`` has one JSON object a line (NDJSON).

        A long trail may need more than the client's ``attempt_timeout``.
        """
        parameters = query(
            action=action, actor_id=actor_id, target_id=target_id, since=since, until=until
        )
        call = Call(
            "GET",
            "/api/v1/audit-events/export",
            parameters,
            headers={"Accept": "application/x-ndjson"},
        )
        return await self._engine.with_options(options).send(call)


class AsyncHealthChecks(Resource):
    """The state of the server process that answers; no credential is needed."""

    async def live(self, **options: Unpack[CallOptions]) -> Health:
        """Return whether the process is alive. It checks nothing else."""
        return await self._state("/healthz", options)

    async def ready(self, **options: Unpack[CallOptions]) -> Health:
        """Return whether the service can answer requests. A ``status`` other than ``ok`` raises no
        error.
        """
        return await self._state("/readyz", options)

    async def _state(self, path: str, options: CallOptions) -> Health:
        call = Call("GET", path, is_anonymous=True, accepted=503)
        return await self._send(Health, call, options)


async def _rotate(
    engine: AsyncEngine, key_id: str, content: Content, idempotency_key: str | None
) -> NewApiKey:
    ends = engine.deadline()
    lost: str | None = None
    for _ in range(_LOST_KEYS):
        address = path("/api/v1/api-keys/{}/rotate", lost or key_id)
        try:
            call = creation(address, content, idempotency_key)
            return (await engine.send(call, ends)).parse(NewApiKey)
        except TenantryError as error:
            if idempotency_key is not None:
                raise
            replayed = _lost_key(error)
            if replayed is None:
                if left := _lost_rotation(error, key_id, lost):
                    raise left from error
                raise
            lost = replayed
            content = body(overlap_seconds=0)
    raise LostKeyError(
        f"Every response with the new key's secret was lost; the last key is {lost}: revoke it.",
        lost,
    )


async def _revoke_lost(engine: AsyncEngine, key_id: str, ends: float) -> None:
    try:
        check_deleted(await engine.send(Call("DELETE", path("/api/v1/api-keys/{}", key_id)), ends))
    except TenantryError as error:
        raise LostKeyError(
            f"The key {key_id} was created, but its secret was lost with the response, and revoking it failed: "
            "revoke it.",
            key_id,
        ) from error


def _lost_key(error: TenantryError) -> str | None:
    """Return the id of the key whose response was lost, if the error reports one."""
    match error:
        case ConflictError(code="idempotency_replay", document={"id": str(key_id)}):
            return key_id
        case _:
            return None


def _lost_rotation(error: TenantryError, key_id: str, lost: str | None) -> LostKeyError | None:
    """Return the error of a failed rotation if it left a key behind."""
    if lost is not None:
        return LostKeyError(
            f"The key {lost} replaced {key_id}, but its secret was lost with the response, and rotating it failed: "
            "revoke it, and create another.",
            lost,
        )
    if isinstance(error, AuthenticationError) and error.after_lost_answer:
        return LostKeyError(
            f"The key {key_id} rotated itself and has ended, but the new key's secret was lost with the response. With "
            f"another credential, revoke the key that was rotated from {key_id}, and create another.",
            None,
        )
    return None
