"""Invitations by mail. Every statement but `find_tenant_id` names the tenant."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.pagination import Listing, Page, Window
from tenantry.domain.errors import NotFoundError
from tenantry.domain.invitations import (
    Invitation,
    InvitationStatus,
    InvitationTerms,
)
from tenantry.domain.mail_addresses import spellings

STATUS: Final = (
    "coalesce(closed_as, CASE WHEN expires_at <= %(now)s THEN 'expired' ELSE 'open' END)"
)
"""The status of an invitation at the moment of the parameter ``now``."""
_RECORD: Final = f"id, org_id, email, role, {STATUS}, invited_by, created_at, expires_at, sent_at"
_LISTING: Final = Listing(_RECORD, "invitations", "created_at")
_FIND: Final = """
SELECT id, org_id, email, role, coalesce(closed_as, CASE WHEN expires_at <= %(now)s THEN 'expired' ELSE 'open' END),
       invited_by, created_at, expires_at, sent_at, address, sends, binds_owner, member_id
  FROM invitations
 WHERE org_id = %(org)s AND id = %(id)s
"""
_READ_ALL: Final = """
SELECT id, org_id, email, role, coalesce(closed_as, CASE WHEN expires_at <= %(now)s THEN 'expired' ELSE 'open' END),
       invited_by, created_at, expires_at, sent_at
  FROM invitations
 WHERE org_id = %(org)s
 ORDER BY created_at, id
"""
_INSERT: Final = """
INSERT INTO invitations (id, org_id, email, address, role, binds_owner, invited_by, sends, created_at, expires_at)
VALUES (%(id)s, %(org_id)s, %(email)s, %(address)s, %(role)s, %(binds_owner)s, %(invited_by)s, %(sends)s,
        %(created_at)s, %(expires_at)s)
"""
# One that expired keeps the place of the address until the address is invited again.
_CLOSE_EXPIRED: Final = """
UPDATE invitations
   SET closed_as = 'expired', closed_at = expires_at
 WHERE org_id = %(org)s AND address = %(address)s AND closed_as IS NULL AND expires_at <= %(now)s
"""
_HAS_OPEN: Final = """
SELECT EXISTS (SELECT FROM invitations WHERE org_id = %(org)s AND address = %(address)s AND closed_as IS NULL)
"""
# A profile has the address that the identity provider verified last, as it wrote it. The invitation
# that a member accepted may name another one.
_FIND_MEMBER: Final = """
SELECT id
  FROM memberships
 WHERE tenant_id = %(org)s
   AND removed_at IS NULL
   AND NOT invited
   AND ((issuer, subject) IN (SELECT issuer, subject
                                FROM user_profiles
                               WHERE org_id = %(org)s AND lower(email) = ANY(%(spellings)s))
        OR id IN (SELECT member_id FROM invitations WHERE org_id = %(org)s AND address = %(address)s))
 LIMIT 1
"""
_COUNT_OPEN: Final = """
SELECT count(*) FROM invitations WHERE org_id = %(org)s AND closed_as IS NULL AND expires_at > %(now)s
"""
_CLOSE: Final = """
UPDATE invitations
   SET closed_as = %(status)s, closed_at = %(now)s
 WHERE org_id = %(org)s AND id = %(id)s AND closed_as IS NULL
"""
_SENT_AGAIN: Final = """
UPDATE invitations
   SET sends = sends + 1, expires_at = %(expires_at)s
 WHERE org_id = %(org)s AND id = %(id)s
"""


def _invitation(row: Sequence[Any]) -> Invitation:
    invitation_id, org_id, email, role, status, invited_by, *times = row
    return Invitation(
        invitation_id,
        org_id,
        email,
        role,
        InvitationStatus(status),
        invited_by,
        *times,
    )


async def read_page(
    connection: Connection,
    org_id: str,
    status: InvitationStatus | None,
    window: Window,
    now: datetime,
) -> Page[Invitation]:
    """Read a page of a tenant's invitations, newest first; None means any status."""
    return await _LISTING.page(
        connection,
        "org_id = %(org)s",
        {"org": org_id, "status": status, "now": now},
        window,
        _invitation,
        filtered=f"%(status)s::text IS NULL OR {STATUS} = %(status)s",
    )


async def get(
    connection: Connection, org_id: str, invitation_id: str, now: datetime
) -> InvitationTerms:
    """Read an invitation of a tenant, closed ones included. Raises `NotFoundError`."""
    row = await connection.fetch_row(_FIND, {"org": org_id, "id": invitation_id, "now": now})
    if row is None:
        raise NotFoundError("invitation")
    address, sends, binds_owner, member_id = row[-4:]
    return InvitationTerms(
        _invitation(row[:-4]),
        address,
        sends,
        binds_owner,
        member_id,
    )


async def find_tenant_id(connection: Connection, invitation_id: str) -> str | None:
    """Find the tenant of an invitation whose link was verified."""
    statement = "SELECT org_id FROM invitations WHERE id = %s"
    found: str | None = await connection.fetch_value(statement, (invitation_id,))
    return found


async def has_open(connection: Connection, org_id: str, address: str, now: datetime) -> bool:
    """Whether the tenant has an open invitation for an address; close one that expired."""
    values = {"org": org_id, "address": address, "now": now}
    await connection.execute(_CLOSE_EXPIRED, values)
    return bool(await connection.fetch_value(_HAS_OPEN, values))


async def find_member_id(
    connection: Connection, org_id: str, email: str, address: str
) -> str | None:
    """Find an active member who is known to have this address, in any of its `spellings`, or who
    accepted an invitation to it; ``address`` is its comparable form.
    """
    values = {"org": org_id, "spellings": spellings(email), "address": address}
    found: str | None = await connection.fetch_value(_FIND_MEMBER, values)
    return found


async def count_open(connection: Connection, org_id: str, now: datetime) -> int:
    """Count a tenant's invitations that can be accepted."""
    return await connection.fetch_count(_COUNT_OPEN, {"org": org_id, "now": now})


async def insert(connection: Connection, terms: InvitationTerms) -> None:
    """Store a new invitation."""
    values = {**msgspec.structs.asdict(terms), **msgspec.structs.asdict(terms.invitation)}
    del values["invitation"]
    await connection.execute(_INSERT, values)


async def close(
    connection: Connection,
    invitation: Invitation,
    status: InvitationStatus,
    now: datetime,
) -> None:
    """Close an open invitation."""
    values = {
        "org": invitation.org_id,
        "id": invitation.id,
        "status": status,
        "now": now,
    }
    await connection.execute(_CLOSE, values)


async def name_member(connection: Connection, invitation: Invitation, member_id: str) -> None:
    """Store the membership of the user who accepted."""
    statement = "UPDATE invitations SET member_id = %s WHERE org_id = %s AND id = %s"
    await connection.execute(statement, (member_id, invitation.org_id, invitation.id))


async def mark_sent_again(connection: Connection, invitation: Invitation) -> None:
    """Count another mail of an invitation, and store its new end."""
    values = {
        "org": invitation.org_id,
        "id": invitation.id,
        "expires_at": invitation.expires_at,
    }
    await connection.execute(_SENT_AGAIN, values)


async def read_all(connection: Connection, org_id: str, now: datetime) -> list[Invitation]:
    """Read all invitations of a tenant, for its export."""
    rows = await connection.fetch(_READ_ALL, {"org": org_id, "now": now})
    return [_invitation(row) for row in rows]
