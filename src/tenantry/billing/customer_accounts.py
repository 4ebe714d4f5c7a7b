"""What the provider knows of tenants' customers, read when a page shows it."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from typing import Final, NamedTuple

from tenantry.common.cancellation import cancel
from tenantry.domain.billing.customer_account import CustomerAccount
from tenantry.domain.errors import DomainError, ProviderUnavailableError
from tenantry.integrations.stripe.client import ProviderApi

_KEPT_SECONDS: Final = 60.0
_FAILURE_KEPT_SECONDS: Final = 10.0
_MOST_KEPT: Final = 1000

logger = logging.getLogger(__name__)

Outcome = CustomerAccount | DomainError


class _Answer(NamedTuple):
    """What the provider said of a customer, and until when that is shown."""

    outcome: Outcome
    until: float


class _Reading(NamedTuple):
    """A read of a customer, under way or done; it ``began`` when its tenant had last changed at
    ``changed_at``.
    """

    task: "asyncio.Task[_Answer]"
    began: float
    changed_at: datetime | None

    def is_current(self, changed_at: datetime | None, now: float) -> bool:
        is_out_of_date = self.task.done() and self.task.result().until <= now
        return self.changed_at == changed_at and not is_out_of_date


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
        self._readings: dict[str, _Reading] = {}  # by customer, the newest last
        self._under_way = set[asyncio.Task[_Answer]]()  # those of forgotten readings too

    async def find(self, customer_id: str, changed_at: datetime | None = None) -> CustomerAccount:
        """Return a customer. Raises `ProviderUnavailableError`, also where the provider does not
        answer in time, and `ProviderRefusedError`.
        """
        reading = self._reading_of(customer_id, changed_at)
        if not reading.task.done():
            left = reading.began + self._patience - self._monotonic()
            await asyncio.wait([reading.task], timeout=max(0.0, left))
        if not reading.task.done():
            raise ProviderUnavailableError("The payment provider takes long to answer.")
        outcome = reading.task.result().outcome
        if isinstance(outcome, DomainError):
            raise outcome
        return outcome

    def known(self, customer_id: str, changed_at: datetime | None = None) -> CustomerAccount | None:
        """Return a customer that was read within the last minute, without waiting; None begins to
        read it, so that the next page shows it.
        """
        reading = self._reading_of(customer_id, changed_at)
        outcome = reading.task.result().outcome if reading.task.done() else None
        return outcome if isinstance(outcome, CustomerAccount) else None

    def forget(self, customer_id: str) -> None:
        """Read a customer again when it is shown next: a link has led to the provider."""
        self._readings.pop(customer_id, None)

    async def aclose(self) -> None:
        """Cancel what is being read."""
        await cancel(*self._under_way)

    def _reading_of(self, customer_id: str, changed_at: datetime | None) -> _Reading:
        """Return the read of a customer that counts now; begin one if there is none."""
        now = self._monotonic()
        reading = self._readings.get(customer_id)
        if reading is not None and reading.is_current(changed_at, now):
            return reading
        self.forget(customer_id)
        task = asyncio.create_task(self._read(customer_id))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        reading = self._readings[customer_id] = _Reading(task, now, changed_at)
        if len(self._readings) > _MOST_KEPT:
            self._forget_oldest()
        return reading

    def _forget_oldest(self) -> None:
        """Forget the customer that was read first, of those whose read is done."""
        done = (customer for customer, each in self._readings.items() if each.task.done())
        if (oldest := next(done, None)) is not None:
            self.forget(oldest)

    async def _read(self, customer_id: str) -> _Answer:
        outcome = await self._ask(customer_id)
        is_failure = isinstance(outcome, DomainError)
        seconds = _FAILURE_KEPT_SECONDS if is_failure else _KEPT_SECONDS
        return _Answer(outcome, self._monotonic() + seconds)

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
