"""The users of a tenant as its pages list them: members, invited users, and users by claim."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.accounts.members_store import OF_ISSUERS, of_subject
from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import MAX_SCANNED_RECORDS, Listing
from tenantry.db.tenants_store import TenantUsers
from tenantry.domain.invitations import InvitationStatus
from tenantry.domain.members import User, UserProfile
from tenantry.domain.plans import Count, count_up_to

_MOST_COUNTED: Final = 1000
_PROFILE: Final = "name, email, seen_at"
_FOUND: Final = """
(%(text)s = '' OR position(lower(%(text)s) IN lower(concat_ws(' ', name, email, subject))) > 0)
"""
_OF_ROLE: Final = "(%(role)s = '' OR role = %(role)s)"
# The address of a primary owner who has not used the tenant yet is as in `read_profiles`.
_MEMBERS: Final = Listing(
    f"id, issuer, subject, role, created_at, removed_at, {_PROFILE}",
    """
    (SELECT m.id, m.tenant_id, m.issuer, m.subject, m.role, m.invited, m.created_at, m.removed_at,
            p.name, CASE WHEN p.seen_at IS NULL AND m.role = 'owner' AND m.subject = t.owner_id AND m.removed_at IS NULL
                          AND NOT EXISTS (SELECT FROM memberships o
                                           WHERE (o.tenant_id, o.subject) = (m.tenant_id, m.subject)
                                             AND o.issuer <> m.issuer AND o.role = 'owner' AND o.removed_at IS NULL)
                         THEN t.owner_email ELSE p.email END AS email, p.seen_at
       FROM memberships m
       JOIN tenants t ON t.id = m.tenant_id
       LEFT JOIN user_profiles p ON (p.org_id, p.issuer, p.subject) = (m.tenant_id, m.issuer, m.subject))
    """,
    "created_at",
    most=MAX_SCANNED_RECORDS,
)
# Invitations by mail, and memberships that their users have not accepted.
_INVITED: Final = Listing(
    f"id, issuer, subject, role, status, created_at, expires_at, sent_at, {_PROFILE}",
    """
    (SELECT id, org_id, NULL AS issuer, NULL AS subject, role,
            coalesce(closed_as, CASE WHEN expires_at <= %(now)s THEN 'expired' ELSE 'open' END) AS status,
            created_at, expires_at, sent_at, NULL AS name, email, NULL::timestamptz AS seen_at
       FROM invitations
      UNION ALL
     SELECT m.id, m.tenant_id, m.issuer, m.subject, m.role, 'open', m.created_at, NULL, NULL,
            p.name, p.email, p.seen_at
       FROM memberships m
       LEFT JOIN user_profiles p ON (p.org_id, p.issuer, p.subject) = (m.tenant_id, m.issuer, m.subject)
      WHERE m.invited AND m.removed_at IS NULL)
    """,
    "created_at",
    most=MAX_SCANNED_RECORDS,
)
_CLAIMED: Final = Listing(
    f"issuer, subject, role, {_PROFILE}",
    """
    (SELECT p.*, p.claimed_role AS role, p.subject || ' ' || p.issuer AS tie
       FROM user_profiles p
      WHERE p.claimed_role IS NOT NULL
        AND NOT EXISTS (SELECT FROM memberships m
                         WHERE (m.issuer, m.subject, m.tenant_id) = (p.issuer, p.subject, p.org_id)))
    """,
    "seen_at",
    "tie",
    most=MAX_SCANNED_RECORDS,
)
_COUNT: Final = """
SELECT (SELECT count(*) FROM (
          SELECT FROM memberships
           WHERE tenant_id = %(org)s
             AND (%(issuers)s::text[] IS NULL OR issuer = ANY(%(issuers)s) OR issuer LIKE %(pattern)s)
             AND removed_at IS NULL AND NOT invited
           LIMIT %(most)s) members),
       (SELECT count(*) FROM (
          SELECT FROM memberships
           WHERE tenant_id = %(org)s
             AND (%(issuers)s::text[] IS NULL OR issuer = ANY(%(issuers)s) OR issuer LIKE %(pattern)s)
             AND removed_at IS NULL AND invited
           LIMIT %(most)s) invited)
       + (SELECT count(*) FROM invitations WHERE org_id = %(org)s AND closed_as IS NULL),
       (SELECT count(*) FROM (
          SELECT FROM user_profiles p
           WHERE org_id = %(org)s
             AND (%(issuers)s::text[] IS NULL OR issuer = ANY(%(issuers)s) OR issuer LIKE %(pattern)s)
             AND claimed_role IS NOT NULL
             AND NOT EXISTS (SELECT FROM memberships m
                              WHERE (m.issuer, m.subject, m.tenant_id) = (p.issuer, p.subject, p.org_id))
           LIMIT %(most)s) claimed)
