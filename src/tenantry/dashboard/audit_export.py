"""The audit trail as a file of comma-separated values."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from tenantry.dashboard.csv_files import csv_lines
from tenantry.domain.audit import AuditEvent

_COLUMNS: Final = tuple(field.encode_name for field in msgspec.structs.fields(AuditEvent))


async def audit_lines(
    first: Sequence[AuditEvent], rest: AsyncIterator[list[AuditEvent]]
) -> AsyncIterator[bytes]:
    """Entries as one line each, below a line with the API's names of the fields.

    ``before`` and ``after`` are JSON.
    """
    yield csv_lines([_COLUMNS, *map(_values, first)])
    async for page in rest:
        yield csv_lines(map(_values, page))


def _values(event: AuditEvent) -> list[Any]:
    record = msgspec.to_builtins(event)
    return [record[name] for name in _COLUMNS]
