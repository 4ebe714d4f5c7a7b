"""Pages for people: both directions, jumps, and bounded counts."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import psycopg
import pytest

from tenantry.db.connection import of_tenant
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import BY_ARRIVAL, Listing, Position, decode_cursor, encode_cursor
from tenantry.domain.errors import InvalidCursorError
from tenantry.domain.plans import Count
from tests.support.emptying import SharedDatabase
from tests.support.patience import patient_database

NOON: Final = datetime(2027, 3, 1, 12, tzinfo=UTC)
ROWS: Final = 23
PROJECTS: Final = Listing("id", "projects", "created_at", most=100)
EVENTS: Final = Listing("id", "billing_events", "created", "arrival", most=100, order=BY_ARRIVAL)
# Two projects a minute, so that pages end between rows of one time; those of another tenant beside
# them.
INSERT: Final = """
INSERT INTO tenants (id, name, owner_id, owner_email)
VALUES ('one', 'One', 'o', 'o@one.example'), ('two', 'Two', 'o', 'o@two.example');
INSERT INTO projects (id, org_id, mode, name, created_at, updated_at)
SELECT org || '_' || to_char(n, 'FM000'), org, 'live',
       CASE WHEN n % 7 = 0 THEN 'seventh' ELSE 'other' END,
       '2027-03-01 12:00Z'::timestamptz - n / 2 * interval '1 minute', now()
  FROM generate_series(1, 23) AS n, (VALUES ('one'), ('two')) AS of (org);
INSERT INTO billing_events (id, arrival, type, created, received_at, tenant_id, outcome)
SELECT 'one_' || to_char(n, 'FM000'), 23 - n, 'invoice.paid', 2000000000 - n / 2, now(), 'one', 'applied'
  FROM generate_series(1, 23) AS n;
