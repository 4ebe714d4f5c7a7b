"""What the provider knows of tenants' customers, read when a page shows it."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tenantry.domain.billing.customer_account import CustomerAccount
from tenantry.domain.errors import DomainError, ProviderUnavailableError
from tenantry.integrations.stripe.client import ProviderApi

_KEPT_SECONDS: Final = 60.0
_FAILURE_KEPT_SECONDS: Final = 10.0
_MOST_KEPT: Final = 1000

logger = logging.getLogger(__name__)

Outcome = CustomerAccount | DomainError


class _Kept(NamedTuple):
    outcome: Outcome
    until: float


class _Reading(NamedTuple):
    task: "asyncio.Task[Outcome]"
    began: float


class CustomerAccounts:
    """Reads customers from the provider, and keeps each for a minute, a failure for ten seconds.

    A page waits at most ``patience`` seconds. The read continues without it, so that the next page
    shows its result; of one customer there is one read at a time. At most 1,000 customers are kept,
    each process its own. Times are those of the monotonic clock.
    """

    def __init__(
        self,
        provider: ProviderApi | None,
        patience: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._patience = patience
        self._monotonic = monotonic
        self._kept: dict[str, _Kept] = {}
        self._reading: dict[str, _Reading] = {}

    async def find(self, customer_id: str) -> CustomerAccount:
        """Return a customer. Raises `ProviderUnavailableError`, also where the provider does not
        answer in time, and `ProviderRefusedError`.
        """
        kept = self._kept.get(customer_id)
        if kept is None or kept.until <= self._monotonic():
            outcome = await self._outcome(customer_id)
        else:
            outcome = kept.outcome
        if isinstance(outcome, DomainError):
            raise outcome
        return outcome

    def known(self, customer_id: str) -> CustomerAccount | None:
        """Return a customer that was read within the last minute, without waiting; None begins to
        read it, so that the next page shows it.
        """
        kept = self._kept.get(customer_id)
        if kept is None or kept.until <= self._monotonic():
            if customer_id not in self._reading:
                self._begin(customer_id)
            return None
        return kept.outcome if isinstance(kept.outcome, CustomerAccount) else None

    def forget(self, customer_id: str) -> None:
        """Read a customer again when it is shown next: a link has led to the provider."""
        self._kept.pop(customer_id, None)
        self._reading.pop(customer_id, None)

    async def aclose(self) -> None:
        """Cancel what is being read."""
        tasks = [reading.task for reading in self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _outcome(self, customer_id: str) -> Outcome:
        reading = self._reading.get(customer_id) or self._begin(customer_id)
        left = reading.began + self._patience - self._monotonic()
        done, _ = await asyncio.wait([reading.task], timeout=max(0.0, left))
        if not done:
            return ProviderUnavailableError("The payment provider takes long to answer.")
        return reading.task.result()

    def _begin(self, customer_id: str) -> _Reading:
        task = asyncio.create_task(self._read(customer_id))
        reading = self._reading[customer_id] = _Reading(task, self._monotonic())
        return reading

    async def _read(self, customer_id: str) -> Outcome:
        outcome = await self._ask(customer_id)
        reading = self._reading.get(customer_id)
        if reading is not None and reading.task is asyncio.current_task():  # not forgotten
            del self._reading[customer_id]
            self._keep(customer_id, outcome)
        return outcome

    async def _ask(self, customer_id: str) -> Outcome:
        if self._provider is None:
            return ProviderUnavailableError("The payment provider's API is not set up here.")
        try:
            return await self._provider.customer_account(customer_id)
        except DomainError as error:
            return error
        except Exception:
            logger.exception("a customer could not be read from the payment provider")
            return ProviderUnavailableError("The payment provider's answer cannot be used.")

    def _keep(self, customer_id: str, outcome: Outcome) -> None:
        is_failure = isinstance(outcome, DomainError)
        seconds = _FAILURE_KEPT_SECONDS if is_failure else _KEPT_SECONDS
        self._kept.pop(customer_id, None)  # the newest is the last
        self._kept[customer_id] = _Kept(outcome, self._monotonic() + seconds)
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
