"""All tenants, for the operator: filtered lists, and the tenants that an id, a customer or an
address names.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import EVERY_ROW, NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import MAX_SCANNED_RECORDS, Listing, Page, Values, Window
from tenantry.db.tenants_store import TENANT_COLUMNS
from tenantry.domain.access import statuses_that_give
from tenantry.domain.plans import Catalog
from tenantry.domain.tenant_search import TenantFilter
from tenantry.domain.tenants import ManagedTenant, TenantRecord, to_managed_tenant

MOST_FOUND: Final = 100
_RECORD: Final = len(TenantRecord.__struct_fields__)
_COLUMNS: Final = f"{TENANT_COLUMNS}, owner_email, suspension"
_LISTING: Final = Listing(_COLUMNS, "tenants", "created_at", most=MAX_SCANNED_RECORDS)
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
# One value a line, so that no search text matches across two of them. By a pattern, one of 10,000
# tenants is found in a quarter of the time that it takes to translate() letters of each.
_IN_RECORD: Final = """
lower(concat_ws(E'\\n', id, name, owner_email, stripe_customer_id)) ~ %(pattern)s
"""
_HAS_CUSTOMER: Final = """
id IN (SELECT tenant_id FROM customers WHERE position(lower(%(search)s::text) IN lower(id)) > 0)
"""
_SIGMAS: Final = (
    "\N{GREEK CAPITAL LETTER SIGMA}\N{GREEK SMALL LETTER SIGMA}\N{GREEK SMALL LETTER FINAL SIGMA}"
)
_CONDITIONS: Final = {
    "search": f"({_IN_RECORD} OR {_HAS_CUSTOMER})",
    "plan": f"({PLAN}) = %(plan)s",
    "status": "subscription_status = %(status)s",
    "access": f"({ACCESS_STATE}) = %(access)s",
    "suspended": "(suspended_at IS NOT NULL) = %(suspended)s",
}
NAMED: Final = """
WITH named AS (
       SELECT 'id' AS named_by, id AS given, id FROM tenants WHERE id = %(text)s
        UNION ALL
       SELECT 'customer', id, tenant_id FROM customers WHERE id = %(text)s
        UNION ALL
       SELECT 'email', owner_email, id FROM tenants WHERE lower(owner_email) = lower(%(text)s))
SELECT named_by, given,
       id, name, plan, subscription_status, current_period_end, cancel_at_period_end, cancel_at, ends_at, seats,
       access::text, stripe_customer_id, owner_id, created_at, updated_at, time_zone,
       owner_email, suspension
  FROM named
  JOIN tenants USING (id)
 WHERE deleted_at IS NULL
 ORDER BY created_at DESC, id DESC, named_by
 LIMIT %(most)s
"""
OF_PERSON: Final = """
WITH people AS (
       SELECT 'member' AS named_by, id AS given, issuer, subject, tenant_id
         FROM memberships WHERE id = %(text)s
        UNION
       SELECT 'user', subject, issuer, subject, tenant_id
         FROM memberships WHERE lower(subject) = lower(%(text)s) AND removed_at IS NULL
        UNION
       SELECT 'user', subject, issuer, subject, org_id
         FROM user_profiles WHERE lower(subject) = lower(%(text)s)
        UNION
       SELECT 'member_email', email, issuer, subject, org_id
         FROM user_profiles WHERE lower(email) = lower(%(text)s)
        UNION
       SELECT 'member_name', name, issuer, subject, org_id
         FROM user_profiles WHERE lower(name) = lower(%(text)s))
SELECT named_by, given, tenant_id
  FROM people
 WHERE NOT EXISTS (SELECT
                     FROM memberships AS removed
                    WHERE (removed.issuer, removed.subject, removed.tenant_id)
                          = (people.issuer, people.subject, people.tenant_id)
                      AND removed.removed_at IS NOT NULL)
 ORDER BY named_by, given, tenant_id
 LIMIT %(most)s
"""
BY_ID: Final = """
SELECT id, name, plan, subscription_status, current_period_end, cancel_at_period_end, cancel_at, ends_at, seats,
       access::text, stripe_customer_id, owner_id, created_at, updated_at, time_zone,
       owner_email, suspension
  FROM tenants
 WHERE id = ANY(%s) AND deleted_at IS NULL
