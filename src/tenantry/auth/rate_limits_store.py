"""Requests counted by subject and second. Processes reserve and return shares of them in
batches.
"""

from collections.abc import Sequence
from typing import Final

from tenantry.db.connection import Connection
from tenantry.db.statements import BIGINT, BIGINTS, TEXTS, Statement
from tenantry.domain.rate_limits import SLOTS, RateSubject
from tenantry.domain.shares import ShareGrant, ShareRequest

SESSION: Final = {"synchronous_commit": "off"}
"""Session settings: a crash may lose counts anyway."""

# A separate statement, because a statement sees only what was committed before it began. The lock's
# name is not the subject, which changes of the tenant lock for as long as a lost standby lets them
# wait.
LOCK_SUBJECTS: Final = Statement(
    "SELECT pg_advisory_xact_lock(hashtextextended('requests of ' || subject, 0)) FROM unnest($1) AS a (subject)",
    TEXTS,
)
# The OFFSET 0 makes the planner find each subject's rows by the index, whatever its statistics.
# Returned shares are of an earlier second, or nothing is wanted with them: so no row is written
# twice. What a valid share returns stays in use meanwhile, so as much is granted again (kept),
# whatever the subjects within it lack. Clocks differ a little; counts more than a window ahead are
# of a wrong clock, and must not make requests wait.
TAKE: Final = Statement(
    """
WITH requested AS (
    SELECT *
      FROM unnest($1, $2, $3, $4, $5, $6, $7) AS a (subject, quota, wanted, taken_in, unused, missing, within)
),
measured AS (
    SELECT a.*, coalesce(u.number, 0) AS used, u.oldest,
           CASE WHEN a.taken_in >= $8 THEN least(a.unused, a.wanted) ELSE 0 END AS kept
      FROM requested a
      CROSS JOIN LATERAL (
               SELECT sum(n.number) AS number, min(n.second) FILTER (WHERE n.number > 0) AS oldest
                 FROM (SELECT c.second,
                              c.number - CASE WHEN c.second = a.taken_in THEN least(a.unused, c.number) ELSE 0 END
                         FROM request_counts c
                        WHERE c.subject = a.subject AND c.second > $8 - $9 AND c.second <= $8 + $9
                       OFFSET 0) n (second, number)) u
),
lacking AS (
    SELECT within AS subject, sum(greatest(0, missing - greatest(0, least(wanted, quota - used))))::bigint AS number
      FROM measured
     WHERE within <> ''
     GROUP BY within
),
granted AS (
    SELECT m.*, greatest(0, least(greatest(m.wanted - coalesce(l.number, 0), m.kept), m.quota - m.used)) AS number
      FROM measured m
      LEFT JOIN lacking l ON l.subject = m.subject
),
removed AS (
    DELETE FROM request_counts
     WHERE ctid = ANY (ARRAY (
               SELECT r.ctid
                 FROM requested a
                CROSS JOIN LATERAL (
                          SELECT c.ctid FROM request_counts c
                           WHERE c.subject = a.subject AND (c.second <= $8 - $9 OR c.second > $8 + $9)
                          OFFSET 0) r))
),
returned AS (
    UPDATE request_counts c
       SET number = c.number - least(a.unused, c.number)
      FROM requested a
     CROSS JOIN LATERAL (
               SELECT r.ctid FROM request_counts r
                WHERE a.unused > 0 AND r.subject = a.subject AND r.second = a.taken_in
                  AND r.second > $8 - $9 AND r.second <= $8 + $9
               OFFSET 0) r
     WHERE c.ctid = r.ctid
),
added AS (
    INSERT INTO request_counts AS c (subject, second, number)
    SELECT subject, $10, number FROM granted WHERE number > 0
    ON CONFLICT (subject, second) DO UPDATE SET number = c.number + excluded.number
)
SELECT g.subject, g.number::int, (g.used + g.number)::bigint,
       CASE WHEN g.used + g.number > g.quota
            THEN (SELECT min(n.second)
                    FROM (SELECT c.second, sum(c.number - CASE WHEN c.second = g.taken_in THEN least(g.unused, c.number)
                                                               ELSE 0 END) OVER (ORDER BY c.second) AS by_then
                            FROM request_counts c
                           WHERE c.subject = g.subject AND c.second > $8 - $9 AND c.second <= $8 + $9
                          OFFSET 0) n
                   WHERE n.by_then > g.used + g.number - g.quota)
            ELSE coalesce(g.oldest, $8) END
  FROM granted g
""",
    TEXTS,
    BIGINTS,
    BIGINTS,
    BIGINTS,
    BIGINTS,
    BIGINTS,
    TEXTS,
    BIGINT,
    BIGINT,
    BIGINT,
)
_COUNT: Final = (
    "SELECT coalesce(sum(number), 0) FROM request_counts WHERE subject = %s AND second > %s"
)


async def take(
    connection: Connection,
    requests: Sequence[ShareRequest[RateSubject]],
    now: int,
    seconds: int = 1,
) -> dict[str, ShareGrant]:
    """Grant requests for the second ``now``, or for several ``seconds`` of which they count in the
    last one, and commit; return the grants by the names of the subjects. Each occurs once.

    A subject within which another one is counted is asked for as many fewer as that one cannot
    grant. Other requests for these subjects wait meanwhile.
    """
    last = now + seconds - 1
    columns = [*zip(*sorted(map(_row_of, requests)), strict=True)]
    _, rows = await connection.run_batch(
        LOCK_SUBJECTS(columns[0]), TAKE(*columns, now, SLOTS, last), commit=True
    )
    return {
        name: ShareGrant(number, total, last, last, frees_at + SLOTS)
        for name, number, total, frees_at in rows
    }


def _row_of(request: ShareRequest[RateSubject]) -> tuple[str | int, ...]:
    return (
        request.subject.name,
        request.limit,
        request.wanted,
        request.counted_in,
        request.unused,
        request.missing,
        request.subject.within,
    )


async def count_requests(connection: Connection, subject: str, since: int) -> int:
    """Count the requests of a subject after a second."""
    return await connection.fetch_count(_COUNT, (subject, since))
