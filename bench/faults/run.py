"""One deployment under load: faults at random moments, and checks after each fault and at the
end.
"""

import asyncio
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.faults.deployment import OPERATOR, OWNERS, DatabaseKind, Deployment, running_deployment
from bench.faults.fault_types import InjectedFault
from bench.faults.load import (
    REPEATED,
    REVOKED,
    SUCCESSES,
    UNAVAILABLE,
    AnsweredRequest,
    Change,
    Load,
)
from bench.faults.stored_state import AuditState, LedgerState, read_audit, read_ledger

PAUSE: Final = 0.25
"""Mean of seconds between two requests of a client."""
MAIL: Final = "mail"
_BETWEEN_FAULTS: Final = (0.5, 3.0)
"""Bounds in seconds."""
_TIMEOUT: Final = 120.0
"""Seconds for a recovery, and for the last events to be acknowledged."""
_MAIL_TIMEOUT: Final = 1500.0
"""Seconds for the last mails, which are retried ever more rarely."""
_POLL: Final = 0.05
_LAG: Final = 3.0
"""The longest acceptable lag of an asynchronous standby in seconds."""
_IN_FLIGHT: Final = 1.0
"""Seconds after the primary's end in which its last answers may arrive."""
_AFTER_LOSS: Final = ("new key", "rotate key", "revoke key", REVOKED, "remove member")
"""Requests that may find keys and members in an older state after a loss."""
_CONNECTIONS: Final = (
    "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
)
_GROUPS: Final = {
    "twin": "event",
    "event again": "event",
    "suspended list": "list",
    "suspended check": "check",
}
_PENDING: Final = """
SELECT (SELECT count(*) FROM notifications WHERE status = 'queued')
     + (SELECT count(*) FROM procrastinate_jobs
         WHERE queue_name IN ('mail', 'provider') AND status IN ('todo', 'doing'))
"""


class FaultResult(NamedTuple):
    """One injected fault; times are on the monotonic clock."""

    fault: InjectedFault
    began: float
    ended: float
    killed: int
    recovered: float
    """When every kind of request had succeeded again and all servers were ready."""
    recoveries: dict[str, float]
    """Seconds from the fault's end to the first success, by affected kind of request, and for
    mails.
    """
    lost: int
    """Acknowledged events that were missing from the ledger afterwards."""
    unconfirmed: Counter[Change]
    """Changes in the audit trail that no answer had confirmed."""
    doubled: int = 0
    """Changes that took effect more often than answers ever confirmed."""


class RepeatedMail(NamedTuple):
    """A mail that arrived more than once."""

    first: float
    """When the first copy arrived."""
    more: int
    """The number of further copies."""


class MailResult(NamedTuple):
    """The outcome of the notifications."""

    notifications: int
    never: int
    """Notifications without a mail."""
    repeated: list[RepeatedMail]
    beyond: int
    """Mails that arrived more often than the faults explain."""
    pending: int
    """Unfinished notifications and jobs."""


class PhaseResult(NamedTuple):
    """The results of one deployment."""

    kind: DatabaseKind
    faults: list[FaultResult]
    requests: list[AnsweredRequest]
    acknowledged: int
    ledger: LedgerState
    mails: MailResult
    violations: list[str]
    connections: int
    """The most connections that the database had."""
    workers: int


async def run_phase(
    kind: DatabaseKind,
    faults: Sequence[InjectedFault],
    chance: random.Random,
    options: Sequence[str],
    logs: Path | None,
) -> PhaseResult:
    """Inject these faults in this order."""
    async with running_deployment(kind, options, logs) as site:
        run = FaultRun(site, chance)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(run.watch_mail())
            loading = group.create_task(run.load.run())
            await run.until_all_succeed(time.monotonic())
            if kind is DatabaseKind.CLOCK:
                # a process under faketime hangs for seconds at its start, with rows locked
                run.steady = time.monotonic()
            for number, fault in enumerate(faults, start=1):
                print(f"  {kind.name.lower()} {number}/{len(faults)}: {fault.name}", flush=True)
                await run.inject(fault)
            await run.end(loading)
            watching.cancel()
        return await run.result()


