"""An import of keys that ends before all of them are imported, and is run again."""

import hashlib
import json
import signal
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenantry.domain.api_keys import Pepper
from tenantry.domain.imported_keys import HashAlgorithm
from tests.support.billing import until_blocked
from tests.support.command_runner import invoke_async
from tests.support.commands import SECRETS, running
from tests.support.deployment import CREATE_ACME

KEYS: Final = 2500
BATCH: Final = 1000
IMPORT: Final = ("admin", "import-keys", "keys.jsonl", "--from", "jsonl", "--org", "acme")


def write_file(folder: Path) -> None:
    rows = [
        {
            "digest": hashlib.sha256(f"key {number}".encode()).hexdigest(),
            "name": "old key",
            "scopes": ["projects:read"],
            "externalId": f"k{number}",
        }
        for number in range(KEYS)
    ]
    (folder / "keys.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


async def imported_ids(connection: psycopg.AsyncConnection[tuple[str]]) -> list[str]:
    rows = await (
        await connection.execute("SELECT id FROM api_keys ORDER BY external_id")
    ).fetchall()
    return [key_id for (key_id,) in rows]


async def hold_key_of_batch_2(connection: psycopg.AsyncConnection[tuple[str]]) -> None:
    """Import a key of the second batch into another tenant, in a transaction that goes on."""
    pepper = Pepper(SECRETS["API_KEY_PEPPER"].encode())
    value = hashlib.sha256(f"key {BATCH}".encode()).digest()
    await connection.execute(
        "INSERT INTO api_keys (id, org_id, digest, import_digest, import_algorithm, name, scopes, access_level, "
        "mode, start, last4, created_at, created_by) "
        "VALUES ('key_held', 'globex', '', %s, 'sha256', '', '{}', 'SCOPED', 'live', '', '', now(), '')",
        (pepper.digest_of_hash(HashAlgorithm.SHA256, value),),
    )


@pytest.mark.parametrize(("how", "kept"), [(signal.SIGINT, 2 * BATCH), (signal.SIGKILL, BATCH)])
async def test_import_that_ends_midway_and_runs_again_ends_with_the_same_rows(
    tmp_path: Path, database_url: str, how: signal.Signals, kept: int
) -> None:
    settings = {"DATABASE_URL": database_url, "API_KEY_PEPPER": SECRETS["API_KEY_PEPPER"]}
    for tenant in ("acme", "globex"):
        arguments = [tenant if word == "acme" else word for word in CREATE_ACME]
        assert (await invoke_async(*arguments, folder=tmp_path, **settings)).code == 0
    write_file(tmp_path)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        async with running(*IMPORT, folder=tmp_path, **settings) as command:
            async with connection.transaction(force_rollback=True):
                await hold_key_of_batch_2(connection)
                await until_blocked(database_url)
                command.signal(how)
                if how is signal.SIGINT:
                    await command.until("Stopping after the batch in flight.", "err")
            code = await command.wait()
        if how is signal.SIGINT:
            assert code == 1
            assert command.text["out"].startswith("2,000 keys imported; 0 imported before")
            assert "Run the same command again: what is imported stays." in command.text["err"]
        before = await imported_ids(connection)
        assert len(before) == kept
        again = await invoke_async(*IMPORT, "--json", folder=tmp_path, **settings)
        summary = json.loads(again.out)
        assert (again.code, summary["created"], summary["exists"]) == (0, KEYS - kept, kept)
        after = await imported_ids(connection)
        assert (len(after), set(before) <= set(after)) == (KEYS, True)
        assert (await invoke_async(*IMPORT, folder=tmp_path, **settings)).code == 0
        assert await imported_ids(connection) == after
