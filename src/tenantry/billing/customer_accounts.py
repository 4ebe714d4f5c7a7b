"""What the provider knows of tenants' customers, read when a page shows it."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
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
    changed_at: datetime | None


class _Reading(NamedTuple):
    task: "asyncio.Task[Outcome]"
    began: float
    changed_at: datetime | None


class CustomerAccounts:
    """Reads customers from the provider, and keeps each for a minute, a failure for ten seconds.

    A page waits at most ``patience`` seconds. The read continues without it, so that the next page
    shows its result; of one customer there is one read at a time. ``changed_at`` is when its tenant
    last changed: what was read before an event changed the tenant is out of date. At most 1,000
    customers are kept, each process its own. Times are those of the monotonic clock.
    ``refusals_of`` is the context of a read of a customer.
    """

    def __init__(
        self,
        provider: ProviderApi | None,
        patience: float,
        monotonic: Callable[[], float] = time.monotonic,
        refusals_of: Callable[[str], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self._provider = provider
        self._patience = patience
        self._monotonic = monotonic
        self._refusals_of = refusals_of
        self._kept: dict[str, _Kept] = {}
        self._reading: dict[str, _Reading] = {}

    async def find(self, customer_id: str, changed_at: datetime | None = None) -> CustomerAccount:
        """Return a customer. Raises `ProviderUnavailableError`, also where the provider does not
        answer in time, and `ProviderRefusedError`.
        """
        kept = self._current(customer_id, changed_at)
        outcome = kept.outcome if kept else await self._outcome(customer_id, changed_at)
        if isinstance(outcome, DomainError):
            raise outcome
        return outcome

    def known(self, customer_id: str, changed_at: datetime | None = None) -> CustomerAccount | None:
        """Return a customer that was read within the last minute, without waiting; None begins to
        read it, so that the next page shows it.
        """
        kept = self._current(customer_id, changed_at)
        if kept is None:
            self._reading_of(customer_id, changed_at)
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

    def _current(self, customer_id: str, changed_at: datetime | None) -> _Kept | None:
        kept = self._kept.get(customer_id)
        is_current = kept and kept.changed_at == changed_at and kept.until > self._monotonic()
        return kept if is_current else None

    async def _outcome(self, customer_id: str, changed_at: datetime | None) -> Outcome:
        reading = self._reading_of(customer_id, changed_at)
        left = reading.began + self._patience - self._monotonic()
        done, _ = await asyncio.wait([reading.task], timeout=max(0.0, left))
        if not done:
            return ProviderUnavailableError("The payment provider takes long to answer.")
        return reading.task.result()

    def _reading_of(self, customer_id: str, changed_at: datetime | None) -> _Reading:
        """Return the current read of a customer; begin one if there is none."""
        reading = self._reading.get(customer_id)
        if reading is None or reading.changed_at != changed_at:
            task = asyncio.create_task(self._read(customer_id))
            reading = _Reading(task, self._monotonic(), changed_at)
            self._reading[customer_id] = reading
        return reading

    async def _read(self, customer_id: str) -> Outcome:
        outcome = await self._ask(customer_id)
        reading = self._reading.get(customer_id)
        if reading is not None and reading.task is asyncio.current_task():  # not forgotten
            del self._reading[customer_id]
            self._keep(customer_id, outcome, reading.changed_at)
        return outcome

    async def _ask(self, customer_id: str) -> Outcome:
        if self._provider is None:
            return ProviderUnavailableError("The payment provider's API is not set up here.")
        try:
            async with self._refusals_of(customer_id):
                return await self._provider.customer_account(customer_id)
        except DomainError as error:
            return error
        except Exception:
            logger.exception("a customer could not be read from the payment provider")
            return ProviderUnavailableError("The payment provider's answer cannot be used.")

    def _keep(self, customer_id: str, outcome: Outcome, changed_at: datetime | None) -> None:
        is_failure = isinstance(outcome, DomainError)
        seconds = _FAILURE_KEPT_SECONDS if is_failure else _KEPT_SECONDS
        self._kept.pop(customer_id, None)  # the newest is the last
        self._kept[customer_id] = _Kept(outcome, self._monotonic() + seconds, changed_at)
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
