"""What tenants used of metered features: one counter for each feature, mode and period."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from tenantry.auth.authentication_store import KEY_NOW_COLUMNS, KeyNow
from tenantry.common.clock import from_epoch
from tenantry.common.encoding import doc
from tenantry.db.connection import Connection
from tenantry.db.idempotency_store import KEPT as IDEMPOTENCY_KEPT
from tenantry.db.idempotency_store import KeptAnswer
from tenantry.db.statements import (
    BIGINT,
    BIGINTS,
    BLOBS,
    JSONS,
    MOMENT,
    TEXTS,
    BoundStatement,
    Statement,
)
from tenantry.domain.entitlements import BillingPhase, Usage, UsagePeriod, billing_phase_at
from tenantry.domain.features import LARGEST_VALUE
from tenantry.domain.permissions import Mode
from tenantry.domain.quota_notices import MeteredUse, UseChange

_billing_phases: Final = msgspec.json.Decoder(tuple[BillingPhase, ...])


class ConsumptionKey(NamedTuple):
    """An idempotency key of a request that consumes: all credentials of a tenant share its keys, so
    that work which another of them repeats counts once.
    """

    org_id: str
    mode: Mode
    feature: str
    key: str


class KeptConsumption(NamedTuple):
    """The first consumption with a key: its answer, and what the counter of a period has of it."""

    answer: KeptAnswer
    taken: int
    period_start: int
    given_back: str | None = None
    """The JSON of the answer to giving it back."""


class Locked(NamedTuple):
    """What requests that consume are decided on."""

    usages: Mapping[MeteredUse, Usage]
    first: Mapping[ConsumptionKey, KeptConsumption]
    callers: Mapping[str, KeyNow]
    """API keys by their ids."""


class UsageRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What a tenant used of a feature in one period."""

    feature: Annotated[str, doc("The feature's id.", "exports")]
    mode: Annotated[Mode, doc("Live and test use are counted apart.", "live")]
    period_start: Annotated[datetime, doc("When the period began.", "2026-11-01T00:00:00Z")]
    period_end: Annotated[datetime, doc("When the next one begins.", "2026-12-01T00:00:00Z")]
    used: Annotated[int, doc("What was used.", 120)]