class FaultRun:
    """A deployment under load."""

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
        self.load = Load(
            site.ports,
            site.keys,
            site.owners,
            OPERATOR,
            seed=chance.randrange(1 << 30),
            pause=PAUSE,
            host=site.host,
            revoked_key_clients=revoked_key_clients,
        )
        self.steady = 0.0
        """Until this moment any request may get 503 with Retry-After."""
        self.faults: list[FaultResult] = []
        self.site = site
        self._chance = chance
        self._mail_timeout = mail_timeout
        self._mails: list[float] = []
        self._lost: set[str] = set()
        self._violations: list[str] = []
        self._pending = 0
        self._connections = 0

    async def watch_mail(self) -> None:
        """Note when each mail arrives."""
        while True:
            new = len(self.site.mail.received) - len(self._mails)
            self._mails += [time.monotonic()] * new
            await asyncio.sleep(_POLL)

    async def inject(self, fault: InjectedFault) -> None:
        """Inject one fault and record its effects."""
        await asyncio.sleep(self._chance.uniform(*_BETWEEN_FAULTS))
        began = time.monotonic()
        killed = await fault.inject(self.site, self._chance) or 0
        ended = time.monotonic()
        first = await self.until_all_succeed(ended)
        await asyncio.to_thread(self.site.until_ready)
        recovered = time.monotonic()
        affected = {
            _group(request.kind)
            for request in self._since(began)
            if request.at <= ended + _TIMEOUT and not request.is_success
        }
        lost, unconfirmed = await asyncio.to_thread(self._check_database)
        recoveries = {kind: at - ended for kind, at in first.items() if kind in affected}
        self.faults.append(
            FaultResult(fault, began, ended, killed, recovered, recoveries, lost, unconfirmed)
        )
        if fault.restore is not None:
            await fault.restore(self.site, self._chance)

    async def until_all_succeed(self, since: float) -> dict[str, float]:
        """Wait until each kind of request has succeeded after a moment; return when each did
        first.
        """
        wanted = {_group(kind) for kind in SUCCESSES}
        first: dict[str, float] = {}
        position = len(self.load.requests)
        while wanted - first.keys():
            if time.monotonic() > since + _TIMEOUT:
                self._violations.append(
                    f"no success within {_TIMEOUT:g} s: {', '.join(sorted(wanted - first.keys()))}"
                )
                break
            for request in self.load.requests[position:]:
                if request.is_success and request.at - request.took >= since:
                    first.setdefault(_group(request.kind), request.at)
            position = len(self.load.requests)
            await asyncio.sleep(_POLL)
        return first

    def _since(self, moment: float) -> Iterator[AnsweredRequest]:
        for each in reversed(self.load.requests):
            if each.at < moment:
                return
            yield each

    def _check_database(self) -> tuple[int, Counter[Change]]:
        """Return the number of newly lost events, and the changes that no answer has confirmed so
        far.
        """
        acknowledged = set(self.load.acknowledged.copy())
        entries = {row[0] for row in self.site.rows("SELECT id FROM billing_events")}
        lost = acknowledged - entries - self._lost
        self._lost |= lost
        self._connections = max(self._connections, int(self.site.rows(_CONNECTIONS)[0][0]))
        # before the copy, because answers still arrive
        audit = read_audit(self.site.conninfo, OWNERS)
        return len(lost), audit.unconfirmed(self.load.confirmed.copy())

    async def end(self, loading: asyncio.Task[None]) -> None:
        """End the load; wait until every event is acknowledged, every mail sent and every job for
        the provider done.

        Raises `TimeoutError` if an event is not acknowledged in time; mails and jobs are then
        reported as pending.
        """
        self.load.end()
        async with asyncio.timeout(_TIMEOUT):
            await loading
        deadline = time.monotonic() + self._mail_timeout
        while True:
            [[self._pending]] = await asyncio.to_thread(self.site.rows, _PENDING)
            if not self._pending or time.monotonic() >= deadline:
                return
            await asyncio.sleep(1)

    async def result(self) -> PhaseResult:
        """Check the final state."""
        ledger = await read_ledger(self.site.conninfo)
        audit = await asyncio.to_thread(read_audit, self.site.conninfo, OWNERS)
        return PhaseResult(
            self.site.kind,
            list(self._completed(audit)),
            self.load.requests,
            len(self.load.acknowledged),
            ledger,
            await asyncio.to_thread(self._check_mails),
            [*self._violations, *self._find_violations(ledger, audit)],
            self._connections,
            self.site.workers,
        )

    def _completed(self, audit: AuditState) -> Iterator[FaultResult]:
        """Add what only the end shows: doubled changes, and the first mail after each fault."""
        doubled = audit.unconfirmed(self.load.confirmed)
        for each in self.faults:
            own = each.unconfirmed & doubled
            doubled -= own
            later = [at - each.ended for at in self._mails if at >= each.ended]
            recoveries = each.recoveries | ({MAIL: later[0]} if later else {})
            yield each._replace(doubled=own.total(), recoveries=recoveries)

    def _check_mails(self) -> MailResult:
        ids = {f"<{row[0]}@example.com>" for row in self.site.rows("SELECT id FROM notifications")}
        times: defaultdict[str, list[float]] = defaultdict(list)
        for at, mail in zip(self._mails, self.site.mail.received, strict=False):
            times[str(mail.message["Message-ID"])].append(at)
        repeated = [copies for copies in times.values() if len(copies) > 1]
        beyond = sum(
            len(copies) - 1
            > sum(
                each.fault.mails > 0
                and each.began - 1 <= copies[-1]
                and each.recovered + 1 >= copies[0] - 1
                for each in self.faults
            )
            for copies in repeated
        )
        again = [RepeatedMail(copies[0], len(copies) - 1) for copies in repeated]
        return MailResult(len(ids), len(ids - times.keys()), again, beyond, self._pending)

    def _find_violations(self, ledger: LedgerState, audit: AuditState) -> Iterator[str]:
        acknowledged = self.load.acknowledged
        if lost := [
            each
            for each in acknowledged.keys() - ledger.events
            if not self._may_be_lost(acknowledged[each])
        ]:
            yield f"{len(lost):,} acknowledged events are not in the ledger, such as {min(lost)}"
        if unsent := ledger.events - self.load.sent:
            yield f"{len(unsent):,} entries of the ledger were never sent, such as {min(unsent)}"
        if ledger.differing:
            yield f"the state of {ledger.differing} tenants differs from the fold of their ledger"
        if doubled := audit.unconfirmed(self.load.confirmed):
            yield f"{doubled.total()} changes took effect more often than answered, such as {min(doubled)}"
        absent = {change for change in self.load.confirmed if change not in audit.entries}
        lost_changes = {
            change for change in absent if self._may_be_lost(self.load.confirmed[change])
        }
        if missing := absent - lost_changes:
            yield f"{len(missing)} confirmed changes are not in the audit trail, such as {min(missing)}"
        if live := audit.live - {key for _, key in lost_changes}:
            yield f"{len(live)} keys are not revoked at the end, such as {min(live)}"
        if found := [text for at, text in self.load.contradictions if at < self._first_loss()]:
            yield f"{len(found)} times an answer about a member contradicted an earlier one: {found[0]}"
        unexplained = Counter(filter(None, map(self._unexplained, self.load.requests)))
        for text, count in unexplained.most_common():
            yield f"{count} times {text}"

    def _may_be_lost(self, acknowledged: float) -> bool:
        """Return whether a fault explains the loss of what was acknowledged at a moment."""
        losing = [each.began for each in self.faults if each.fault.loses]
        return any(began - _LAG <= acknowledged <= began + _IN_FLIGHT for began in losing)

    def _first_loss(self) -> float:
        """Return when the first fault began that may lose changes."""
        return min((each.began for each in self.faults if each.fault.loses), default=math.inf)

    def _unexplained(self, request: AnsweredRequest) -> str | None:
        """Describe an unsuccessful answer that nothing explains."""
        if request.is_success or (request.is_retryable and request.at < self.steady):
            return None
        current = [
            each
            for each in self.faults
            if each.began <= request.at and request.at - request.took <= each.recovered
        ]
        if request.status in REPEATED.get(request.kind, ()) or any(
            each.fault.explains(request) for each in current
        ):
            return None
        if request.kind in _AFTER_LOSS and request.at >= self._first_loss():
            return None
        status = str(request.status or "no answer")
        if request.status == UNAVAILABLE and not request.has_retry_after:
            status += " without Retry-After"
        return f"{request.kind}: {status}, during: {', '.join({each.fault.name for each in current}) or 'no fault'}"


def _group(kind: str) -> str:
    return _GROUPS.get(kind, kind)
