"""The JSON of projects that the database generates, compared with the API's JSON."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tenantry.accounts import projects_store as projects
from tenantry.db.connection import Connection
from tenantry.domain.permissions import Mode
from tenantry.domain.tenants import Project

MADE = datetime(2026, 3, 1, 9, 5, 7, tzinfo=UTC)
TEXTS = [
    "plain",
    "Räksmörgås 🚀 日本語",
    'a "quoted" \\ back/slash',
    "every control: " + "".join(map(chr, range(1, 32))) + "\x7f\x80\u2028\u2029",
    "%s %1$s {} \\u0041 '",
    "\u0600\u202e\ufeff\U0010ffff",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "made", [MADE, MADE + timedelta(microseconds=1), MADE + timedelta(microseconds=120_000)]
)
async def test_a_document_is_what_the_api_shows(emptied: str, text: str, made: datetime) -> None:
    project = Project("proj_1", "acme", text, text, Mode.TEST, made, made + timedelta(days=1))
    changed = msgspec.structs.replace(project, name="other", description=None, updated_at=made)
    async with await Connection.connect(emptied) as connection:
        await connection.execute("SET TimeZone = 'Asia/Kathmandu'")
        await connection.execute("SET DateStyle = 'German'")
        await connection.execute(
            "INSERT INTO tenants (id, name, owner_id, owner_email) VALUES ('acme', 'Acme', 'o', 'o@acme.example')"
        )
        await projects.insert(connection, project)
        assert await document(connection) == msgspec.json.encode(project)
        await projects.update(connection, changed)
        assert await document(connection) == msgspec.json.encode(changed)


async def document(connection: Connection) -> bytes:
    """What the database keeps of the one project there is."""
    cursor = await connection.execute("SELECT document FROM projects")
    [(text,)] = await cursor.fetchall()
    return str(text).encode()
