"""Letting through no more requests than a plan allows, over all processes together.

A process lets a request through only against a share that it has taken from the database beforehand, so whatever
fails, no limit is passed. While a share lasts, nothing is awaited.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, TypeVar

import psycopg

from tenantry.auth import rate_limits_store as store
from tenantry.common.clock import Clock
from tenantry.db.batcher import Batcher
from tenantry.db.database import Lane
from tenantry.domain.access import Principal
from tenantry.domain.errors import AuthUnavailableError, DatabaseUnavailableError, RateLimitedError
from tenantry.domain.plans import Catalog
from tenantry.domain.rate_limits import SLOTS, Policy, RateLimitStatus, Share, Taking

INTERVAL: Final = 1.0
"""Seconds between looks at what goes back."""
_MOST_AT_ONCE: Final = 128
_MOST_TRIES: Final = 3
_SECONDS_BETWEEN_WARNINGS: Final = 60
_NAMES: Final = {Policy.TENANT: "organization", Policy.KEY: "credential"}

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


class _Entry:
    """A request that waits for one of each of its shares; with ``number`` 0 none does, and the shares go back."""

    __slots__ = ("let_in", "number", "second", "shares")

    def __init__(self, shares: Sequence[Share], number: int) -> None:
        self.shares = shares
        self.number = number
        self.second = 0
        """The second in which the database was asked."""
        self.let_in = False


class RateLimiter:
    """Counts requests against the limits of their tenants' plans. `run` gives back what is not used."""

    def __init__(self, lane: Lane, catalog: Catalog, clock: Clock, refused: Callable[[Policy], None]) -> None:
        """``refused`` is told whose limit a refused request was over."""
        deadline = lane.timeouts.rate_limits
        self._lane = lane
        self._catalog = catalog
        self._clock = clock
        self._refused = refused
        self._shares: dict[str, Share] = {}
        self._recent: deque[tuple[int, Share]] = deque()
        self._past: deque[tuple[int, Share]] = deque()
        self._turn = 0
        self._taken: list[Share] = []
        """Shares of the second ``_turn``; those of the one before wait in ``_ahead`` to be taken again."""
        self._ahead: deque[Share] = deque()
        self._warned_in = -_SECONDS_BETWEEN_WARNINGS
        self._takings: Batcher[_Entry, None] = Batcher(
            self._serve, max_items=_MOST_AT_ONCE, start_timeout=deadline, deadline=deadline, metrics=lane.metrics
        )

    def count_at_once(self, principal: Principal) -> RateLimitStatus | None:
        """Count a request against the shares at hand. None if there are none: then `count` it.

        Raises `RateLimitedError` when it is known that there is nothing to be had.
        """
        shares = self._shares_of(principal)
        if not shares:
            return ()
        second = int(self._clock().timestamp())
        if _take(shares, second):
            return _standing(shares, second)
        if any(share.is_shut(second) for share in shares):
            self._refuse(shares, second)
        return None

    async def count(self, principal: Principal) -> RateLimitStatus:
        """Count a request, and take new shares for it. Raises `RateLimitedError`, `AuthUnavailableError`."""
        return await self._count(lambda: self._shares_of(principal))

    async def count_user(self, subject: str, limit: int) -> RateLimitStatus:
        """Count a request of a user who acts for no tenant, under ``limit`` a minute. Raises as `count` does.

        ``subject`` is what the requests are counted under.
        """
        shares = [self._share(Policy.KEY, subject, limit, "")]
        second = self._second()
        if _take(shares, second):
            return _standing(shares, second)
        if shares[0].is_shut(second):
            self._refuse(shares, second)
        return await self._count(lambda: [self._share(Policy.KEY, subject, limit, "")])

    async def _count(self, shares_of: Callable[[], list[Share]]) -> RateLimitStatus:
        for _ in range(_MOST_TRIES):
            shares = shares_of()
            entry = await self._wait(shares)
            if entry.let_in:
                if entry.second == self._second():
                    return _standing(shares, entry.second)
                _put_back(entry)  # the database took so long that what was taken is not good any more
            elif any(share.is_shut(entry.second) for share in shares):
                self._refuse(shares, entry.second)
        raise AuthUnavailableError("The database is too slow to count requests. Try again shortly.")

    async def run(self) -> None:
        """Give back what is not used every `INTERVAL` seconds, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await self.give_back()

    async def give_back(self) -> None:
        """Give back what was not used of earlier seconds, and forget subjects that are past the window."""
        second = self._second()
        unused = [share for share in _aged(self._recent, second, 1, self._past) if share.unused]
        past = list(_aged(self._past, second, SLOTS))
        for share in past:
            share.expire()
        _hold(past)
        try:
            for shares in _groups(list(dict.fromkeys([*unused, *past]))):
                await self._takings.submit(_Entry(shares, 0))
        except (DatabaseUnavailableError, psycopg.Error) as error:
            logger.info("shares of rate limits are not given back: %s", error)
        finally:
            self._release(past)

    async def close(self) -> None:
        """Give back everything, and wait for what is under way."""
        await self._takings.close()
        takings = [share.surrender() for share in self._shares.values() if share.unused]
        try:
            for group in _groups(takings):
                async with asyncio.timeout(self._lane.timeouts.rate_limits), self._lane.use() as connection:
                    await store.take(connection, group, self._second())
        except (DatabaseUnavailableError, psycopg.Error, TimeoutError) as error:
            logger.info("shares of rate limits are not given back: %s", error)

    def _second(self) -> int:
        return int(self._clock().timestamp())

    def _shares_of(self, principal: Principal) -> list[Share]:
        limits = self._catalog.limits(principal.plan)
        of_tenant, of_key = limits.requests_per_minute, limits.requests_per_minute_per_key
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
            share = Share(policy, subject, limit, within)
            if limit > 0:
                self._shares[subject] = share
        elif share.limit != limit:
            share.set_limit(limit)
        return share

    async def _wait(self, shares: Sequence[Share]) -> _Entry:
        """A request's entry, once the database has been asked for it."""
        entry = _Entry(shares, 1)
        _hold(shares)
        try:
            await self._takings.submit(entry)
        except (DatabaseUnavailableError, psycopg.Error) as error:
            _give_up(entry)
            self._warn(error)
            raise AuthUnavailableError("Requests cannot be counted. Try again shortly.") from error
        except BaseException:
            _give_up(entry)
            raise
        finally:
            self._release(shares)
        return entry

    def _release(self, shares: Sequence[Share]) -> None:
        """Forget of these, held until now, what nobody else holds and nothing counts of."""
        for share in shares:
            share.held -= 1
        self._forget(shares)

    def _forget(self, shares: Sequence[Share]) -> None:
        for share in shares:
            if share.has_expired and not share.held:
                self._shares.pop(share.subject, None)

    def _warn(self, error: Exception) -> None:
        second = self._second()
        if second - self._warned_in >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_in = second
            logger.warning("requests cannot be counted, and are refused: %s", error.__cause__ or error)

    async def _serve(self, entries: Sequence[_Entry]) -> list[None]:
        second = self._second()
        demand = Counter(share for entry in entries for share in entry.shares if entry.number)
        if demand:
            demand.update(dict.fromkeys(self._foreseen(second), 0))
        asked = {share: taking for share, number in demand.items() if (taking := share.ask(second, number))}
        for entry in entries:
            if not entry.number:
                asked |= {share: share.surrender() for share in entry.shares if share not in demand}
        if asked:
            held = list(asked)
            _hold(held)
            try:
                await self._ask(asked, second)
            finally:
                self._release(held)
        for entry in entries:
            entry.second = second
            entry.let_in = entry.number > 0 and _take(entry.shares, second)
        return [None] * len(entries)

    def _foreseen(self, second: int) -> list[Share]:
        """Shares that will be asked for soon: some of those that were used in the second before."""
        if self._turn != second:
            self._ahead = deque(self._taken)
            self._taken, self._turn = [], second
        ahead = [self._ahead.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._ahead)))]
        return [share for share in ahead if share.is_foreseen(second)]

    async def _ask(self, asked: dict[Share, Taking], second: int) -> None:
        async with self._lane.use() as connection:
            granted = await store.take(connection, list(asked.values()), second)
        for share, taking in asked.items():
            if taking.wanted:
                if share.second != second:
                    self._recent.append((second, share))
                    self._taken.append(share)
                share.receive(second, granted[share.subject])

    def _refuse(self, shares: Sequence[Share], second: int) -> NoReturn:
        """Say no, with what is known of each limit in this second."""
        shut = [share for share in shares if share.is_shut(second)]
        for share in shut:
            self._refused(share.policy)
        known = [share for share in shares if share in shut or share.second == second]
        used_up = [share for share in shares if share in shut or share.is_used_up(second)]
        self._forget(shares)
        raise RateLimitedError(
            " ".join(f"The {_NAMES[share.policy]}'s {share.limit} requests per minute are used up." for share in shut),
            _standing(known, second),
            max(share.quota(second).reset for share in used_up),
        )


