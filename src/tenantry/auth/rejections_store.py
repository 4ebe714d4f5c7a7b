"""Rejections: one row for the equal ones of a minute, and the newest of each tenant and sender."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import EVERY_ROW, NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import Listing, Page, Window
from tenantry.domain.permissions import Mode, PrincipalKind
from tenantry.domain.rejections import (
    MOST_OF_SENDER,
    MOST_OF_TENANT,
    KnownSender,
    Rejection,
    RejectionFilter,
)


class RejectionKind(NamedTuple):
    """What equal rejections of a minute have in common."""

    sender: KnownSender
    minute: datetime
    code: str
    needed: str
    """What the sender lacked; empty if that is not known, as is ``route``."""
    route: str


class CountedRejections(NamedTuple):
    """So many requests were refused; the other values are those of the last one."""

    kind: RejectionKind
    status: int
    at: datetime
    request_id: str
    address: str | None
    number: int


# Rows in one order, so that two processes never wait for each other. Nothing is written for an
# ended tenant, whose rows are removed, perhaps now.
_ADD: Final = """
INSERT INTO rejections AS r
       (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, request_id, address, counted)
SELECT c.id, c.org_id, c.kind, c.principal, c.mode, c.minute, c.code, c.needed, c.route, c.status, c.at,
       c.request_id, c.address, c.counted
  FROM unnest(%(ids)s::text[], %(orgs)s::text[], %(kinds)s::text[], %(principals)s::text[], %(modes)s::text[],
              %(minutes)s::timestamptz[], %(codes)s::text[], %(needed)s::text[], %(routes)s::text[],
              %(statuses)s::int[], %(ats)s::timestamptz[], %(requests)s::text[], %(addresses)s::text[],
              %(numbers)s::bigint[])
       AS c (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, request_id, address, counted)
  JOIN tenants t ON t.id = c.org_id AND t.deleted_at IS NULL
 ORDER BY c.org_id COLLATE "C", c.kind COLLATE "C", c.principal COLLATE "C", c.mode COLLATE "C", c.minute,
          c.code COLLATE "C", c.needed COLLATE "C", c.route COLLATE "C"
ON CONFLICT (org_id, kind, principal, mode, minute, code, needed, route) DO UPDATE
   SET counted = r.counted + excluded.counted,
       at = greatest(r.at, excluded.at),
       request_id = CASE WHEN excluded.at < r.at THEN r.request_id ELSE excluded.request_id END,
       address = CASE WHEN excluded.at < r.at THEN r.address ELSE excluded.address END
RETURNING org_id, id
"""
# Rows that another process uses are removed the next time: waiting for them in another order than
# its own could be for ever.
_DELETE_OLDEST: Final = """
DELETE FROM rejections
 WHERE ctid = ANY (ARRAY (
         SELECT r.ctid
           FROM rejections r
           JOIN (SELECT org_id, at, id,
                        row_number() OVER (PARTITION BY org_id ORDER BY at DESC, id DESC) AS of_tenant,
                        row_number() OVER (PARTITION BY org_id, kind, principal ORDER BY at DESC, id DESC) AS of_sender
                   FROM rejections
                  WHERE org_id = ANY (%(orgs)s)) AS n
             ON (r.org_id, r.at, r.id) = (n.org_id, n.at, n.id)
          WHERE n.of_tenant > %(most_of_tenant)s OR n.of_sender > %(most_of_sender)s
            FOR UPDATE OF r SKIP LOCKED))
"""
_VALUES: Final = (
    *("ids", "orgs", "kinds", "principals", "modes"),
    *("minutes", "codes", "needed", "routes"),
    *("statuses", "ats", "requests", "addresses", "numbers"),
)
"""The names of the arrays in `_ADD`, in the order of the fields of `CountedRejections`."""
_LATEST_KEYS: Final = """
SELECT principal
  FROM rejections
 WHERE org_id = %(org_id)s AND kind = 'api_key'
 GROUP BY principal
 ORDER BY max(at) DESC, principal
 LIMIT %(most)s
"""
_FILTERED: Final = (
    "(%(key_id)s::text IS NULL OR (kind = 'api_key' AND principal = %(key_id)s))"
    " AND (%(code)s::text IS NULL OR code = %(code)s)"
)
_LISTING: Final = Listing(
    "kind, principal, mode, status, code, needed, route, at, request_id, address, counted",
    "rejections",
    "at",
)


async def add(connection: Connection, rejections: Sequence[CountedRejections]) -> set[str]:
    """Add to the counts of rejections, each kind at most once. Return the tenants with new rows."""
    rows = [_values(each) for each in rejections]
    columns = dict(zip(_VALUES, map(list, zip(*rows, strict=True)), strict=True))
    new = set(columns["ids"])
    found = await connection.fetch(_ADD, columns)
    return {org_id for org_id, row_id in found if row_id in new}


def _values(rejections: CountedRejections) -> tuple[object, ...]:
    """Return the values of a row, as `_VALUES` names them."""
    (sender, *kind), *last = rejections
    of_sender = sender.org_id, sender.kind.value, sender.id, sender.mode.value
    return (new_id("rejection"), *of_sender, *kind, *last)


async def delete_oldest(connection: Connection, org_ids: Collection[str]) -> None:
    """Keep the newest `MOST_OF_TENANT` of each of these tenants, and `MOST_OF_SENDER` of each key
    and user.
    """
    bounds = {"most_of_tenant": MOST_OF_TENANT, "most_of_sender": MOST_OF_SENDER}
    await connection.execute(_DELETE_OLDEST, {"orgs": sorted(org_ids), **bounds})


async def read_page(
    connection: Connection,
    org_id: str,
    window: Window,
    *,
    mode: Mode | None = None,
    key_id: str | None = None,
    since: datetime | None = None,
) -> Page[Rejection]:
    """Read a page of a tenant's rejections, newest first; only those in a mode, of a key, and since
    a moment, if given.
    """
    condition = "org_id = %(org_id)s"
    if mode is not None:
        condition += " AND mode = %(mode)s"
    if key_id is not None:
        condition += " AND kind = 'api_key' AND principal = %(key_id)s"
    if since is not None:
        condition += " AND at >= %(since)s"
    values = {"org_id": org_id, "mode": mode, "key_id": key_id, "since": since}
    return await _LISTING.page(connection, condition, values, window, _rejection)


async def search_page(
    connection: Connection, org_id: str, wanted: RejectionFilter, request: PageRequest
) -> NumberedPage[Rejection]:
    """Read a numbered page of a tenant's rejections in both modes. Raises `InvalidCursorError`."""
    listing = NumberedListing(
        _LISTING,
        "org_id = %(org_id)s",
        {"org_id": org_id, **msgspec.structs.asdict(wanted)},
        EVERY_ROW if wanted == RejectionFilter() else _FILTERED,
    )
    return await listing.read(connection, request, _rejection)


async def latest_keys(connection: Connection, org_id: str, most: int) -> list[str]:
    """Return the ids of the keys that have rejections, those of the newest ones first."""
    return await connection.fetch_column(_LATEST_KEYS, {"org_id": org_id, "most": most})


def _rejection(row: Sequence[Any]) -> Rejection:
    kind, principal, mode, status, code, needed, route, at, request_id, address, counted = row
    is_key = kind == PrincipalKind.API_KEY
    return Rejection(
        at=at,
        mode=Mode(mode),
        status=status,
        code=code,
        request_id=request_id,
        address=address,
        counted=counted,
        key_id=principal if is_key else UNSET,
        principal_id=UNSET if is_key else principal,
        needed=needed or UNSET,
        route=route or UNSET,
    )
