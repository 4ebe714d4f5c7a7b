"""Whether a tenant has had a trial, and which checkout session offers one."""

from typing import Final

import msgspec

from tenantry.db.connection import Connection

# The ledger keeps the facts of every event, so it remembers a trial for as long as the tenant
# exists. Only checkouts of plans with a trial read it, and pages that show such plans.
TRIAL_USE: Final = """
SELECT EXISTS (SELECT FROM billing_events
                WHERE tenant_id = t.id
                  AND outcome NOT IN ('parked', 'ignored', 'invalid')
                  AND document->'details'->>'trial_end' IS NOT NULL),
       t.trial_checkout
  FROM tenants t
 WHERE t.id = %s
"""
# Of two checkouts at the same time, the second to get here finds that of the first.
REMEMBER_TRIAL_CHECKOUT: Final = """
UPDATE tenants
   SET trial_checkout = %(session)s
 WHERE id = %(org)s
   AND (trial_checkout IS NOT DISTINCT FROM %(ended)s OR trial_checkout = %(session)s)
"""


class TrialUse(msgspec.Struct, frozen=True):
    """Whether a tenant had a trial, by its events; and the last checkout session that offered one
    through tenantry.
    """

    had_trial: bool
    offered_in: str | None


async def trial_use(connection: Connection, org_id: str) -> TrialUse:
    """Read what a tenant had of trials."""
    [(had_trial, offered_in)] = await connection.fetch(TRIAL_USE, (org_id,))
    return TrialUse(had_trial, offered_in)


async def remember_trial_checkout(
    connection: Connection, org_id: str, session_id: str, ended: str | None
) -> str | None:
    """Store the session that offers a trial instead of the session that has ``ended``.

    Return None, or the session of another checkout that is stored by now.
    """
    values = {"session": session_id, "org": org_id, "ended": ended}
    cursor = await connection.execute(REMEMBER_TRIAL_CHECKOUT, values)
    if cursor.rowcount:
        return None
    return (await trial_use(connection, org_id)).offered_in