"""


def rows_of_one(listing: Listing, filtered: str = "true", **further: object) -> NumberedListing:
    tenant = "org_id" if listing.table == "projects" else "tenant_id"
    return NumberedListing(listing, f"{tenant} = %(org)s", {"org": "one", **further}, filtered)


BY_DAY: Final = rows_of_one(PROJECTS)
OF_LEDGER: Final = rows_of_one(EVENTS)
SEVENTHS: Final = rows_of_one(PROJECTS, "name = %(name)s", name="seventh")
EITHER_ORDER: Final = pytest.mark.parametrize(
    "listing", [BY_DAY, OF_LEDGER], ids=["time", "arrival"]
)


@pytest.fixture(scope="module")
async def database(shared_database: SharedDatabase) -> AsyncIterator[Database]:
    conninfo = shared_database.conninfo
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
        await connection.execute(INSERT)
    async with patient_database(conninfo, pool_size=1) as database:
        yield database


class Reader:
    """Reads pages of five rows."""

    def __init__(self, database: Database, listing: NumberedListing) -> None:
        self._database = database
        self._listing = listing

    async def page(self, **wanted: object) -> NumberedPage[int]:
        """Return a page; each row is the number in its id."""
        request = msgspec.convert({"size": 5, **wanted}, PageRequest)
        async with self._database.transaction(of_tenant("one")) as connection:
            return await self._listing.read(connection, request, lambda row: int(row[0][-3:]))

    async def after(self, cursor: str | None) -> NumberedPage[int]:
        assert cursor is not None
        return await self.page(after=decode_cursor(cursor))

    async def before(self, cursor: str | None) -> NumberedPage[int]:
        assert cursor is not None
        return await self.page(before=decode_cursor(cursor))


def numbers(first: int, last: int) -> list[int]:
    """The rows from one number to another: newest first, of one time the greatest id first."""
    return ORDERED[first - 1 : last]


ORDERED: Final = sorted(range(1, ROWS + 1), key=lambda n: (n // 2, -n))


@EITHER_ORDER
async def test_pages_follow_one_another_in_both_directions(
    database: Database, listing: NumberedListing
) -> None:
    reader = Reader(database, listing)
    page = await reader.page()
    assert page.newer is None
    down = [page]
    while page.older is not None:
        page = await reader.after(page.older)
        down.append(page)
    up = [page]
    while page.newer is not None:
        page = await reader.before(page.newer)
        up.append(page)
    assert [(shown.first, shown.last, shown.number) for shown in down] == [
        (1, 5, 1),
        (6, 10, 2),
        (11, 15, 3),
        (16, 20, 4),
        (21, 23, 5),
    ]
    assert up[::-1] == down
    assert all(shown.total == Count(ROWS) and shown.pages == 5 for shown in down)


@EITHER_ORDER
async def test_last_page_is_full_and_is_found_from_the_end(
    database: Database, listing: NumberedListing
) -> None:
    last = await Reader(database, listing).page(is_last=True)
    assert (last.first, last.last, last.older) == (ROWS - 4, ROWS, None)
    assert last.newer is not None
    assert await Reader(database, listing).page(number=99) == last


async def test_page_has_a_number(database: Database) -> None:
    reader = Reader(database, BY_DAY)
    third = await reader.page(number=3)
    assert (third.data, third.first) == (numbers(11, 15), 11)
    assert (await reader.before(third.newer)).data == numbers(6, 10)
    assert (await reader.after(third.older)).data == numbers(16, 20)


async def test_page_begins_before_a_moment(database: Database) -> None:
    reader = Reader(database, BY_DAY)
    page = await reader.page(until=NOON - timedelta(minutes=4))
    assert page.data == [11, 10, 13, 12, 15]
    assert (page.first, page.newer is not None) == (10, True)
    none = await reader.page(until=NOON - timedelta(days=1))
    assert (none.data, none.first, none.older, none.total) == ([], None, None, Count(ROWS))
    assert (await reader.before(none.newer)).data == numbers(19, 23)
    assert (await reader.page(until=NOON + timedelta(days=1))).data == numbers(1, 5)


async def test_page_before_near_the_newest_row_is_full(database: Database) -> None:
    reader = Reader(database, BY_DAY)
    second = await reader.page(until=NOON - timedelta(minutes=1))
    assert second.first == 4
    assert (await reader.before(second.newer)).data == numbers(1, 5)


async def test_filter_counts_and_numbers_what_matches(database: Database) -> None:
    reader = Reader(database, SEVENTHS)
    page = await reader.page(size=2)
    assert (page.data, page.total, page.first, page.newer) == ([7, 14], Count(3), 1, None)
    rest = await reader.page(size=2, after=decode_cursor(page.older or ""))
    assert (rest.data, rest.first, rest.older) == ([21], 3, None)


async def test_search_examines_a_bounded_number_of_rows_in_both_directions(
    database: Database,
) -> None:
    listing = SEVENTHS._replace(listing=PROJECTS._replace(most=5))
    reader = Reader(database, listing)
    page = await reader.page()
    assert (page.data, page.looked_at, page.total) == ([], 5, Count(1, and_more=True))
    down = [page]
    while page.older is not None:
        page = await reader.after(page.older)
        down.append(page)
    assert [shown.data for shown in down] == [[], [7], [14], [21], []]
    assert [shown.first for shown in down] == [None, 1, None, None, None]
    page = await reader.page(is_last=True)
    up = [page]
    while page.newer is not None and len(up) < 10:
        page = await reader.before(page.newer)
        up.append(page)
    assert [number for shown in up for number in shown.data] == [21, 14, 7]


async def test_long_list_is_counted_up_to_a_bound(database: Database) -> None:
    reader = Reader(database, BY_DAY._replace(listing=PROJECTS._replace(most=10)))
    first = await reader.page()
    assert (first.total, first.pages, first.first) == (Count(10, and_more=True), 2, 1)
    last = await reader.page(is_last=True)
    assert (last.data, last.first) == (numbers(19, 23), None)
    assert (await reader.before(last.newer)).data == numbers(14, 18)


async def test_position_of_another_kind_of_list_is_rejected(database: Database) -> None:
    cursor = (await Reader(database, BY_DAY).page()).older
    with pytest.raises(InvalidCursorError):
        await Reader(database, OF_LEDGER).after(cursor)


async def test_arrival_number_of_thousands_of_digits_is_rejected(database: Database) -> None:
    cursor = encode_cursor(Position(0, "9" * 5000))
    with pytest.raises(InvalidCursorError):
        await Reader(database, OF_LEDGER).after(cursor)
