"""Enforce the rate limits of plans exactly, over all processes together.

A process accepts a request only against a share that it has reserved in the database, so no failure
exceeds a limit. While a share lasts, a request needs no query.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final
from weakref import WeakValueDictionary

import psycopg

from tenantry.auth import rate_limits_store as store
from tenantry.common.clock import Clock
from tenantry.db.batcher import Batcher
from tenantry.db.database import Lane
from tenantry.domain.access import limits_of
from tenantry.domain.errors import AuthUnavailableError, DatabaseUnavailableError, RateLimitedError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Catalog
from tenantry.domain.rate_limits import (
    NEAR_DATABASE,
    SLOTS,
    Policy,
    RateLimitStatus,
    Share,
    ShareGrant,
    ShareRequest,
    ShareTerms,
)
from tenantry.domain.telemetry import SILENT, Telemetry

INTERVAL: Final = 1.0
"""Seconds between returns of unused shares."""
_MOST_AT_ONCE: Final = 128
_MOST_TRIES: Final = 3
_SECONDS_BETWEEN_WARNINGS: Final = 60
_NAMES: Final = {Policy.TENANT: "organization", Policy.KEY: "credential"}

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    """A request that waits for one of each of its shares; with ``number`` 0 the shares are
    returned, or renewed.
    """

    shares: Sequence[Share]
    number: int
    renews: bool = False
    second: int = 0
    """Of its acceptance; of the database query, if that gave it no valid share."""
    accepted: bool = False


class RateLimiter:
    """Counts requests against the limits of their tenants' plans. `run` returns unused shares, and
    renews those that are valid for several seconds before they end.
    """

    def __init__(
        self,
        lane: Lane,
        catalog: Catalog,
        clock: Clock,
        telemetry: Telemetry = SILENT,
        terms: ShareTerms = NEAR_DATABASE,
    ) -> None:
        self._terms = terms
        deadline = lane.timeouts.rate_limits
        self._lane = lane
        self._catalog = catalog
        self._clock = clock
        self._telemetry = telemetry
        # a subject has one share while a request or one of the queues below refers to it
        self._shares: WeakValueDictionary[str, Share] = WeakValueDictionary()
        self._recent: deque[tuple[int, Share]] = deque()
        self._past: deque[tuple[int, Share]] = deque()
        self._turn = 0
        self._taken: list[Share] = []
        """Shares of the second ``_turn``; those of the second before wait in ``_to_prefetch``."""
        self._to_prefetch: deque[Share] = deque()
        self._warned_in = -_SECONDS_BETWEEN_WARNINGS
        self._batcher: Batcher[_Entry, None] = Batcher(
            self._serve,
            max_items=_MOST_AT_ONCE,
            start_timeout=deadline,
            deadline=deadline,
            metrics=lane.metrics,
        )

    def count_locally(self, principal: RequestPrincipal) -> RateLimitStatus | None:
        """Count a request against the reserved shares; return None without any: then use `count`.

        Raises `RateLimitedError` when a limit is known to be reached.
        """
        shares = self._shares_of(principal)
        return self._count_locally(shares) if shares else ()

    async def count(self, principal: RequestPrincipal) -> RateLimitStatus:
        """Count a request, and reserve new shares for it. Raises `RateLimitedError`,
        `AuthUnavailableError`.
        """
        return await self._count(lambda: self._shares_of(principal))

    async def count_user(self, subject: str, limit: int) -> RateLimitStatus:
        """Count a user's request outside any tenant under ``subject``, ``limit`` a minute. Raises
        as `count` does.
        """

        def shares() -> list[Share]:
            return [self._share(Policy.KEY, subject, limit, "")]

        return self._count_locally(shares()) or await self._count(shares)

    def _count_locally(self, shares: Sequence[Share]) -> RateLimitStatus | None:
        second = self._second()
        if _take(shares, second):
            return _status_of(shares, second)
        self._check_exhausted(shares, second)
        return None

    async def _count(self, shares_of: Callable[[], list[Share]]) -> RateLimitStatus:
        for _ in range(_MOST_TRIES):
            entry = _Entry(shares_of(), 1)
            await self._submit(entry)
            if entry.accepted:
                return _status_of(entry.shares, entry.second)
            self._check_exhausted(entry.shares, entry.second)
        raise AuthUnavailableError("The database is too slow to count requests. Try again shortly.")

    async def _submit(self, entry: _Entry) -> None:
        try:
            await self._batcher.submit(entry)
        except BaseException as error:
            entry.number = 0  # its query, if it is still to come, must not count it
            _refund(entry)
            if not isinstance(error, DatabaseUnavailableError | psycopg.Error):
                raise
            self._warn(error)
            raise AuthUnavailableError("Requests cannot be counted. Try again shortly.") from error

    async def run(self) -> None:
        """Return unused shares every `INTERVAL` seconds, until canceled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.return_unused()
            await self.renew()

    async def return_unused(self) -> None:
        """Return unused shares of earlier seconds, and forget subjects outside the window."""
        second = self._second()
        seconds = self._terms.seconds
        ended = _aged(self._recent, second, seconds, self._past)
        unused = [share for share in ended if share.unused]
        past = list(_aged(self._past, second, SLOTS + seconds - 1))
        await self._return(list(dict.fromkeys([*unused, *past])))

    async def renew(self) -> None:
        """Renew the valid shares that will be used up or end soon, so that no request waits for
        that.
        """
        second = self._second()
        ending = [
            share
            for since, share in self._recent
            if share.since == since < second and share.should_renew(second)
        ]
        try:
            for start in range(0, len(ending), _MOST_AT_ONCE):
                some = ending[start : start + _MOST_AT_ONCE]
                await self._batcher.submit(_Entry(some, 0, renews=True))
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.info("shares of rate limits are not renewed: %s", error)

    async def close(self) -> None:
        """Wait for the queries under way, and return all shares."""
        await self._batcher.close()
        await self._return([share for share in self._shares.values() if share.unused])
        await self._batcher.close()

    async def _return(self, shares: Sequence[Share]) -> None:
        try:
            for start in range(0, len(shares), _MOST_AT_ONCE):
                await self._batcher.submit(_Entry(shares[start : start + _MOST_AT_ONCE], 0))
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.info("unused shares of rate limits are not returned: %s", error)

    def _second(self) -> int:
        return int(self._clock().timestamp())

    def _shares_of(self, principal: RequestPrincipal) -> list[Share]:
        limits = limits_of(principal.access_phase, self._catalog)
        of_tenant = limits.requests_per_minute
        of_key = limits.requests_per_minute_per_key
        shares: list[Share] = []
        if of_tenant is None and of_key is None:
            return shares
        tenant = subject_of_tenant(principal.org_id)
        if of_tenant is not None:
            shares.append(self._share(Policy.TENANT, tenant, of_tenant, ""))
        if of_key is not None:
            own = f"{principal.kind} {principal.org_id} {principal.id}"
            shares.append(self._share(Policy.KEY, own, of_key, tenant))
        return shares

    def _share(self, policy: Policy, subject: str, limit: int, within: str) -> Share:
        share = self._shares.get(subject)
        if share is None:
            share = Share(policy, subject, limit, within, self._terms)
            if limit > 0:
                self._shares[subject] = share
        elif share.limit != limit:
            share.set_limit(limit)
        return share

    def _warn(self, error: Exception) -> None:
        second = self._second()
        if second - self._warned_in >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_in = second
            logger.warning(
                "requests cannot be counted and are rejected: %s", error.__cause__ or error
            )

    async def _serve(self, entries: Sequence[_Entry]) -> list[None]:
        second = self._second()
        requests = self._requests_of(entries, second)
        if requests:
            await self._send_requests(requests, second)
        now = self._second()
        for entry in entries:
            entry.accepted = entry.number > 0 and _take(entry.shares, now)
            entry.second = now if entry.accepted else second
        return [None] * len(entries)

    def _requests_of(self, entries: Sequence[_Entry], second: int) -> dict[Share, ShareRequest]:
        """Return what to ask the database for: new shares, and the return of unused ones."""
        demand = self._demand_of(entries, second)
        requests = {}
        for share, number in demand.items():
            if request := share.request(second, number):
                requests[share] = request
        returned = chain.from_iterable(
            entry.shares for entry in entries if not entry.number and not entry.renews
        )
        for share in returned:
            if share not in demand:
                requests[share] = share.release()
        return requests

    def _demand_of(self, entries: Sequence[_Entry], second: int) -> Counter[Share]:
        """Count the requests that wait for each share; 0 for those to renew."""
        waiting = (entry.shares for entry in entries if entry.number)
        demand = Counter(chain.from_iterable(waiting))
        if demand:
            demand.update(dict.fromkeys(self._next_prefetched(second), 0))
        renewed = chain.from_iterable(entry.shares for entry in entries if entry.renews)
        demand.update(dict.fromkeys(renewed, 0))
        return demand

    def _next_prefetched(self, second: int) -> list[Share]:
        """Return some of the shares that were used in the second before."""
        if self._turn != second:
            self._to_prefetch = deque(self._taken)
            self._taken = []
            self._turn = second
        ahead = [
            self._to_prefetch.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._to_prefetch)))
        ]
        return [share for share in ahead if share.should_renew(second)]

    async def _send_requests(self, requests: dict[Share, ShareRequest], second: int) -> None:
        try:
            granted = await self._take_granted(requests, second)
        except BaseException:
            for share in requests:
                share.forfeit()
            raise
        for share, request in requests.items():
            if request.wanted:
                if share.since != second:
                    self._recent.append((second, share))
                    self._taken.append(share)
                share.receive(second, granted[share.subject])

    async def _take_granted(
        self, requests: dict[Share, ShareRequest], second: int
    ) -> dict[str, ShareGrant]:
        wanted, seconds = list(requests.values()), self._terms.seconds
        async with self._lane.use() as connection:
            return await store.take(connection, wanted, second, seconds)

    def _check_exhausted(self, shares: Sequence[Share], second: int) -> None:
        """Raise `RateLimitedError` for a request whose limit is reached."""
        shut = [share for share in shares if share.is_exhausted(second)]
        for share in shut:
            self._telemetry.rate_limited(share.policy)
        if shut:
            raise _exceeded(shares, shut, second)


