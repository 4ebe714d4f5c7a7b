"""The rows of tenants' runs: the last one of each tenant that has had one."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain.audit import Author
from tenantry.domain.billing.tenant_runs import RunKind, RunResult, TenantRun

# A run that has not ended stays: an operator who asks for another one joins it.
_REQUEST_CHECK: Final = """
INSERT INTO ledger_runs AS run (tenant_id, id, kind, repairs, author, requested_at)
VALUES (%(tenant)s, %(id)s, %(kind)s, false, %(author)s, %(now)s)
    ON CONFLICT (tenant_id) DO UPDATE
       SET id = excluded.id, kind = excluded.kind, repairs = false, author = excluded.author,
           requested_at = excluded.requested_at, started_at = NULL, starts = 0, seen = 0, ended_at = NULL,
           failure = NULL, result = NULL
     WHERE run.ended_at IS NOT NULL
"""
# Only the dry run that the operator has seen can be followed by a repair, and only once.
_REQUEST_REPAIR: Final = """
UPDATE ledger_runs
   SET id = %(id)s, repairs = true, author = %(author)s, requested_at = %(now)s, started_at = NULL, starts = 0,
       seen = 0, ended_at = NULL, result = NULL
 WHERE tenant_id = %(tenant)s AND id = %(checked)s AND NOT repairs AND ended_at IS NOT NULL AND failure IS NULL
RETURNING kind
"""
_FIND: Final = """
SELECT tenant_id, id, kind, repairs, author, requested_at, started_at, starts, seen, ended_at, failure, result
  FROM ledger_runs
 WHERE tenant_id = %s
"""
# Waits for a request that has not committed.
_LOCK: Final = "SELECT FROM ledger_runs WHERE tenant_id = %s FOR UPDATE"
_START: Final = """
UPDATE ledger_runs
   SET started_at = coalesce(started_at, %(now)s), starts = starts + 1
 WHERE tenant_id = %(tenant)s AND ended_at IS NULL
RETURNING tenant_id, id, kind, repairs, author, requested_at, started_at, starts, seen, ended_at, failure, result
"""
_SEE: Final = """
UPDATE ledger_runs SET seen = %s WHERE tenant_id = %s AND id = %s AND ended_at IS NULL
"""
_END: Final = """
UPDATE ledger_runs
   SET ended_at = %(now)s, failure = %(failure)s, result = %(result)s
 WHERE tenant_id = %(tenant)s AND id = %(id)s AND ended_at IS NULL
RETURNING tenant_id, id, kind, repairs, author, requested_at, started_at, starts, seen, ended_at, failure, result
"""

_authors: Final = msgspec.json.Decoder(Author)
_results: Final = msgspec.json.Decoder(RunResult)


class NewRun(msgspec.Struct, frozen=True):
    """A run that an operator asks for."""

    tenant_id: str
    id: str
    author: Author
    now: datetime

    @property
    def values(self) -> dict[str, object]:
        author = msgspec.json.encode(self.author).decode()
        return {"tenant": self.tenant_id, "id": self.id, "author": author, "now": self.now}


async def request_check(connection: Connection, new: NewRun, kind: RunKind) -> bool:
    """Add a dry run; return False if another run of the tenant has not ended."""
    cursor = await connection.execute(_REQUEST_CHECK, {**new.values, "kind": kind.value})
    return cursor.rowcount > 0


async def request_repair(connection: Connection, new: NewRun, checked: str) -> RunKind | None:
    """Add a run for real after the dry run ``checked``, and return its kind; None if that is not
    the last run any more.
    """
    values = {**new.values, "checked": checked}
    row = await connection.fetch_row(_REQUEST_REPAIR, values)
    return RunKind(row[0]) if row else None


async def find(connection: Connection, tenant_id: str) -> TenantRun | None:
    row = await connection.fetch_row(_FIND, (tenant_id,))
    return _run(row) if row else None


async def start(connection: Connection, tenant_id: str, now: datetime) -> TenantRun | None:
    """Note that a worker begins the tenant's run, again if it has before; None if it has ended."""
    await connection.execute(_LOCK, (tenant_id,))
    row = await connection.fetch_row(_START, {"tenant": tenant_id, "now": now})
    return _run(row) if row else None


async def see(connection: Connection, run: TenantRun, seen: int) -> None:
    """Note the progress of a run."""
    await connection.execute(_SEE, (seen, run.tenant_id, run.id))


async def end(
    connection: Connection,
    run: TenantRun,
    now: datetime,
    failure: str | None,
    result: RunResult | None,
) -> TenantRun | None:
    """Note the end of a run, and return it; None if it is gone."""
    values = {
        "tenant": run.tenant_id,
        "id": run.id,
        "now": now,
        "failure": failure,
        "result": None if result is None else msgspec.json.encode(result).decode(),
    }
    row = await connection.fetch_row(_END, values)
    return _run(row) if row else None


def _run(row: Sequence[Any]) -> TenantRun:
    values = dict(zip(TenantRun.__struct_fields__, row, strict=True))
    result = values["result"]
    values |= {
        "kind": RunKind(values["kind"]),
        "author": _authors.decode(values["author"]),
        "result": None if result is None else _results.decode(result),
    }
    return TenantRun(**values)
