"""Who a caller is at the moment of a change, not at the beginning of the request."""

from datetime import datetime

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.access import AccessLevel, Principal, PrincipalKind, intersect, role_grants
from tenantry.domain.api_keys import KeyStatus
from tenantry.domain.errors import ApiKeyExpiredError, ApiKeyRevokedError, NoOrganizationError
from tenantry.domain.members import MemberStatus
from tenantry.store import api_keys, members


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
    member = await members.find_user(connection, principal.org_id, issuer, principal.id)
    if member is None:
        return principal
    if member.status is MemberStatus.REMOVED:
        raise NoOrganizationError("The user does not belong to this organization any more.")
    granted, level = role_grants(member.role, ())
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
