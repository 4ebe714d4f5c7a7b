"""Lists by an index, newest first, and the bound on what a filter that no index helps with may cost."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tenantry.db.connection import Connection

MOST_LOOKED_AT: Final = 5000
"""So many entries of a ledger or a trail are looked at for one page of a filtered list, where that is bounded."""
MOST_RECORDS_LOOKED_AT: Final = 10_000
"""So many keys or members, which are fewer and closer together."""


class Listing(NamedTuple):
    """What is read of a table, and the two columns of the index that it is sorted by, each from high to low.

    ``most`` is how many rows `seek` looks at, and ``made_of`` which columns it needs for what is read and filtered,
    where the reader may not read all of them.
    """

    columns: str
    table: str
    key: str
    tie: str = "id"
    most: int = MOST_LOOKED_AT
    made_of: str = "*"

    @property
    def _order(self) -> str:
        return f"ORDER BY {self.key} DESC, {self.tie} DESC"

    async def read(
        self, connection: Connection, condition: str, filtered: str, values: Mapping[str, object], limit: int
    ) -> list[tuple[Any, ...]]:
        """The rows that fit both conditions; one more than ``limit`` if there are more."""
        cursor = await connection.execute(
            f"SELECT {self.columns} FROM {self.table} AS k WHERE {condition} AND ({filtered}) "  # noqa: S608  # our own
            f"{self._order} LIMIT %(limit)s",
            {**values, "limit": limit + 1},
        )
        return await cursor.fetchall()

    async def seek(
        self, connection: Connection, condition: str, filtered: str, values: Mapping[str, object], limit: int
    ) -> "Sought":
        """The same, of the first ``most`` rows that fit ``condition``, for which there must be an index.

        How many these are is a part of the statement, for a plan that is kept would not count with a parameter.
        """
        source = f"FROM {self.table} WHERE {condition} {self._order}"
        cursor = await connection.execute(
            f"SELECT {self.columns} FROM (SELECT {self.made_of} {source} LIMIT {self.most}) AS k "  # noqa: S608  # our own
            f"WHERE {filtered} {self._order} LIMIT %(limit)s",
            {**values, "limit": limit + 1},
        )
        rows = await cursor.fetchall()
        if len(rows) > limit:
            return Sought(rows, None)
        cursor = await connection.execute(
            f"SELECT {self.key}, {self.tie} {source} OFFSET {self.most - 1} LIMIT 2", values
        )
        last = await cursor.fetchall()
        return Sought(rows, last[0] if len(last) > 1 else None)


class Sought(NamedTuple):
    """The rows that were found, and the position of the last row that was looked at, if there are more after it."""

    rows: list[tuple[Any, ...]]
    end: tuple[Any, ...] | None
