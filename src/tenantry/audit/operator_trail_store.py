"""The rows of the operator's trail."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import Listing
from tenantry.domain.operator_acts import OperatorAct, OperatorPerson

_INSERT: Final = """
INSERT INTO operator_acts (id, at, action, org_id, target_id, reason, address, request_id, issuer, subject, name)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_PEOPLE: Final = """
SELECT id, issuer, subject, name
  FROM operator_acts
 WHERE id = ANY(%s)
"""
_KEY_NAMES: Final = "SELECT id, name FROM api_keys WHERE id = ANY(%s)"
_LISTING: Final = Listing(
    "id, at, action, org_id, target_id, reason, address, request_id, issuer, subject, name",
    "operator_acts",
    "at",
)
_FIELDS: Final = OperatorAct.__struct_fields__[:-1]
_CONDITIONS: Final = {
    "org_id": "org_id = %(org_id)s",
    "subject": "subject = %(subject)s",
    "issuer": "issuer = %(issuer)s",
}


class OperatorActFilter(msgspec.Struct, frozen=True):
    """Conditions on entries; None means any. The ``subject`` alone is that of a user of each
    ``issuer``.
    """

    org_id: str | None = None
    subject: str | None = None
    issuer: str | None = None


async def insert(connection: Connection, acts: Sequence[OperatorAct]) -> None:
    """Add entries."""
    async with connection.cursor() as cursor:
        await cursor.executemany(_INSERT, [_values(act) for act in acts])


async def read_page(
    connection: Connection, wanted: OperatorActFilter, request: PageRequest
) -> NumberedPage[OperatorAct]:
    """Read a numbered page of the trail, newest first. Raises `InvalidCursorError`."""
    given = [text for name, text in _CONDITIONS.items() if getattr(wanted, name) is not None]
    condition = " AND ".join(given) or "true"
    listing = NumberedListing(_LISTING, condition, msgspec.structs.asdict(wanted))
    return await listing.read(connection, request, _act)


async def people_of(connection: Connection, act_ids: Collection[str]) -> dict[str, OperatorPerson]:
    """Return the people behind these acts, by the id of the act."""
    rows = await connection.fetch(_PEOPLE, (list(act_ids),))
    return {act_id: OperatorPerson(*person) for act_id, *person in rows}


async def key_names(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """Return the names of those of these ids that are API keys, of all tenants."""
    return dict(await connection.fetch(_KEY_NAMES, (list(ids),)))


def _values(act: OperatorAct) -> tuple[object, ...]:
    *values, person = msgspec.structs.astuple(act)
    return (*values, *msgspec.structs.astuple(person))


def _act(row: Sequence[Any]) -> OperatorAct:
    *values, issuer, subject, name = row
    person = OperatorPerson(issuer, subject, name)
    return OperatorAct(**dict(zip(_FIELDS, values, strict=True)), person=person)