def _exceeded(shares: Sequence[Share], shut: Sequence[Share], second: int) -> RateLimitedError:
    """Make the error with the known quotas of this second."""
    known = [share for share in shares if share in shut or share.is_valid(second)]
    resets = (
        share.quota(second).reset
        for share in shares
        if share in shut or share.seems_exhausted(second)
    )
    return RateLimitedError(_text_of(shut), _status_of(known, second), max(resets))


def _text_of(reached: Sequence[Share]) -> str:
    return " ".join(
        f"The {_NAMES[share.policy]}'s {share.limit} requests per minute are used up."
        for share in reached
    )


def subject_of_tenant(tenant_id: str) -> str:
    """Return the subject under which a tenant's requests are counted."""
    return f"tenant {tenant_id}"


def _take(shares: Sequence[Share], second: int) -> bool:
    """Use one request of each share, or none."""
    for share in shares:
        if not share.is_available(second):
            return False
    for share in shares:
        share.left -= 1
    return True


def _refund(entry: _Entry) -> None:
    if entry.accepted:
        entry.accepted = False
        for share in entry.shares:
            share.refund(entry.second)


def _status_of(shares: Sequence[Share], second: int) -> RateLimitStatus:
    if len(shares) == 1:
        return (shares[0].quota(second),)
    return tuple([share.quota(second) for share in shares])


def _aged(
    queue: deque[tuple[int, Share]],
    second: int,
    seconds: int,
    onto: deque[tuple[int, Share]] | None = None,
) -> Iterator[Share]:
    """Yield the shares that were last granted at least ``seconds`` ago, and move their entries
    ``onto`` the next queue.

    Includes entries of the future, which remain after the clock was set back.
    """
    while queue and not 0 <= second - queue[0][0] < seconds:
        taken_in, share = queue.popleft()
        if share.since == taken_in:
            if onto is not None:
                onto.append((taken_in, share))
            yield share
