"""Folding the whole ledgers of tenants again, as a replay does and a change of a customer's
link.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from tenantry.billing import customer_links_store, ledger_store
from tenantry.billing import ledger_queries_store as store
from tenantry.billing.published_accounts import write_accounts
from tenantry.db.connection import Connection
from tenantry.domain.billing.ledger import AccountChange, BillingAccount
from tenantry.domain.billing.ledger_fold import FoldedLedger, LedgerFold
from tenantry.domain.billing.state import BillingPolicy


async def fold_ledgers(
    connection: Connection,
    accounts: Sequence[BillingAccount],
    policy: BillingPolicy,
    since: int = -1,
) -> list[FoldedLedger]:
    """Fold the events of each account, from a second on; return the results in the same order.

    Which subscriptions have moved to another tenant stays as it is stored: that depends on other
    tenants' events, and a replay repairs it at the end.
    """
    ledgers = {account.tenant_id: LedgerFold(account, policy) for account in accounts}
    async with store.folded_events(connection, list(ledgers), since) as events:
        async for tenant_id, event in events:
            ledgers[tenant_id].add(event)
    return [ledger.end()[0] for ledger in ledgers.values()]


async def release_customers(
    connection: Connection,
    account: BillingAccount,
    customers: Sequence[str],
    policy: BillingPolicy,
    now: datetime,
) -> None:
    """Remove the links of these customers of a tenant, park the events that it has by them alone,
    and fold it again.

    The caller has locked the names of the customers and the tenant, and read the account of the
    tenant since.
    """
    await customer_links_store.unlink(
        connection, account.tenant_id, customers, now, each=policy.is_each
    )
    [folded] = await fold_ledgers(connection, [account], policy)
    present = account.customer_id
    if present in customers:
        present = await customer_links_store.newest_customer(connection, account.tenant_id)
    changed = msgspec.structs.replace(folded.account, customer_id=present)
    change = AccountChange(changed, account)
    await ledger_store.write(connection, write_accounts([change], policy, now), commit=False)
