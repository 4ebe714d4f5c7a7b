"""Count requests exactly, over all processes together.

A process accepts a request only against shares that it has reserved in the database, so no failure
exceeds a limit. While a share lasts, a request needs no query. Where the requests are counted, and
until when a share is valid, is decided by the two that count: `tenantry.auth.rate_limits` and
`tenantry.auth.request_quotas`.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final, Generic
from weakref import WeakValueDictionary

import psycopg

from tenantry.common.clock import Clock
from tenantry.db.batcher import Batcher
from tenantry.db.database import Lane
from tenantry.domain.errors import AuthUnavailableError, DatabaseUnavailableError, DomainError
from tenantry.domain.shares import Share, ShareGrant, ShareRequest, ShareTerms, Subject, take

_MOST_AT_ONCE: Final = 128
_MOST_TRIES: Final = 3
_SECONDS_BETWEEN_WARNINGS: Final = 60

logger = logging.getLogger(__name__)

Requests = Mapping[Share[Subject], ShareRequest[Subject]]
"""What to ask the database for, by share."""


@dataclass(slots=True, eq=False)
class Waiting(Generic[Subject]):
    """A request that waits for one of each of its shares; or, unless it ``counts``, shares to
    return.
    """

    shares: Sequence[Share[Subject]]
    counts: bool = True
    second: int = 0
    """Of its acceptance; of the database query, if that gave it no valid share."""
    accepted: bool = False


class ShareCounter(ABC, Generic[Subject]):
    """Counts requests against reserved shares. A loop calls `tidy`, which returns unused shares and
    renews those of a window that end soon.
    """

    def __init__(self, lane: Lane, clock: Clock, terms: ShareTerms, name: str) -> None:
        """``name`` describes the limits in the log."""
        self._lane = lane
        self._clock = clock
        self._terms = terms
        self._name = name
        # a subject has one share while a request or one of the queues below refers to it
        self._shares: WeakValueDictionary[object, Share[Subject]] = WeakValueDictionary()
        self._recent: deque[tuple[int, Share[Subject]]] = deque()
        self._past: deque[tuple[int, Share[Subject]]] = deque()
        self._to_renew: deque[Share[Subject]] = deque()
        self._renewing_in = 0
        """The second of ``_to_renew``."""
        self._warned_in = -_SECONDS_BETWEEN_WARNINGS
        self._batcher: Batcher[Waiting[Subject], None] = Batcher(
            self._serve,
            max_items=_MOST_AT_ONCE,
            start_timeout=lane.timeouts.rate_limits,
            deadline=lane.timeouts.rate_limits,
            metrics=lane.metrics,
        )

    @abstractmethod
    async def _reserve(
        self, requests: Requests[Subject], now: datetime
    ) -> Mapping[Share[Subject], ShareGrant]:
        """Return and reserve shares in one transaction. Return what was granted to each request
        that wants some.
        """

    @abstractmethod
    def _refusal(self, shares: Sequence[Share[Subject]], second: int) -> DomainError:
        """Return the error of a request for these ``shares``, of which some are exhausted."""

    async def tidy(self) -> None:
        """Renew the shares that are still needed, and return the others."""
        await self.renew()
        await self.return_unused()

    async def return_unused(self) -> None:
        """Return idle shares, and forget subjects whose requests count no more."""
        second = self._second()
        seconds = self._terms.seconds
        aged = list(_aged(self._recent, second, seconds))
        used = [share for share in aged if not share.is_idle(second)]
        idle = [share for share in aged if share.is_idle(second)]
        self._recent.extendleft((share.since, share) for share in reversed(used))
        self._past.extend((share.since, share) for share in idle)
        unused = [share for share in idle if share.unused]
        gone = list(_aged(self._past, second, self._terms.window + seconds - 1))
        await self._return(list(dict.fromkeys([*unused, *gone])))

    async def renew(self) -> None:
        """Renew the valid shares that will be used up or end soon, so that no request waits for
        that.
        """
        number = len(self._due(self._second()))
        try:
            for _ in range(0, number, _MOST_AT_ONCE):
                await self._batcher.submit(Waiting(()))
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.info("shares of %s are not renewed: %s", self._name, error)

    async def close(self) -> None:
        """Wait for the queries under way, and return all shares."""
        await self._batcher.close()
        await self._return([share for share in self._shares.values() if share.unused])
        await self._batcher.close()

    async def _return(self, shares: Sequence[Share[Subject]]) -> None:
        try:
            for start in range(0, len(shares), _MOST_AT_ONCE):
                some = shares[start : start + _MOST_AT_ONCE]
                await self._batcher.submit(Waiting(some, counts=False))
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.info("unused shares of %s are not returned: %s", self._name, error)

    def _second(self) -> int:
        return int(self._clock().timestamp())

    def _new_share(self, name: object, subject: Subject, limit: int) -> Share[Subject]:
        share = Share(subject, limit, self._terms)
        if limit > 0:
            self._shares[name] = share
        return share

    async def _wait(self, shares_of: Callable[[], list[Share[Subject]]]) -> Waiting[Subject]:
        """Reserve shares for a request, and accept it. Raises `_refusal` and
        `AuthUnavailableError`.
        """
        for _ in range(_MOST_TRIES):
            waiting = Waiting(shares_of())
            await self._submit(waiting)
            if waiting.accepted:
                return waiting
            self._check_exhausted(waiting.shares, waiting.second)
        raise AuthUnavailableError("The database is too slow to count requests. Try again shortly.")

    async def _submit(self, waiting: Waiting[Subject]) -> None:
        try:
            await self._batcher.submit(waiting)
        except BaseException as error:
            waiting.counts = False  # its query, if it is still to come, must not count it
            _refund(waiting)
            if not isinstance(error, DatabaseUnavailableError | psycopg.Error):
                raise
            self._warn(error)
            raise AuthUnavailableError("Requests cannot be counted. Try again shortly.") from error

    def _check_exhausted(self, shares: Sequence[Share[Subject]], second: int) -> None:
        """Raise `_refusal` if a limit is known to be reached in this second."""
        if any(share.is_exhausted(second) for share in shares):
            raise self._refusal(shares, second)

    def _warn(self, error: Exception) -> None:
        second = self._second()
        if second - self._warned_in >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_in = second
            logger.warning(
                "requests cannot be counted and are rejected: %s", error.__cause__ or error
            )

    async def _serve(self, batch: Sequence[Waiting[Subject]]) -> list[None]:
        now = self._clock()
        second = int(now.timestamp())
        requests = self._requests_of(batch, second)
        if requests:
            await self._send_requests(requests, now)
        at = self._second()
        for waiting in batch:
            waiting.accepted = waiting.counts and take(waiting.shares, at)
            waiting.second = at if waiting.accepted else second
        return [None] * len(batch)

    def _requests_of(
        self, batch: Sequence[Waiting[Subject]], second: int
    ) -> dict[Share[Subject], ShareRequest[Subject]]:
        """Return what to ask the database for: new shares, and the return of unused ones."""
        demand = self._demand_of(batch, second)
        requests = {}
        for share, number in demand.items():
            if request := share.request(second, number):
                requests[share] = request
        returned = chain.from_iterable(each.shares for each in batch if not each.counts)
        for share in returned:
            if share not in demand:
                requests[share] = share.release()
        return requests

    def _demand_of(self, batch: Sequence[Waiting[Subject]], second: int) -> Counter[Share[Subject]]:
        """Count the requests that wait for each share; 0 for some of those to renew."""
        counting = [each.shares for each in batch if each.counts]
        demand = Counter(chain.from_iterable(counting))
        if counting:
            due = self._due(second)
            renewed = [due.popleft() for _ in range(min(_MOST_AT_ONCE, len(due)))]
            demand.update(dict.fromkeys(renewed, 0))
        return demand

    def _due(self, second: int) -> deque[Share[Subject]]:
        """Return the shares of earlier seconds that are still to be renewed in this one."""
        if self._renewing_in != second:
            self._renewing_in = second
            self._to_renew = deque(
                share
                for since, share in self._recent
                if share.since == since < second and share.should_renew(second)
            )
        return self._to_renew

    async def _send_requests(self, requests: Requests[Subject], now: datetime) -> None:
        second = int(now.timestamp())
        try:
            granted = await self._reserve(requests, now)
        except BaseException:
            for share in requests:
                share.forfeit()
            raise
        # only now: what was not committed must not be used
        for share, request in requests.items():
            if request.wanted:
                if share.since != second:
                    self._recent.append((second, share))
                share.receive(request, second, granted[share])


def _refund(waiting: Waiting[Subject]) -> None:
    if waiting.accepted:
        waiting.accepted = False
        for share in waiting.shares:
            share.refund(waiting.second)


def _aged(
    queue: deque[tuple[int, Share[Subject]]], second: int, seconds: int
) -> Iterator[Share[Subject]]:
    """Take the entries of at least ``seconds`` ago out of a queue, and yield those shares that have
    not been granted again.

    Includes entries of the future, which remain after the clock was set back.
    """
    while queue and not 0 <= second - queue[0][0] < seconds:
        granted_in, share = queue.popleft()
        if share.since == granted_in:
            yield share