# A separate statement, because a statement sees only what was committed before it began. The
# period is not part of the name: a request repeated in the next period must find its answer.
_LOCK: Final = Statement(
    """
SELECT pg_advisory_xact_lock(hashtextextended(concat_ws(' ', 'usage of', org_id, mode, feature), 0))
  FROM unnest($1, $2, $3) AS a (org_id, mode, feature)
""",
    TEXTS,
    TEXTS,
    TEXTS,
)
_READ_KEYS: Final = Statement(
    f"""
SELECT k.id, {KEY_NOW_COLUMNS}
  FROM unnest($1) AS a (id)
  JOIN api_keys k USING (id)
  JOIN tenants t ON t.id = k.org_id
""",  # noqa: S608  # our own columns
    TEXTS,
)
_READ: Final = Statement(
    """
SELECT c.org_id, c.mode, c.feature, c.used
  FROM unnest($1, $2, $3, $4) AS a (org_id, mode, feature, period_start)
  JOIN usage_counters c USING (org_id, mode, feature, period_start)
""",
    TEXTS,
    TEXTS,
    TEXTS,
    BIGINTS,
)
_ADD: Final = Statement(
    """
INSERT INTO usage_counters AS c (org_id, mode, feature, period_start, period_end, used)
SELECT * FROM unnest($1, $2, $3, $4, $5, $6)
ON CONFLICT (org_id, feature, mode, period_start) DO UPDATE
   SET used = least(c.used + excluded.used, $7), period_end = excluded.period_end
""",
    TEXTS,
    TEXTS,
    TEXTS,
    BIGINTS,
    BIGINTS,
    BIGINTS,
    BIGINT,
)
# The counter may be new: what the transaction adds to it comes later.
_MARK_REACHED: Final = Statement(
    """
INSERT INTO usage_counters AS c (org_id, mode, feature, period_start, period_end, used, reached_at)
SELECT org_id, mode, feature, period_start, period_end, 0, $6
  FROM unnest($1, $2, $3, $4, $5) AS a (org_id, mode, feature, period_start, period_end)
ON CONFLICT (org_id, feature, mode, period_start) DO UPDATE
   SET reached_at = excluded.reached_at
 WHERE c.reached_at IS NULL
RETURNING org_id, mode, feature
""",
    TEXTS,
    TEXTS,
    TEXTS,
    BIGINTS,
    BIGINTS,
    MOMENT,
)
_RETURN: Final = Statement(
    """
UPDATE usage_counters c
   SET used = greatest(0, c.used - a.number)
  FROM unnest($1, $2, $3, $4, $5) AS a (org_id, mode, feature, period_start, number)
 WHERE c.org_id = a.org_id AND c.mode = a.mode AND c.feature = a.feature
   AND c.period_start = a.period_start
""",
    TEXTS,
    TEXTS,
    TEXTS,
    BIGINTS,
    BIGINTS,
)
_BILLING_PERIODS: Final = Statement(
    "SELECT id, billing_periods::text FROM tenants WHERE id = ANY($1) AND billing_periods IS NOT NULL",
    TEXTS,
)
_FIND_KEYS: Final = Statement(
    """
SELECT org_id, mode, feature, key, body_digest, answer::text, taken, period_start, given_back::text
  FROM unnest($1, $2, $3, $4) AS a (org_id, mode, feature, key)
  JOIN consumption_keys USING (org_id, mode, feature, key)
 WHERE created_at > $5
""",
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    MOMENT,
)
_KEEP_KEYS: Final = Statement(
    """
INSERT INTO consumption_keys (org_id, mode, feature, key, body_digest, answer, taken, period_start, created_at)
SELECT org_id, mode, feature, key, body_digest, answer, taken, period_start, $9
  FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)
    AS a (org_id, mode, feature, key, body_digest, answer, taken, period_start)
ON CONFLICT (org_id, feature, mode, key) DO UPDATE
   SET body_digest = excluded.body_digest, answer = excluded.answer, created_at = excluded.created_at,
       taken = excluded.taken, period_start = excluded.period_start, given_back = NULL
""",
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    BLOBS,
    JSONS,
    BIGINTS,
    BIGINTS,
    MOMENT,
)
_MARK_GIVEN_BACK: Final = Statement(
    """
UPDATE consumption_keys k
   SET given_back = a.answer
  FROM unnest($1, $2, $3, $4, $5) AS a (org_id, mode, feature, key, answer)
 WHERE k.org_id = a.org_id AND k.mode = a.mode AND k.feature = a.feature AND k.key = a.key
""",
    TEXTS,
    TEXTS,
    TEXTS,
    TEXTS,
    JSONS,
)
_READ_ALL: Final = """
SELECT feature, mode, period_start, period_end, used FROM usage_counters WHERE org_id = %s
 ORDER BY period_start DESC, feature, mode
"""


async def billing_now(
    connection: Connection, org_ids: Iterable[str], now: datetime
) -> dict[str, BillingPhase]:
    """Read the billing periods and months of these tenants at ``now``, as the provider last
    reported them; tenants that never had one are left out.
    """
    [rows] = await connection.run_batch(_BILLING_PERIODS(sorted(org_ids)))
    second = now.timestamp()
    return {id_: billing_phase_at(_billing_phases.decode(stored), second) for id_, stored in rows}


async def read(
    connection: Connection, periods: Mapping[MeteredUse, UsagePeriod]
) -> dict[MeteredUse, Usage]:
    """Read the counters of these uses in their periods."""
    [rows] = await connection.run_batch(*_read(periods))
    return _usages(rows, periods)


async def lock_and_read(
    connection: Connection,
    periods: Mapping[MeteredUse, UsagePeriod],
    keys: Collection[ConsumptionKey],
    callers: Collection[str],
    now: datetime,
) -> Locked:
    """Read the counters of these uses in their periods, the first consumptions with these keys, and
    the API keys with these ids, the ``callers``. Until the transaction ends, others wait to change
    the counters.

    Each key must be of a request for one of these uses.
    """
    _, found_callers, rows, *first = await connection.run_batch(
        _LOCK(*zip(*sorted(periods), strict=True)),
        _READ_KEYS(sorted(callers)),
        *_read(periods),
        *_FIND_KEYS.for_rows(sorted(keys), now - IDEMPOTENCY_KEPT),
    )
    return Locked(
        _usages(rows, periods),
        _consumptions(chain.from_iterable(first)),
        {key_id: KeyNow(*row) for key_id, *row in found_callers},
    )


