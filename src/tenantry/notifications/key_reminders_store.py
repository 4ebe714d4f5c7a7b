"""The keys that reminders by mail are about, and what was mailed of them."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain import key_reminders as rules
from tenantry.domain.key_reminders import Mailed, RemindedKey
from tenantry.domain.owner_mails import KEY_REMINDER, KeyReminderData

# In the order of `api_keys_of_tenant`, so that a round reads the keys of its tenants alone. One
# with nothing due is among them: `reminder_mails` decides.
TENANTS: Final = """
SELECT DISTINCT k.org_id
  FROM api_keys k
  JOIN tenants t ON t.id = k.org_id
 WHERE k.org_id > %(after)s AND k.revoked_at IS NULL AND k.enabled
   AND (k.expires_at IS NULL OR k.expires_at > %(now)s)
   AND t.deleted_at IS NULL AND t.suspended_at IS NULL AND NOT t.leaves_key_mails
   AND (k.expires_at <= %(now)s + make_interval(days => %(first)s)
        OR (t.verified_email <> '' AND coalesce(k.last_used_at, k.created_at) <= %(now)s - %(unused)s
            AND NOT EXISTS (SELECT FROM mails m
                             WHERE m.tenant_id = k.org_id AND m.type = %(type)s AND m.due_at >= %(quarter)s
                               AND m.status <> 'dropped' AND m.data->'unused' <> '[]')))
 ORDER BY k.org_id
 LIMIT %(most)s
"""
# Keys that work and have no successor, of a tenant that gets reminders. Keys that are switched off
# do not work. The maker is a user with a verified address who is a member now, or whom a token's
# claim made one within a month. A key stores the maker's subject alone: of two users with it,
# neither gets the mail. The owner's address is the one that was verified last, and empty if none
# was.
KEYS: Final = """
SELECT k.id, k.name, k.start, k.last4, k.mode, k.expires_at, k.created_at, k.last_used_at,
       t.verified_email AS owner,
       coalesce((SELECT min(p.email)
                   FROM user_profiles p
                   LEFT JOIN memberships m ON (m.issuer, m.subject, m.tenant_id) = (p.issuer, p.subject, p.org_id)
                  WHERE p.org_id = k.org_id AND p.subject = k.created_by AND p.email IS NOT NULL
                    AND k.created_by <> 'operator' AND NOT starts_with(k.created_by, 'key_')
                    AND CASE WHEN m.subject IS NULL
                             THEN p.claimed_role IS NOT NULL AND p.seen_at > %(now)s - interval '30 days'
                             ELSE m.removed_at IS NULL AND NOT m.invited END
                 HAVING count(*) = 1),
                t.verified_email) AS recipient
  FROM api_keys k
  JOIN tenants t ON t.id = k.org_id
 WHERE k.org_id = %(tenant)s
   AND k.revoked_at IS NULL AND k.superseded_by IS NULL AND k.enabled
   AND (k.expires_at IS NULL OR k.expires_at > %(now)s)
   AND (k.expires_at <= %(now)s + make_interval(days => %(first)s)
        OR coalesce(k.last_used_at, k.created_at) <= %(now)s - %(unused)s)
   AND (%(keys)s::text[] IS NULL OR k.id = ANY(%(keys)s))
   AND t.deleted_at IS NULL AND t.suspended_at IS NULL AND NOT t.leaves_key_mails
 ORDER BY k.expires_at, coalesce(k.last_used_at, k.created_at), k.id
"""
# A mail that was dropped was sent to nobody.
MAILED: Final = """
SELECT due_at, data::text
  FROM mails
 WHERE tenant_id = %(tenant)s AND type = %(type)s AND status <> 'dropped'
   AND due_at >= least(%(quarter)s, %(now)s - make_interval(days => %(first)s + 1))
"""


async def tenants_with_reminders(
    connection: Connection, after: str, most: int, now: datetime
) -> list[str]:
    """Return the next tenants, by their ids, of which reminders may be due."""
    values = {**_values(now), "after": after, "most": most}
    return await connection.fetch_column(TENANTS, values)


async def reminded_keys(
    connection: Connection, tenant_id: str, now: datetime, keys: Collection[str] | None = None
) -> list[RemindedKey]:
    """Return the keys of a tenant that expire soon or are unused, the first to expire first; of
    ``keys`` alone, if these are given.
    """
    values = {**_values(now), "tenant": tenant_id, "keys": None if keys is None else list(keys)}
    return [RemindedKey(*row) for row in await connection.fetch(KEYS, values)]


async def mailed(connection: Connection, tenant_id: str, now: datetime) -> Mailed:
    """Return what a tenant's people were reminded of that still counts."""
    values = {**_values(now), "tenant": tenant_id}
    rows = await connection.fetch(MAILED, values)
    mails = [(due_at, msgspec.json.decode(data, type=KeyReminderData)) for due_at, data in rows]
    return rules.mailed_before(mails, now)


def _values(now: datetime) -> dict[str, Any]:
    return {
        "now": now,
        "first": rules.FIRST_DAYS,
        "unused": rules.UNUSED_AFTER,
        "quarter": rules.quarter_start(now),
        "type": KEY_REMINDER,
    }
