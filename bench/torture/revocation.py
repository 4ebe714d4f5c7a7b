"""Whatever is acknowledged stays: events, changes of keys and members, and above all revocations;
and every notification is mailed.
"""

import asyncio
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from bench.torture import disturbances as caused
from bench.torture.client import OK
from bench.torture.clients import UNAVAILABLE, AnsweredRequest
from bench.torture.deployment import OWNERS, DatabaseKind, Deployment
from bench.torture.load import RARE, REPEATED, REVOKED, SUCCESSES, Load
from bench.torture.report import Report, median_and_longest
from bench.torture.run import TIMEOUT, Injection, Run, Subject
from bench.torture.stored_state import AuditState, LedgerState, read_audit, read_ledger

PAUSE: Final = 0.25
"""Mean of seconds between two requests of a client."""
HEAD: Final = (
    "disturbance",
    "times",
    "requests",
    "not served",
    "acknowledged",
    "mailed again",
    "recovered after, s",
)
_MAIL_TIMEOUT: Final = 1500.0
"""Seconds for the last mails, which are retried ever more rarely."""
_POLL: Final = 0.05
_LAG: Final = 3.0
"""The longest acceptable lag of an asynchronous standby in seconds."""
_AFTER_LOSS: Final = ("new key", "rotate key", "revoke key", REVOKED, "remove member")
"""Requests that may find keys and members in an older state after a loss."""
_PENDING: Final = """
SELECT (SELECT count(*) FROM notifications WHERE status = 'queued')
     + (SELECT count(*) FROM procrastinate_jobs
         WHERE queue_name IN ('mail', 'provider') AND status IN ('todo', 'doing'))
"""


class MailResult(NamedTuple):
    """The outcome of the notifications."""

    notifications: int
    never: int
    """Notifications without a mail."""
    repeated: list[list[float]]
    """When the copies of each mail arrived that arrived more than once."""


