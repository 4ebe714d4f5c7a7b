"""Who a caller is at the moment of a change, not at the beginning of the request."""

from datetime import datetime

import msgspec

from tenantry.accounts import members_store as members
from tenantry.auth import api_keys_store as api_keys
from tenantry.db.connection import Connection
from tenantry.domain.access import AccessLevel, Principal, PrincipalKind, Role, intersect, role_grants
from tenantry.domain.api_keys import KeyStatus
from tenantry.domain.errors import ApiKeyExpiredError, ApiKeyRevokedError


async def as_of_now(connection: Connection, principal: Principal, issuer: str | None, now: datetime) -> Principal:
    """The principal with what has been taken from it since it was let in.

    A request may have waited for the tenant's row while its caller was revoked, removed or made less. Whoever holds the
    row asks again, or the caller could undo it. ``issuer`` is the identity provider's, where there is one.
    Raises `ApiKeyRevokedError`, `ApiKeyExpiredError` and `NoOrganizationError`.
    """
    if principal.kind is PrincipalKind.API_KEY:
        return await _key_as_of_now(connection, principal, now)
    if issuer is None:
        return principal
    bound = await members.find_bound(connection, principal.org_id, issuer, principal.id)
    if bound is None or (principal.claimed_role is Role.OWNER and not bound.binds_owner):
        return principal
    bound.check(principal)
    granted, level = role_grants(bound.role, ())
    return msgspec.structs.replace(
        principal,
        scopes=intersect(principal.scopes, granted),
        access_level=level if level is AccessLevel.SCOPED else principal.access_level,
    )


async def _key_as_of_now(connection: Connection, principal: Principal, now: datetime) -> Principal:
    key = await api_keys.find(connection, principal.org_id, principal.id, now, test_only=False)
    if key is None or key.status is KeyStatus.REVOKED:
        raise ApiKeyRevokedError("The API key has been revoked.")
    if key.status is KeyStatus.EXPIRED:
        raise ApiKeyExpiredError("The API key has expired.")
    return msgspec.structs.replace(
        principal, scopes=key.scopes, access_level=key.access_level, expires_at=key.expires_at
    )