"""


async def read_page(
    connection: Connection, wanted: TenantFilter, window: Window, catalog: Catalog, now: datetime
) -> Page[ManagedTenant]:
    """Read a page of the current tenants that match, newest first, with their access at ``now``;
    across tenants.
    """
    page = await _LISTING.page(
        connection,
        _CURRENT,
        _values(wanted, catalog, now),
        window,
        lambda row: _tenant(row, catalog, now),
        filtered=" AND ".join(_CONDITIONS[name] for name in _given(wanted)) or "true",
    )
    return Page(page.data, page.next_cursor)


async def search_page(
    connection: Connection,
    wanted: TenantFilter,
    request: PageRequest,
    *,
    catalog: Catalog,
    now: datetime,
) -> NumberedPage[ManagedTenant]:
    """Read a numbered page of a bounded search, as `read_page`; of a tenant's customers, the text
    is looked for in the one that was linked last. Raises `InvalidCursorError`.
    """
    conditions = {**_CONDITIONS, "search": _IN_RECORD}
    filtered = " AND ".join(conditions[name] for name in _given(wanted))
    values = _values(wanted, catalog, now)
    listing = NumberedListing(_LISTING, _CURRENT, values, filtered or EVERY_ROW)
    return await listing.read(connection, request, lambda row: _tenant(row, catalog, now))


def _given(wanted: TenantFilter) -> list[str]:
    return [name for name, value in msgspec.structs.asdict(wanted).items() if value is not None]


def _values(wanted: TenantFilter, catalog: Catalog, now: datetime) -> Values:
    """Return the parameters of the conditions."""
    return {
        **msgspec.structs.asdict(wanted),
        "pattern": _pattern(wanted.search or ""),
        "now": now.timestamp(),
        "full": statuses_that_give("full", catalog),
        "grace": statuses_that_give("grace", catalog),
    }


def _pattern(text: str) -> str:
    """Return the regular expression of a search text. The database lowers ASCII letters only, so
    any other letter is searched in each of its forms.
    """
    return "".join(map(_letter_pattern, text))


def _letter_pattern(letter: str) -> str:
    if letter.isascii():
        return letter.lower() if letter.isalnum() else f"\\{letter}"
    forms = _SIGMAS if letter in _SIGMAS else f"{letter}{letter.lower()}{letter.upper()}"
    # one that is several letters, such as SS, is no form of a single one
    is_single = len(letter.lower()) == len(letter.upper()) == 1
    return f"[{forms if is_single else letter}]"


async def read_named(
    connection: Connection, text: str, catalog: Catalog, now: datetime
) -> list[tuple[str, str, ManagedTenant]]:
    """Read the current tenants whose id, customer or owner's address is ``text``; across tenants.

    Returns up to `MOST_FOUND`, newest first, each with what names it (``id``, ``customer`` or
    ``email``) and the name.
    """
    rows = await connection.fetch(NAMED, {"text": text, "most": MOST_FOUND})
    return [(named_by, given, _tenant(row, catalog, now)) for named_by, given, *row in rows]


async def read_of_person(connection: Connection, text: str) -> list[tuple[str, str, str]]:
    """Read the tenants of the members whose id, user id, address or name is ``text``, in the scope
    of people: up to `MOST_FOUND`, each as what names the member (``member``, ``user``,
    ``member_email`` or ``member_name``), that name, and the tenant's id.
    """
    rows = await connection.fetch(OF_PERSON, {"text": text, "most": MOST_FOUND})
    return [(named_by, given, tenant_id) for named_by, given, tenant_id in rows]


async def read_by_id(
    connection: Connection, tenants: Collection[str], catalog: Catalog, now: datetime
) -> dict[str, ManagedTenant]:
    """Read those of these tenants that have not ended, by id; across tenants."""
    found = [_tenant(row, catalog, now) for row in await connection.fetch(BY_ID, (list(tenants),))]
    return {tenant.id: tenant for tenant in found}


def _tenant(row: Sequence[Any], catalog: Catalog, now: datetime) -> ManagedTenant:
    owner_email, suspension = row[_RECORD:]
    return to_managed_tenant(
        TenantRecord(*row[:_RECORD]),
        owner_email,
        catalog,
        now,
        suspension=suspension,
    )