"""


_ACTIVE: Final = "removed_at IS NULL AND NOT invited"
_REMOVED: Final = "removed_at IS NOT NULL"
_PENDING: Final = "status IN ('open', 'expired')"
_CLOSED: Final = "status IN ('accepted', 'withdrawn')"


class UserSearch(msgspec.Struct, frozen=True):
    """Conditions on users of a tenant; an empty text means any.

    ``text`` is a part of the name, the address or the user id, in any case.
    """

    text: str = ""
    role: str = ""


class ListedMember(msgspec.Struct, frozen=True):
    """A member of a tenant, removed ones included."""

    id: str
    user: User
    role: str
    created_at: datetime
    removed_at: datetime | None
    profile: UserProfile | None
    """None if the tenant knows nothing but the user id."""


class ListedInvitation(msgspec.Struct, frozen=True):
    """An invitation by mail, or of a user by id."""

    id: str
    """Of the invitation, or of the membership."""
    user: User | None
    """None for an invitation by mail."""
    role: str
    status: InvitationStatus
    created_at: datetime
    expires_at: datetime | None
    """None for an invitation of a user by id, which does not expire."""
    sent_at: datetime | None
    """When the mail server accepted the last mail."""
    name: str | None
    email: str | None
    """The invited address, or the one that the identity provider has verified as the user's."""


class ClaimedUser(msgspec.Struct, frozen=True):
    """A user whom a claim of the identity provider gives access, without a membership."""

    user: User
    role: str
    profile: UserProfile


class UserCounts(msgspec.Struct, frozen=True):
    """Users of a tenant, each number up to 1,000."""

    members: Count
    invited: Count
    """Invitations that are open, or expired and not renewed."""
    claimed: Count


async def read_members(
    connection: Connection,
    users: TenantUsers,
    wanted: UserSearch,
    page: PageRequest,
    *,
    removed: bool = False,
) -> NumberedPage[ListedMember]:
    """Read a page of active or removed members, newest first. Raises `InvalidCursorError`.

    A search examines `MAX_SCANNED_RECORDS` members, and finds a whole user id among all.
    """
    listing = NumberedListing(
        _MEMBERS,
        "tenant_id = %(org)s",
        {**users.values, **msgspec.structs.asdict(wanted)},
        f"{OF_ISSUERS} AND {_REMOVED if removed else _ACTIVE} AND {_OF_ROLE} AND {_FOUND}",
    )
    found = await listing.read(connection, page, _member)
    if found.data or found.looked_back_to is None or not wanted.text:
        return found
    condition = f"{listing.condition} AND {of_subject('text', users.issuers)}"
    of_user = listing._replace(condition=condition)
    exact = await of_user.read(connection, page, _member)
    return exact if exact.data else found


async def read_invited(
    connection: Connection,
    users: TenantUsers,
    wanted: UserSearch,
    page: PageRequest,
    now: datetime,
    *,
    closed: bool = False,
) -> NumberedPage[ListedInvitation]:
    """Read a page of pending invitations, or of those that were accepted or withdrawn, newest
    first. Raises `InvalidCursorError`.
    """
    values = {"now": now, **users.values}
    listing = NumberedListing(
        _INVITED,
        "org_id = %(org)s",
        {**values, **msgspec.structs.asdict(wanted)},
        f"(issuer IS NULL OR {OF_ISSUERS}) AND {_CLOSED if closed else _PENDING} AND {_OF_ROLE} AND {_FOUND}",
    )
    return await listing.read(connection, page, _invitation)


async def read_claimed(
    connection: Connection,
    users: TenantUsers,
    wanted: UserSearch,
    page: PageRequest,
) -> NumberedPage[ClaimedUser]:
    """Read a page of users by claim, the last seen first. Raises `InvalidCursorError`."""
    listing = NumberedListing(
        _CLAIMED,
        "org_id = %(org)s",
        {**users.values, **msgspec.structs.asdict(wanted)},
        f"{OF_ISSUERS} AND {_OF_ROLE} AND {_FOUND}",
    )
    return await listing.read(connection, page, _claimed)


async def count(connection: Connection, users: TenantUsers) -> UserCounts:
    """Count the users of a tenant."""
    values = {**users.values, "most": _MOST_COUNTED + 1}
    row = await connection.fetch_row(_COUNT, values)
    return UserCounts(*(count_up_to(number, _MOST_COUNTED) for number in row or ()))


def _member(row: Sequence[Any]) -> ListedMember:
    member_id, issuer, subject, role, created_at, removed_at, *profile = row
    return ListedMember(
        member_id,
        User(issuer, subject),
        role,
        created_at,
        removed_at,
        _profile(profile),
    )


def _invitation(row: Sequence[Any]) -> ListedInvitation:
    invitation_id, issuer, subject, role, status, *described = row
    created_at, expires_at, sent_at, name, email, _seen_at = described
    return ListedInvitation(
        invitation_id,
        None if issuer is None else User(issuer, subject),
        role,
        InvitationStatus(status),
        created_at,
        expires_at,
        sent_at,
        name,
        email,
    )


def _claimed(row: Sequence[Any]) -> ClaimedUser:
    issuer, subject, role, *profile = row
    return ClaimedUser(User(issuer, subject), role, UserProfile(*profile))


def _profile(columns: Sequence[Any]) -> UserProfile | None:
    return UserProfile(*columns) if any(columns) else None