class RevocationRun(Run):
    """Compares every answer, the ledger, the audit trail and the mails with what was promised."""

    def __init__(
        self,
        site: Deployment,
        chance: random.Random,
        *,
        revoked_key_clients: int = 1,
        mail_timeout: float = _MAIL_TIMEOUT,
    ) -> None:
        """``mail_timeout`` is in seconds, from the end of the load to the last mail and the last
        job.
        """
        super().__init__(site, chance)
        own = random.Random(chance.random())  # noqa: S311  # no secret
        self.load = Load(site, own, PAUSE, revoked_key_clients)
        self.loads = [self.load]
        self.steady = 0.0
        """Until this moment any request may get 503 with Retry-After."""
        self._mail_timeout = mail_timeout
        self._mails: list[float] = []
        self._unserved: list[str] = []
        self._pending = 0

    def beside(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Note when each mail arrives."""
        yield self._watch_mail()

    async def _watch_mail(self) -> None:
        while True:
            new = len(self.site.mail.received) - len(self._mails)
            self._mails += [time.monotonic()] * new
            await asyncio.sleep(_POLL)

    async def until_recovered(self) -> None:
        """Wait until each kind of request has succeeded again, and all servers are ready."""
        since = time.monotonic()
        wanted = SUCCESSES.keys() - RARE
        position = len(self.load.requests)
        while wanted:
            if time.monotonic() > since + TIMEOUT:
                missing = ", ".join(sorted(wanted))
                self._unserved.append(f"no success within {TIMEOUT:g} s: {missing}")
                break
            new = self.load.requests[position:]
            position += len(new)
            wanted -= {
                each.kind for each in new if each.is_success and each.at - each.took >= since
            }
            await asyncio.sleep(_POLL)
        await super().until_recovered()

    async def settle(self) -> None:
        """Wait until every mail is sent and every job for the provider done, or long enough."""
        deadline = time.monotonic() + self._mail_timeout
        while True:
            [[self._pending]] = await asyncio.to_thread(self.site.rows, _PENDING)
            if not self._pending or time.monotonic() >= deadline:
                return
            await asyncio.sleep(1)

    async def report(self) -> Report:
        """Check the final state."""
        ledger = await read_ledger(self.site.conninfo)
        audit = await asyncio.to_thread(read_audit, self.site.conninfo, OWNERS)
        mails = await asyncio.to_thread(self._read_mails)
        rows = [self._row(name, own, mails) for name, own in self.by_disturbance().items()]
        violations = [
            *self.nothing_killed(),
            *self._unserved,
            *self._wrong_changes(ledger, audit),
            *self._wrong_answers(),
            *self._wrong_mails(mails),
        ]
        return Report(HEAD, rows, list(self._totals(ledger, mails)), violations)

    def _row(self, name: str, injections: Sequence[Injection], mails: MailResult) -> list[str]:
        during = [
            request
            for each in injections
            for request in self.load.requests
            if each.began <= request.at <= each.recovered
        ]
        acknowledged = [each for each in during if each.kind in caused.EVENTS and each.status == OK]
        return [
            name,
            f"{len(injections)}",
            f"{len(during):,}",
            f"{sum(not each.is_success for each in during):,}",
            f"{len(acknowledged):,}",
            f"{sum(self._mailed_again(each, mails) for each in injections)}",
            median_and_longest([each.recovered - each.ended for each in injections]),
        ]

    def _totals(self, ledger: LedgerState, mails: MailResult) -> Iterator[str]:
        killed = sum(each.killed for each in self.injections)
        yield (
            f"{self.site.kind}: {len(self.injections)} disturbances, {killed} processes killed by "
            f"kill -9; {len(self.load.requests):,} requests"
        )
        yield (
            f"  events: {len(self.load.acknowledged):,} acknowledged, {len(ledger.events):,} in the ledger, "
            f"{len(self.lost_events(ledger))} lost; replay: {ledger.folded:,} tenants folded, "
            f"{ledger.differing} differing"
        )
        yield (
            f"  mails: {mails.notifications:,} notifications, {mails.never} never sent, "
            f"{len(mails.repeated)} sent more than once; {self._pending} jobs pending"
        )
        counts = Counter((request.kind, request.status) for request in self.load.requests)
        for kind in SUCCESSES:
            statuses = ", ".join(
                f"{status or 'none'}: {count:,}"
                for (of, status), count in sorted(counts.items())
                if of == kind
            )
            yield f"  {kind:15} {statuses}"

    # Events and changes

    def lost_events(self, ledger: LedgerState) -> set[str]:
        """Return the acknowledged events that are not in the ledger."""
        return self.load.acknowledged.keys() - ledger.events

    def _wrong_changes(self, ledger: LedgerState, audit: AuditState) -> Iterator[str]:
        acknowledged, confirmed = self.load.acknowledged, self.load.confirmed
        lost = {each for each in self.lost_events(ledger) if not self._may_lose(acknowledged[each])}
        absent = confirmed.keys() - audit.entries
        lost_changes = {change for change in absent if self._may_lose(confirmed[change])}
        live = audit.live - {key for _, key in lost_changes}
        wrong: dict[str, Collection[object]] = {
            "acknowledged events are not in the ledger": lost,
            "entries of the ledger were never sent": ledger.events - self.load.sent,
            "changes took effect more often than answered": audit.unconfirmed(confirmed),
            "confirmed changes are not in the audit trail": absent - lost_changes,
            "keys are not revoked at the end": live,
        }
        for what, found in wrong.items():
            if found:
                yield f"{len(found):,} {what}, such as {min(map(str, found))}"
        if ledger.differing:
            yield f"the state of {ledger.differing} tenants differs from the fold of their ledger"

    def _may_lose(self, acknowledged: float) -> bool:
        """Return whether a disturbance explains the loss of what was acknowledged at a moment."""
        losing = [each for each in self.injections if each.disturbance.loses]
        return any(each.began - _LAG <= acknowledged <= each.ended for each in losing)

    def _first_loss(self) -> float:
        """Return when the first disturbance began that may lose changes."""
        losing = (each.began for each in self.injections if each.disturbance.loses)
        return min(losing, default=math.inf)

    # Answers

    def _wrong_answers(self) -> Iterator[str]:
        if found := [text for at, text in self.load.contradictions if at < self._first_loss()]:
            yield f"{len(found)} times an answer about a member contradicted an earlier one: {found[0]}"
        unexplained = Counter(filter(None, map(self._unexplained, self.load.requests)))
        for text, count in unexplained.most_common():
            yield f"{count} times {text}"

    def _unexplained(self, request: AnsweredRequest) -> str | None:
        """Describe an unsuccessful answer that nothing explains."""
        if request.is_success or (request.is_retryable and request.at < self.steady):
            return None
        current = self._disturbances_during(request)
        if self._is_repetition(request) or any(each.explains(request) for each in current):
            return None
        during = ", ".join({each.name for each in current}) or "no disturbance"
        return f"{request.kind}: {_status(request)}, during: {during}"

    def _disturbances_during(self, request: AnsweredRequest) -> list[caused.Disturbance]:
        return [
            each.disturbance
            for each in self.injections
            if each.began <= request.at and request.at - request.took <= each.recovered
        ]

    def _is_repetition(self, request: AnsweredRequest) -> bool:
        """Return whether it may have taken effect before, or its object may be lost."""
        if request.kind in _AFTER_LOSS and request.at >= self._first_loss():
            return True
        return request.status in REPEATED.get(request.kind, ())

    # Mails

    def _read_mails(self) -> MailResult:
        ids = {f"<{row[0]}@example.com>" for row in self.site.rows("SELECT id FROM notifications")}
        times: defaultdict[str, list[float]] = defaultdict(list)
        for at, mail in zip(self._mails, self.site.mail.received, strict=False):
            times[str(mail.message["Message-ID"])].append(at)
        repeated = [copies for copies in times.values() if len(copies) > 1]
        return MailResult(len(ids), len(ids - times.keys()), repeated)

    def _mailing(self) -> list[Injection]:
        """Return the disturbances that may repeat mails."""
        return [each for each in self.injections if each.disturbance.mails]

    def _mailed_again(self, injection: Injection, mails: MailResult) -> int:
        """Count the copies of mails whose first one is explained by this disturbance at last."""
        again = 0
        for first, *more in mails.repeated:
            possible = [each for each in self._mailing() if each.began <= first + 1]
            again += len(more) if possible and possible[-1] is injection else 0
        return again

    def _wrong_mails(self, mails: MailResult) -> Iterator[str]:
        if mails.never:
            yield f"{mails.never} notifications without a mail"
        if self._pending:
            yield f"{self._pending} notifications or jobs are pending"
        beyond = 0
        for copies in mails.repeated:
            first, last = copies[0] - 2, copies[-1] + 1
            meanwhile = [
                each for each in self._mailing() if each.began <= last and each.recovered >= first
            ]
            beyond += len(copies) - 1 > len(meanwhile)
        if beyond:
            yield f"{beyond} mails arrived more often than the disturbances explain"
        for each in self.injections:
            again = self._mailed_again(each, mails)
            allowed = each.disturbance.mails * self.site.workers
            if again > allowed:
                name = each.disturbance.name
                yield f"{name}: {again} mails were sent again, {allowed:g} may be"


def _status(request: AnsweredRequest) -> str:
    if request.status == UNAVAILABLE and not request.has_retry_after:
        return f"{UNAVAILABLE} without Retry-After"
    return str(request.status or "no answer")


SUBJECT: Final = Subject(
    RevocationRun,
    {
        DatabaseKind.ALONE: (
            *caused.OF_SERVICE,
            *caused.OF_DATABASE,
            *caused.OF_MAIL,
            *caused.OF_PROVIDER,
        ),
        DatabaseKind.SYNCHRONOUS: (caused.FAIL_OVER, caused.LOSE_STANDBY),
        DatabaseKind.ASYNCHRONOUS: (caused.FAIL_OVER_BEHIND,),
    },
    {"a revoked key is accepted": (DatabaseKind.ALONE, (caused.KILL_SERVER,))},
)
