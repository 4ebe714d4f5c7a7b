"""Requests counted by subject and second: shares are taken from it and given back to it, many at a time."""

from collections.abc import Sequence
from typing import Final

from tenantry.db.connection import Connection
from tenantry.db.statements import BIGINT, BIGINTS, TEXTS, Statement
from tenantry.domain.rate_limits import SLOTS, Granted, Taking

SESSION: Final = r"-c synchronous_commit=off -c default_transaction_isolation=read\ committed"
"""The settings of a session that takes: a crash may lose counts anyway, and each statement must see the latest ones."""

# A statement sees what was committed before it began: so the lock is one of its own, before the one that counts. Its
# name is not the subject, which is also what a change of the tenant holds: as long as a lost standby lets that wait.
LOCK_SUBJECTS: Final = Statement(
    "SELECT pg_advisory_xact_lock(hashtextextended('requests of ' || subject, 0)) FROM unnest($1) AS asked (subject)",
    TEXTS,
)
# Each subject's rows are found by index, whatever the planner knows of the table: hence the OFFSET 0. What goes back is
# of an earlier second, or nothing is wanted with it: so no row is written twice. Clocks differ a little; what is more
# than a window ahead was counted by a clock that was wrong, and nobody is to wait for that second.
TAKE: Final = Statement(
    """
WITH asked AS (
    SELECT *
      FROM unnest($1, $2, $3, $4, $5, $6, $7) AS a (subject, quota, wanted, taken_in, unused, missing, within)
),
measured AS (
    SELECT a.*, coalesce(u.number, 0) AS used, u.oldest
      FROM asked a
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
    SELECT m.*, greatest(0, least(m.wanted - coalesce(l.number, 0), m.quota - m.used)) AS number
      FROM measured m
      LEFT JOIN lacking l ON l.subject = m.subject
),
removed AS (
    DELETE FROM request_counts
     WHERE ctid = ANY (ARRAY (
               SELECT r.ctid
                 FROM asked a
                CROSS JOIN LATERAL (
                          SELECT c.ctid FROM request_counts c
                           WHERE c.subject = a.subject AND (c.second <= $8 - $9 OR c.second > $8 + $9)
                          OFFSET 0) r))
),
returned AS (
    UPDATE request_counts c
       SET number = c.number - least(a.unused, c.number)
      FROM asked a
     CROSS JOIN LATERAL (
               SELECT r.ctid FROM request_counts r
                WHERE a.unused > 0 AND r.subject = a.subject AND r.second = a.taken_in
                  AND r.second > $8 - $9 AND r.second <= $8 + $9
               OFFSET 0) r
     WHERE c.ctid = r.ctid
),
added AS (
    INSERT INTO request_counts AS c (subject, second, number)
    SELECT subject, $8, number FROM granted WHERE number > 0
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
    TEXTS, BIGINTS, BIGINTS, BIGINTS, BIGINTS, BIGINTS, TEXTS, BIGINT, BIGINT,
)  # fmt: skip


async def take(connection: Connection, takings: Sequence[Taking], now: int) -> dict[str, Granted]:
    """Count what is granted of each taking in the second ``now``, and commit; by subject. Each subject comes once.

    Whoever takes for one of these subjects at the same time waits.
    """
    columns = [*zip(*sorted(takings), strict=True)]
    _, rows = await connection.together(LOCK_SUBJECTS(columns[0]), TAKE(*columns, now, SLOTS), commit=True)
    return {row[0]: Granted(*row[1:]) for row in rows}
