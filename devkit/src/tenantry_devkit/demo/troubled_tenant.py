"""The demo's second tenant, which needs the operator: a payment failed, a grant ends soon, a key
leaked.
"""

from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from tenantry.auth.leak_reports import LeakReportService
from tenantry.cli.operator_services import OperatorServices
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.db.outbox import Outbox
from tenantry.domain.api_keys import KeyTerms, Pepper
from tenantry.domain.audit import BY_OPERATOR, ActorKind, Author
from tenantry.domain.grants import GrantInput
from tenantry.domain.permissions import Mode, operator_principal
from tenantry.domain.plans import Catalog
from tenantry.domain.tenants import TenantInput
from tenantry.settings import Settings
from tenantry_devkit.local.samples import EventSubject, interval_of, plan_prices, subscribe
from tenantry_devkit.simulator import Simulator

TENANT: Final = "harbor"
CUSTOMER: Final = "cus_harbor"
NAME: Final = "Harbor Analytics"
_EMAIL: Final = "hana@harbor.example"
HISTORY: Final = timedelta(days=32)
"""How long ago its subscription began: the payment of the second month has failed since."""
_GRANT: Final = "trial"
_GRANT_LENGTH: Final = timedelta(days=2)
_LEAKED_KEY: Final = "Nightly export"
_KEY_BESIDE: Final = "Weekly report"
"""A key from the same file as the leaked one; no client has reported it."""


async def seed(services: OperatorServices, settings: Settings, database: Database) -> None:
    """Create the tenant with a grant and two keys, and report one of them as leaked. Raises
    `TenantExistsError`.
    """
    wanted = TenantInput(name=NAME, owner_email=_EMAIL, stripe_customer_id=CUSTOMER, plan="free")
    await services.tenants.put(BY_OPERATOR, TENANT, wanted, only_new=True)
    grant = GrantInput(
        reason="Trial of the largest plan",
        plan=settings.billing.catalog.plans[-1].id,
        until=system_clock() + _GRANT_LENGTH,
    )
    await services.grants.put(BY_OPERATOR, TENANT, _GRANT, grant)
    principal = replace(operator_principal(TENANT), mode=Mode.LIVE)
    leaked, _ = [
        await services.api_keys.create(
            principal,
            BY_OPERATOR,
            KeyTerms(name=name, scopes=("projects:read",), metadata={"file": "etl/.env"}),
            claim=None,
        )
        for name in (_LEAKED_KEY, _KEY_BESIDE)
    ]
    reports = LeakReportService(
        database,
        [Pepper(pepper.reveal().encode()) for pepper in settings.peppers],
        Outbox(asks_provider=False, follows_seats=False),
        system_clock,
        credentials=settings.credentials,
    )
    await reports.report(Author(ActorKind.ANYBODY), leaked.secret)


def fail_a_payment(provider: Simulator, catalog: Catalog) -> None:
    """Subscribe the tenant to the first paid monthly plan, and let its later payments fail."""
    monthly = (
        price
        for price, amount in plan_prices(catalog).items()
        if amount and interval_of(price) == "month"
    )
    provider.customer(CUSTOMER, email=_EMAIL, name=NAME)
    if price := next(monthly, None):
        subscribe(provider, EventSubject(TENANT, CUSTOMER, price))
        provider.card_declines(CUSTOMER)
