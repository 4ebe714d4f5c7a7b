"""The TypeScript client as its users install it, and the programs that run with it."""

import asyncio
import json
import shutil
import subprocess
import tarfile
from asyncio.subprocess import PIPE
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.required import node, npm_dependency
from tests.support.service import Organization

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "typescript"
DOCUMENT: Final = Path("tests/contract/openapi.json")
PRELUDE: Final = """
import {
    APIError, ConfigurationError, ConnectionFailedError, CursorExpiredError, EntitlementDeniedError,
    FeatureNotGrantedError, NotFoundError, Pager,
    QuotaExceededError, Secret, Tenantry, TenantryError, TimedOutError, UnknownFeatureError, UnreadableAnswerError,
    webhooks,
} from "@tenantry/client";

const { BASE_URL: baseUrl, API_KEY: apiKey } = process.env;
const tenantry = new Tenantry({ baseUrl, apiKey });
const print = (value) => console.log(JSON.stringify(value));
const rejection = async (promise) => { try { await promise; } catch (error) { return error; } };
const request = (key) => ({ headers: { authorization: `Bearer ${key}` } });
"""
ANOTHER_SERVER: Final = """
    import { createServer } from "node:http";

    const server = createServer((request, response) => answer(request, response)).listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    const elsewhere = new Tenantry({ baseUrl: `http://127.0.0.1:${server.address().port}`, apiKey });
"""
"""A server that is not tenantry's, and a client of it."""


class Package(NamedTuple):
    """A folder whose programs can import the packed client, as npm installs it."""

    folder: Path
    tools: Path

    @property
    def client(self) -> Path:
        return self.folder / "node_modules" / "@tenantry" / "client"

    async def result_of(self, program: str, base_url: str, key: str | None = None) -> Any:
        """Run a program in Node.js, and return what it prints as JSON."""
        process = await asyncio.create_subprocess_exec(
            node(),
            "--input-type=module",
            "--eval",
            PRELUDE + program,
            cwd=self.folder,
            env={"BASE_URL": base_url} | ({"API_KEY": key} if key else {}),
            stdout=PIPE,
            stderr=PIPE,
        )
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return json.loads(output)

    def complaints(self, programs: Iterable[str], *options: str) -> list[str]:
        """Check the types of programs, and return for each one what the compiler says of it."""
        names = []
        for number, program in enumerate(programs):
            names.append(f"program{number}.ts")
            (self.folder / names[-1]).write_text(program, "utf-8")
        done = subprocess.run(
            [self.tools / ".bin" / "tsc", "--noEmit", "--module", "nodenext", *options, *names],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        assert [line for line in lines if not line.startswith((*names, " "))] == []
        return ["".join(line for line in lines if line.startswith(name)) for name in names]


def packed_client(folder: Path) -> Package:
    """Build and pack the client in a copy of its folder, and install the package."""
    tools = npm_dependency(SOURCE, "typescript").parent
    source, user = folder / "typescript", folder / "user of it"
    shutil.copytree(
        SOURCE, source, ignore=shutil.ignore_patterns("node_modules", "dist", "generated")
    )
    (source / "node_modules").symlink_to(tools)
    (folder / DOCUMENT.parent).mkdir(parents=True)
    shutil.copy(ROOT / DOCUMENT, folder / DOCUMENT)
    packed = subprocess.run(
        ["npm", "pack", "--silent"], cwd=source, capture_output=True, text=True, check=False
    )
    assert packed.returncode == 0, packed.stdout + packed.stderr

    scope = user / "node_modules" / "@tenantry"
    scope.mkdir(parents=True)
    with tarfile.open(source / packed.stdout.splitlines()[-1]) as archive:
        archive.extractall(scope, filter="data")
    (scope / "package").rename(scope / "client")
    for name in ("express", "@types"):
        (user / "node_modules" / name).symlink_to(tools / name)
    (user / "package.json").write_text('{"type": "module"}')
    return Package(user, tools)


def key_of(organization: Organization) -> str:
    return str(organization.owner.credential)