def subject_of_tenant(tenant_id: str) -> str:
    """What a tenant's requests are counted under."""
    return f"tenant {tenant_id}"


def _take(shares: Sequence[Share], second: int) -> bool:
    """Use one of each share, or none at all."""
    for share in shares:
        if not share.has_some(second):
            return False
    for share in shares:
        share.left -= 1
    return True


def _hold(shares: Sequence[Share]) -> None:
    """Keep these in memory until they are released: of one subject there must never be two."""
    for share in shares:
        share.held += 1


def _put_back(entry: _Entry) -> None:
    if entry.let_in:
        entry.let_in = False
        for share in entry.shares:
            share.put_back(entry.second)


def _give_up(entry: _Entry) -> None:
    """The request does not wait any more."""
    entry.number = 0
    _put_back(entry)


def _standing(shares: Sequence[Share], second: int) -> RateLimitStatus:
    if len(shares) == 1:
        return (shares[0].quota(second),)
    return tuple([share.quota(second) for share in shares])


def _aged(
    queue: deque[tuple[int, Share]], second: int, seconds: int, onto: deque[tuple[int, Share]] | None = None
) -> Iterator[Share]:
    """The shares that were last taken so many ``seconds`` ago or longer; their entries are moved on.

    So are those that were taken in a second still to come, before the clock was set back.
    """
    while queue and not 0 <= second - queue[0][0] < seconds:
        taken_in, share = queue.popleft()
        if share.second == taken_in:
            if onto is not None:
                onto.append((taken_in, share))
            yield share


def _groups(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[start : start + _MOST_AT_ONCE] for start in range(0, len(items), _MOST_AT_ONCE))
