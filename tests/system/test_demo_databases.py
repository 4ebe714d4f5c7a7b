"""``tenantry demo`` beside another program's database, and on a database that its command line
names.
"""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.e2e.test_demo import COMMAND, demo
from tests.support import other_program
from tests.support.command_runner import invoke
from tests.support.commands import AS_INSTALLED, run, running
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[str]:
    """The address of another program's database, with a password in it."""
    with postgres.database(migrated=False) as conninfo:
        other_program.fill(conninfo)
        yield f"{as_url(conninfo)}&password=hunter2hunter2"


ENV_OF_ANOTHER = """\
DATABASE_POOLER_URL=postgresql://127.0.0.1:1/shop
PORT=8000
HOST=0.0.0.0
BASE_URL=https://shop.example
WORKERS=auto
LOG_FORMAT=text
API_KEY_PEPPER=pepper-of-the-shop
SESSION_SECRET=short
SMTP_URL=smtp://mail.shop.example
MAIL_FROM=shop@shop.example
OIDC_ISSUER=https://sign-in.shop.example
OIDC_ORG_CLAIM=company
OPERATORS=support@shop.example
PROVIDER_SECRET_KEY=sk_live_of_the_shop
PROVIDER_LIVEMODE=live
SUBSCRIPTIONS=weekly
"""


async def follow_banner(banner: str, folder: Path, **values: str) -> str:
    """Type what a banner says to try into a shell, line by line; return what the shell writes."""
    block = banner.partition("in this folder:\n")[2].partition("  To delete all data")[0]
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": AS_INSTALLED,
        **values,
    }
    shell = await asyncio.create_subprocess_exec(
        "sh",
        "-eu",
        "-c",
        block.replace("curl ", "curl --noproxy '*' --fail "),
        cwd=folder,
        env=variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await shell.communicate()
    assert (shell.returncode, err.decode()) == (0, ""), (out, err)
    return out.decode()


async def test_demo_runs_beside_another_program_and_uses_nothing_of_it(
    tmp_path: Path, shop: str
) -> None:
    (tmp_path / ".env").write_text(f"DATABASE_URL={shop}\n{ENV_OF_ANOTHER}")
    below = tmp_path / "below"
    below.mkdir()
    before = other_program.dump(shop)
    exported = {"DATABASE_URL": shop, "SMTP_URL": "smtp://of-the-shop.example"}
    async with demo(tmp_path, free_port(), WORKERS="2", **exported) as command:
        [note] = [line for line in command.text["err"].splitlines() if "ignores" in line]
        assert note == (
            "The demo ignores DATABASE_URL and SMTP_URL of the environment and API_KEY_PEPPER, BASE_URL, "
            "DATABASE_POOLER_URL, HOST, LOG_FORMAT, MAIL_FROM, OIDC_ISSUER, OIDC_ORG_CLAIM, OPERATORS, "
            "PROVIDER_LIVEMODE, PROVIDER_SECRET_KEY, SESSION_SECRET and SUBSCRIPTIONS of .env: it has its own. "
            f"To use a database of yours: {COMMAND} demo --database URL"
        )
        for folder in (tmp_path, below):
            tried = await follow_banner(
                command.text["out"], folder, XDG_STATE_HOME=str(tmp_path), **exported
            )
            assert '"orgId":"demo"' in tried
            assert "invoice.payment_failed  200" in tried
        assert "of-the-shop" not in command.text["out"]
        assert await command.end(signal.SIGINT) == 0
    assert "hunter2" not in command.text["out"] + command.text["err"]
    done = await run("demo", "reset", "--yes", folder=below, **exported)
    assert (done.code, (tmp_path / ".tenantry").exists()) == (0, False), done
    assert other_program.dump(shop) == before


async def test_demo_uses_the_database_that_its_command_line_names(
    tmp_path: Path, database_url: str
) -> None:
    url = f"{database_url}&password=hunter2hunter2"
    async with running("demo", "--database", url, folder=tmp_path, PORT="0") as command:
        await command.until("To delete all data", "out")
        banner = command.text["out"]
        assert "the data stays in the database user=" in banner
        tried = await follow_banner(banner, tmp_path, XDG_STATE_HOME=str(tmp_path))
        assert "invoice.payment_failed  200" in tried
        assert re.search(
            r"end the demo \(Ctrl-C\), drop and create its database, and delete \S+\.tenantry\n",
            banner,
        )
        # operator commands know that database
        made = await run(
            "admin", "create-key", "--org", "demo", "--name", "more", "--owner", folder=tmp_path
        )
        assert (made.code, made.err) == (0, "")
        assert await command.end(signal.SIGINT) == 0
    assert "hunter2" not in command.text["out"] + command.text["err"]
    assert not (tmp_path / ".tenantry" / "postgres").exists()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT id FROM tenants ORDER BY id").fetchall() == [
            ("demo",),
            ("harbor",),
        ]

    without = await run("demo", folder=tmp_path, PORT=str(free_port()))
    assert (without.code, "Name it again with --database" in without.err) == (1, True), without
    refused = invoke("demo", "reset", "--yes", folder=tmp_path)
    assert (refused.code, "uses a database of yours (user=" in refused.err) == (1, True)

    # without its folder the demo creates new keys
    shutil.rmtree(tmp_path / ".tenantry")
    async with running(
        "demo", "--database", url, folder=tmp_path, PORT=str(free_port())
    ) as command:
        await command.until("To delete all data", "out")
        assert '"data":[{' in await follow_banner(
            command.text["out"], tmp_path, XDG_STATE_HOME=str(tmp_path)
        )
        assert await command.end(signal.SIGINT) == 0


def test_demo_keeps_out_of_a_database_of_another_program(tmp_path: Path, shop: str) -> None:
    before = other_program.dump(shop)
    done = invoke("demo", "--database", shop, folder=tmp_path, PORT=str(free_port()))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "--database: tenantry wants a database of its own, and this one (user="
    )
    assert done.err.endswith(
        f" has tables of others, {other_program.FOUND}: create a database for tenantry alone, and name that one.\n"
    )
    assert "hunter2" not in done.err
    assert other_program.dump(shop) == before
    assert "There is no demo" in invoke("demo", "reset", "--yes", folder=tmp_path).err
