"""The trail of the operator's people: what each of them did on the pages, also where no tenant was
changed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import asdict

from tenantry.audit import operator_trail_store as store
from tenantry.audit.operator_trail_store import OperatorActFilter
from tenantry.db.connection import ACROSS_TENANTS, Connection
from tenantry.db.database import Database
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.domain.audit import Author
from tenantry.domain.operator_acts import NewAct, OperatorAct, OperatorPerson, act_id_of

__all__ = ["OperatorActFilter", "OperatorTrail", "record_acts"]


@dataclass(frozen=True)
class OperatorTrail:
    """Reads the trail of the operator's people; `record_acts` writes it."""

    database: Database

    async def record(self, author: Author, act: NewAct) -> None:
        """Add an act of the operator that changes nothing."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            await record_acts(connection, author, [act])

    async def people_of(self, entry_ids: Collection[str]) -> dict[str, OperatorPerson]:
        """Return the people behind entries of tenants' audit trails, by the id of the entry."""
        act_ids = {act_id_of(entry_id): entry_id for entry_id in entry_ids}
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            people = await store.people_of(connection, act_ids)
        return {act_ids[act_id]: person for act_id, person in people.items()}

    async def key_names(self, shown: Iterable[OperatorAct]) -> dict[str, str]:
        """Return the names of the API keys that acts were about, by id; ended tenants have none."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.key_names(connection, {act.target_id for act in shown})

    async def read_page(
        self, wanted: OperatorActFilter, request: PageRequest
    ) -> NumberedPage[OperatorAct]:
        """Read a numbered page of the trail, newest first. Raises `InvalidCursorError`."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await store.read_page(connection, wanted, request)


async def record_acts(connection: Connection, author: Author, acts: Sequence[NewAct]) -> None:
    """Add acts to the trail if their author is one of the operator's people: a command and the
    operator's token name no person.
    """
    if author.person is None:
        return
    recorded = [
        OperatorAct(
            **asdict(act),
            reason=author.reason,
            address=author.address,
            request_id=author.request_id,
            person=author.person,
        )
        for act in acts
    ]
    await store.insert(connection, recorded)