async def lock_and_find(
    connection: Connection, key: ConsumptionKey, now: datetime
) -> KeptConsumption | None:
    """Find the first consumption with a key. Until the transaction ends, others wait to change the
    counters of its use.
    """
    _, rows = await connection.run_batch(
        _LOCK(*zip(key[:-1], strict=True)), *_FIND_KEYS.for_rows([key], now - IDEMPOTENCY_KEPT)
    )
    return _consumptions(rows).get(key)


async def return_and_lock(
    connection: Connection,
    returned: Sequence[tuple[MeteredUse, int, int]],
    periods: Mapping[MeteredUse, UsagePeriod],
) -> dict[MeteredUse, Usage]:
    """Take what is ``returned`` from its counters, each a use, the start of its period and a
    number, and read those of these uses in their periods. Until the transaction ends, others wait
    to change them.
    """
    numbers = [(*use, start, number) for use, start, number in returned]
    uses = sorted({*periods, *(use for use, _, _ in returned)})
    results = await connection.run_batch(
        _LOCK(*zip(*uses, strict=True)),
        *_RETURN.for_rows(numbers),
        *_read(periods),
    )
    return _usages(results[-1], periods) if periods else {}


async def mark_reached(
    connection: Connection, periods: Mapping[MeteredUse, UsagePeriod], now: datetime
) -> set[MeteredUse]:
    """Note that uses have reached their limits in these periods; return those that had not before.

    The transaction has locked them.
    """
    rows = [(*use, *period) for use, period in periods.items()]
    found = await connection.run_batch(*_MARK_REACHED.for_rows(rows, now))
    return {MeteredUse(org_id, Mode(mode), feature) for org_id, mode, feature in found[0]}


async def add(
    connection: Connection,
    changes: Iterable[UseChange],
    first: Mapping[ConsumptionKey, KeptConsumption],
    now: datetime,
) -> None:
    """Add to the counters what changes, keep first consumptions with a key, and commit."""
    counters = [
        (*use, *after.period, after.used - before.used)
        for use, before, after, _, _ in changes
        if after != before
    ]
    keys = [
        (*key, kept.body_digest, kept.answer.encode(), taken, start)
        for key, (kept, taken, start, _) in first.items()
    ]
    await connection.run_batch(
        *_ADD.for_rows(counters, LARGEST_VALUE),
        *_KEEP_KEYS.for_rows(keys, now),
        commit=True,
    )


async def mark_given_back(connection: Connection, key: ConsumptionKey, answer: bytes) -> None:
    """Keep the answer, as JSON, to giving back the consumption with a key."""
    await connection.run_batch(*_MARK_GIVEN_BACK.for_rows([(*key, answer)]))


async def read_all(connection: Connection, org_id: str) -> list[UsageRecord]:
    """Read all counters of a tenant, newest period first."""
    rows = await connection.fetch(_READ_ALL, (org_id,))
    return [
        UsageRecord(feature, Mode(mode), from_epoch(start), from_epoch(end), used)
        for feature, mode, start, end, used in rows
    ]


def _read(periods: Mapping[MeteredUse, UsagePeriod]) -> list[BoundStatement]:
    return _READ.for_rows([(*use, period.start) for use, period in periods.items()])


def _consumptions(rows: Iterable[Sequence[Any]]) -> dict[ConsumptionKey, KeptConsumption]:
    return {
        ConsumptionKey(*row[:4]): KeptConsumption(KeptAnswer(*row[4:6]), *row[6:]) for row in rows
    }


def _usages(
    rows: Iterable[Sequence[Any]], periods: Mapping[MeteredUse, UsagePeriod]
) -> dict[MeteredUse, Usage]:
    counted = {MeteredUse(org_id, mode, feature): used for org_id, mode, feature, used in rows}
    return {use: Usage(counted.get(use, 0), period) for use, period in periods.items()}
