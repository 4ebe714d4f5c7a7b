"""All tenants, for the operator: filtered lists, and the tenants that an id, a customer or an
address names.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.pagination import Listing, Page, Window
from tenantry.db.tenants_store import TENANT_COLUMNS
from tenantry.domain.access import statuses_that_give
from tenantry.domain.plans import AccessState, Catalog
from tenantry.domain.tenants import ManagedTenant, TenantRecord, to_managed_tenant

MOST_FOUND: Final = 100
_RECORD: Final = len(TenantRecord.__struct_fields__)
_COLUMNS: Final = f"{TENANT_COLUMNS}, owner_email, suspended_at IS NOT NULL"
_LISTING: Final = Listing(_COLUMNS, "tenants", "created_at")
_CURRENT: Final = "deleted_at IS NULL"
# The rule of `tenantry.domain.access.current_phase`, in SQL: the first stored phase that has not
# ended counts, else the last one.
_PHASE: Final = """
coalesce((SELECT phase
            FROM json_array_elements(access) WITH ORDINALITY AS phases (phase, position)
           WHERE phase->>'until' IS NULL OR (phase->>'until')::bigint > %(now)s
           ORDER BY position
           LIMIT 1),
         access->-1)
"""
ACCESS_STATE: Final = f"""
CASE WHEN access IS NOT NULL THEN {_PHASE}->>'state'
     WHEN subscription_status = 'none' THEN CASE plan WHEN 'free' THEN 'none' ELSE 'full' END
     WHEN subscription_status = ANY(%(full)s) THEN 'full'
     WHEN subscription_status = ANY(%(grace)s) THEN 'grace'
     ELSE 'none'
 END
"""
# The rule of `tenantry.domain.access.plan_at`: without a subscription, the plan of that phase.
PLAN: Final = f"""
CASE WHEN access IS NOT NULL AND subscription_status = 'none' THEN {_PHASE}->>'plan' ELSE plan END
"""
# One value a line, so that no search text matches across two of them. The database lowers both
# sides, so that each name is found by itself. With the locale C it lowers ASCII letters only, so
# other letters of the text are lowered by name.
_SEARCHED: Final = """
(position(translate(lower(%(search)s::text), %(capitals)s, %(small)s)
          IN translate(lower(concat_ws(E'\\n', id, name, owner_email)), %(capitals)s, %(small)s)) > 0
 OR id IN (SELECT tenant_id FROM customers WHERE position(lower(%(search)s::text) IN lower(id)) > 0))
"""
_FINAL_SIGMA: Final = {"\N{GREEK SMALL LETTER FINAL SIGMA}": "\N{GREEK SMALL LETTER SIGMA}"}
_CONDITIONS: Final = {
    "search": _SEARCHED,
    "plan": f"({PLAN}) = %(plan)s",
    "status": "subscription_status = %(status)s",
    "access": f"({ACCESS_STATE}) = %(access)s",
    "suspended": "(suspended_at IS NOT NULL) = %(suspended)s",
}
NAMED: Final = f"""
WITH named AS (
       SELECT 'id' AS named_by, id AS given, id FROM tenants WHERE id = %(text)s
        UNION ALL
       SELECT 'customer', id, tenant_id FROM customers WHERE id = %(text)s
        UNION ALL
       SELECT 'email', owner_email, id FROM tenants WHERE lower(owner_email) = lower(%(text)s))
SELECT named_by, given, {_COLUMNS}
  FROM named
  JOIN tenants USING (id)
 WHERE {_CURRENT}
 ORDER BY created_at DESC, id DESC, named_by
 LIMIT {MOST_FOUND}
"""  # noqa: S608  # our own columns
BY_ID: Final = f"SELECT {_COLUMNS} FROM tenants WHERE id = ANY(%s) AND {_CURRENT}"  # noqa: S608  # our own columns


class TenantFilter(msgspec.Struct, frozen=True):
    """Conditions on tenants; None means any.

    ``search`` is a part of the id, the name, the owner's address or the id of a customer,
    case-insensitive.
    """

    search: str | None = None
    plan: str | None = None
    status: str | None = None
    access: AccessState | None = None
    suspended: bool | None = None


async def read_page(
    connection: Connection, wanted: TenantFilter, window: Window, catalog: Catalog, now: datetime
) -> Page[ManagedTenant]:
    """Read a page of the current tenants that match, newest first, with their access at ``now``;
    across tenants.
    """
    values = msgspec.structs.asdict(wanted)
    filtered = [_CONDITIONS[name] for name, value in values.items() if value is not None]
    values |= _letters(wanted.search or "")
    values["now"] = now.timestamp()
    values["full"] = statuses_that_give("full", catalog)
    values["grace"] = statuses_that_give("grace", catalog)
    page = await _LISTING.page(
        connection,
        _CURRENT,
        values,
        window,
        lambda row: _tenant(row, catalog, now),
        filtered=" AND ".join(filtered) or "true",
    )
    return Page(page.data, page.next_cursor)


def _letters(text: str) -> dict[str, str]:
    """Return the letters of a search text beyond ASCII, as capitals and as the small letters of
    each.
    """
    small_of = dict(_FINAL_SIGMA)
    for letter in filter(lambda each: not each.isascii(), text):
        small = _FINAL_SIGMA.get(letter.lower(), letter.lower())
        small_of |= {
            form: small for form in (letter, letter.upper()) if len(form) == len(small) == 1
        }
    return {"capitals": "".join(small_of), "small": "".join(small_of.values())}


async def read_named(
    connection: Connection, text: str, catalog: Catalog, now: datetime
) -> list[tuple[str, str, ManagedTenant]]:
    """Read the current tenants whose id, customer or owner's address is ``text``; across tenants.

    Returns up to `MOST_FOUND`, newest first, each with what names it (``id``, ``customer`` or
    ``email``) and the name.
    """
    rows = await connection.fetch(NAMED, {"text": text})
    return [(named_by, given, _tenant(row, catalog, now)) for named_by, given, *row in rows]


async def read_by_id(
    connection: Connection, tenants: Collection[str], catalog: Catalog, now: datetime
) -> dict[str, ManagedTenant]:
    """Read those of these tenants that have not ended, by id; across tenants."""
    found = [_tenant(row, catalog, now) for row in await connection.fetch(BY_ID, (list(tenants),))]
    return {tenant.id: tenant for tenant in found}


def _tenant(row: Sequence[Any], catalog: Catalog, now: datetime) -> ManagedTenant:
    owner_email, suspended = row[_RECORD:]
    return to_managed_tenant(
        TenantRecord(*row[:_RECORD]),
        owner_email,
        catalog,
        now,
        suspended=suspended,
    )
