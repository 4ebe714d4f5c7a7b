"""The prices of the plan catalog, read from the provider in the background."""

import logging
from typing import Final

from tenantry.common.clock import exponential
from tenantry.domain.plans import Catalog, Plan
from tenantry.domain.prices import PlanPrice
from tenantry.integrations.stripe.client import ProviderApi, ProviderPrice

_HOUR: Final = 3600.0
_FIRST_RETRY: Final = 60.0
_NOT_PERMITTED: Final = "the API key may not read"

logger = logging.getLogger(__name__)


class PriceList:
    """What plans cost, as the provider last said; without ``provider`` nothing is known.

    Each process that serves reads the prices for itself: a loop calls `read`, at the start and
    every hour. No request and no start waits for that. A read that fails changes nothing. A price
    that the provider does not sell, and one that is not recurring, is left out and logged when that
    changes.
    """

    def __init__(self, provider: ProviderApi | None, catalog: Catalog) -> None:
        self._provider = provider
        self._ids = [price for plan in catalog.plans for price in plan.stripe_price_ids]
        self._known: dict[str, PlanPrice] | None = None
        self._faults: dict[str, str] = {}
        self._is_answered = False
        self._failures = 0

    @property
    def is_awaited(self) -> bool:
        """Whether the provider has not answered yet."""
        return self._provider is not None and not self._is_answered

    def of_plan(self, plan: Plan) -> tuple[PlanPrice, ...] | None:
        """Return the prices at which a plan is sold, in the catalog's order; None until they are
        known.
        """
        known = self._known
        if known is None:
            return None
        return tuple(known[price] for price in plan.stripe_price_ids if price in known)

    def pause(self) -> float:
        """Return the seconds until the next read: fewer after a failure."""
        if not self._failures:
            return _HOUR
        return exponential(self._failures, first=_FIRST_RETRY, factor=2, ceiling=_HOUR)

    async def read(self) -> None:
        """Read the prices once. Raises `DomainError` if the provider does not answer."""
        if self._provider is None:
            return
        self._failures += 1
        found = await self._provider.prices(self._ids)
        self._failures = 0
        self._is_answered = True
        self._report(_faults_of(found))
        if found is not None:
            self._known = _sold(found)

    def _report(self, faults: dict[str, str]) -> None:
        """Log the faults that the last read did not have."""
        for price_id, fault in faults.items():
            if self._faults.get(price_id) != fault:
                logger.warning(
                    "the plan catalog has the price %s, which %s: it is not shown", price_id, fault
                )
        self._faults = faults


def _sold(found: dict[str, ProviderPrice | None]) -> dict[str, PlanPrice]:
    return {
        price_id: price.recurring
        for price_id, price in found.items()
        if price and price.active and price.recurring
    }


def _faults_of(found: dict[str, ProviderPrice | None] | None) -> dict[str, str]:
    """Return why prices are left out, by price; the key ``*`` is for all of them."""
    if found is None:
        return {"*": _NOT_PERMITTED}
    faults = {price_id: fault_of(price) for price_id, price in found.items()}
    return {price_id: fault for price_id, fault in faults.items() if fault}


def fault_of(price: ProviderPrice | None) -> str | None:
    """Return why a price of the catalog cannot be bought; None if it can."""
    if price is None:
        return "the provider does not know"
    if price.recurring is None:
        return "is not recurring"
    return None if price.active else "is archived"
