"""The active members of tenants, and the subscriptions whose seats follow them."""

from collections.abc import Collection
from typing import Final

from tenantry.db.connection import Connection
from tenantry.db.tenants_store import issuer_values
from tenantry.domain.issuers import Issuers
from tenantry.domain.plans import OVER

COUNT_ACTIVE_MEMBERS: Final = """
SELECT count(*)
  FROM memberships
 WHERE tenant_id = %(org)s
   AND removed_at IS NULL
   AND NOT invited
   AND (%(issuers)s::text[] IS NULL OR issuer = ANY(%(issuers)s) OR issuer LIKE %(pattern)s)
"""
# Without a status of the provider's own a fold is of invoices alone, or not of a subscription.
SEAT_SUBSCRIPTIONS: Final = """
SELECT id
  FROM subscriptions
 WHERE tenant_id = %(org)s
   AND id <> ''
   AND plan = ANY(%(plans)s)
   AND provider_status <> ALL(%(over)s)
 ORDER BY id
"""
# A scan of the tenants, once an hour, and only where the catalog has such plans. The record of a
# tenant with several subscriptions, or a grant, may be of another one. Only of those few are the
# folds read, which takes 20 us each.
DRIFTED: Final = """
WITH known AS (
       SELECT id, seats
         FROM tenants
        WHERE deleted_at IS NULL
          AND plan = ANY(%(plans)s)
          AND subscription_status <> ALL(%(over)s)
          AND NOT cancel_at_period_end
          AND cancel_at IS NULL
        UNION ALL
       SELECT t.id, s.quantity
         FROM tenants t
         JOIN subscriptions s ON s.tenant_id = t.id
        WHERE t.deleted_at IS NULL
          AND (t.seats IS NULL OR t.plan <> ALL(%(plans)s))
          AND EXISTS (SELECT FROM unnest(%(plans)s::text[]) AS plan
                       WHERE strpos(t.folds::text, to_json(plan)::text) > 0)
          AND s.id <> ''
          AND s.moved_at IS NULL
          AND s.plan = ANY(%(plans)s)
          AND s.provider_status <> ALL(%(over)s)
          AND NOT s.cancel_at_period_end
          AND s.cancel_at IS NULL)
SELECT DISTINCT known.id
  FROM known
 WHERE known.seats <> greatest(1, (
           SELECT count(*)
             FROM memberships m
            WHERE m.tenant_id = known.id
              AND m.removed_at IS NULL
              AND NOT m.invited
              AND (%(issuers)s::text[] IS NULL OR m.issuer = ANY(%(issuers)s)
                   OR m.issuer LIKE %(pattern)s)))
 ORDER BY known.id
 LIMIT %(most)s
"""


async def count_active_members(connection: Connection, org_id: str, issuers: Issuers | None) -> int:
    """Count a tenant's active members, users of the ``issuers``: neither invited nor removed."""
    values = {"org": org_id, **issuer_values(issuers)}
    return await connection.fetch_count(COUNT_ACTIVE_MEMBERS, values)


async def seat_subscriptions(
    connection: Connection, org_id: str, plans: Collection[str]
) -> list[str]:
    """Return a tenant's subscriptions to one of these plans that have not ended."""
    values = {"org": org_id, "plans": list(plans), "over": list(OVER)}
    return await connection.fetch_column(SEAT_SUBSCRIPTIONS, values)


async def drifted(
    connection: Connection, plans: Collection[str], issuers: Issuers | None, most: int
) -> list[str]:
    """Return up to ``most`` tenants with a subscription to one of these plans whose quantity is not
    the number of their active members.
    """
    values = {"plans": list(plans), "over": list(OVER), "most": most, **issuer_values(issuers)}
    return await connection.fetch_column(DRIFTED, values)
