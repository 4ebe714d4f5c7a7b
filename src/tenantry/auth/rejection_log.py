"""Collect rejections in this process, and write them to the database every few seconds."""

from collections import Counter
from datetime import datetime
from itertools import islice
from threading import Lock
from typing import Final

import psycopg

from tenantry.auth import rejections_store as store
from tenantry.auth.rejections_store import CountedRejections, RejectionKind
from tenantry.common.clock import Clock
from tenantry.db.background import BackgroundGroup
from tenantry.db.connection import ACROSS_TENANTS
from tenantry.db.database import Database
from tenantry.domain.rejections import MOST_OF_TENANT, KnownSender, RefusedRequest

INTERVAL: Final = 5.0
"""Seconds between writes: a process that is killed loses at most the rejections of this time."""
_MOST_KINDS: Final = 20
"""Of one sender, in one interval. Further ones lose their details, so that they are few."""
_MOST_AT_ONCE: Final = 1000
_MOST_WAITING: Final = 100_000
"""Of all tenants; further kinds are not recorded."""
_LONGEST_NEEDED: Final = 65
"""Of a scope: an application may require one that its client chose, and that is none."""


class RejectionLog:
    """Collects the refused requests of known senders. Threads may share it.

    Its size is bounded: for each tenant as many kinds as are kept, and further ones are not
    recorded. One tenant's rejections thus never push out another's.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._lock = Lock()
        self._waiting: dict[RejectionKind, CountedRejections] = {}
        self._kinds = Counter[KnownSender | str]()
        """The number of waiting kinds, by sender and by tenant."""

    def record(self, sender: KnownSender, request: RefusedRequest) -> None:
        """Record a refused request, if it is one of those that a tenant sees."""
        if request.is_recorded:
            with self._lock:
                self._add(sender, request, self._clock())

    def repeat_in(self, group: BackgroundGroup) -> None:
        """Write the rejections every `INTERVAL` seconds, and the last ones at the end."""
        group.repeat("writes of rejections", self.write, every=INTERVAL, last=self.write)

    async def write(self) -> None:
        """Write the rejections so far. They are kept for the next time while the database is away;
        what it refuses is lost, so that it does not keep others waiting.

        Raises `DatabaseUnavailableError` and `psycopg.Error`.
        """
        while due := self._take():
            try:
                async with self._database.transaction(ACROSS_TENANTS) as connection:
                    if tenants := await store.add(connection, due):
                        await store.delete_oldest(connection, tenants)
            except psycopg.DataError:
                raise
            except BaseException:
                self._put_back(due)
                raise

    def _add(self, sender: KnownSender, request: RefusedRequest, now: datetime) -> None:
        kind = RejectionKind(
            sender,
            now.replace(second=0, microsecond=0),
            request.code,
            _needed(request),
            request.route or "",
        )
        if kind not in self._waiting and self._kinds[sender] >= _MOST_KINDS:
            kind = kind._replace(needed="", route="")
        known = self._waiting.get(kind)
        number = 1 if known is None else known.number + 1
        self._keep(
            CountedRejections(
                kind, request.status, now, request.request_id, request.address, number
            )
        )

    def _keep(self, rejections: CountedRejections) -> None:
        kind = rejections.kind
        if kind not in self._waiting:
            is_full = self._kinds[kind.sender.org_id] >= MOST_OF_TENANT
            if is_full or len(self._waiting) >= _MOST_WAITING:
                return
            self._kinds.update((kind.sender, kind.sender.org_id))
        self._waiting[kind] = rejections

    def _take(self) -> list[CountedRejections]:
        """Remove the first `_MOST_AT_ONCE` rejections that wait."""
        with self._lock:
            due = list(islice(self._waiting.values(), _MOST_AT_ONCE))
            for each in due:
                self._forget(each.kind)
            return due

    def _forget(self, kind: RejectionKind) -> None:
        del self._waiting[kind]
        for counted in (kind.sender, kind.sender.org_id):
            self._kinds[counted] -= 1
            if not self._kinds[counted]:
                del self._kinds[counted]

    def _put_back(self, rejections: list[CountedRejections]) -> None:
        with self._lock:
            for each in rejections:
                newer = self._waiting.get(each.kind)
                self._keep(
                    each if newer is None else newer._replace(number=newer.number + each.number)
                )


def _needed(request: RefusedRequest) -> str:
    """Return what the sender lacked, if it is a scope, a feature or a limit."""
    text = request.needed or ""
    is_name = len(text) <= _LONGEST_NEEDED and text.isascii() and text.isprintable()
    return text if is_name else ""
