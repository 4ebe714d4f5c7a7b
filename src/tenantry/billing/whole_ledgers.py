"""Folding the whole ledgers of tenants again, as a replay does and a change of a customer's
link.
"""

from collections.abc import Sequence

from tenantry.billing import ledger_queries_store as store
from tenantry.db.connection import Connection
from tenantry.domain.billing.ledger import BillingAccount
from tenantry.domain.billing.ledger_fold import FoldedLedger, LedgerFold
from tenantry.domain.billing.state import BillingPolicy


async def fold_ledgers(
    connection: Connection,
    accounts: Sequence[BillingAccount],
    policy: BillingPolicy,
) -> list[FoldedLedger]:
    """Fold the events of each account; return the results in the same order.

    Which subscriptions have moved to another tenant stays as it is stored: that depends on other
    tenants' events, and a replay repairs it at the end.
    """
    ledgers = {account.tenant_id: LedgerFold(account, policy) for account in accounts}
    async with store.folded_events(connection, list(ledgers)) as events:
        async for tenant_id, event in events:
            ledgers[tenant_id].add(event)
    return [ledger.end()[0] for ledger in ledgers.values()]
