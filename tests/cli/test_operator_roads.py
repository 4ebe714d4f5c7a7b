"""The operator's commands over both roads, over HTTP and on the database: the same words, the same
output, the same exit codes.
"""

import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tenantry.common.clock import system_clock
from tests.sdk.sdk_support import Served, serving
from tests.support.app import OPERATOR_TOKEN, PEPPER
from tests.support.cases import cases
from tests.support.command_runner import invoke_async
from tests.support.commands import Done, running
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.service import ManualClock
from tests.support.webhook_endpoint import SECRET, WebhookServer, running_webhook_server

HTTP: Final = "http"
DATABASE: Final = "database"
ROADS: Final = (HTTP, DATABASE)
DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a"
"""Of a key to import, without its last two digits."""
_NUMBERS: Final = itertools.count(100)
_VARYING: Final = (
    (re.compile(r"svc_live_\w{49}"), "SECRET"),
    (re.compile(r"svc_live_\w{4}"), "START"),
    (re.compile(r'"last4": ?"\w{4}"'), '"last4":"LAST"'),
    (re.compile(r"\.\.\.\w{4}\b"), "...LAST"),
    (re.compile(r"\b(key|usr|evt|aud|mbr)_[0-9a-f]{16,}"), r"\1_ID"),
    (re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "TIME"),
    (re.compile(r"20\d\d-\d\d-\d\d"), "DAY"),
    (
        re.compile(r'"(address|requestId)": ?("[^"]*"|null),?\s*'),
        "",
    ),  # the audit trail's, of a request
)

SCRIPT: Final = (
    ("admin find {org}", 0),
    ("admin find {customer} --json", 0),
    ("admin find owner@{road}.example --json", 0),
    ("admin find {key}", 0),
    ("admin find cus_unknown", 5),
    ("admin list-tenants --search {org}", 0),
    ("admin list-tenants --search {org} --json", 0),
    ("admin list-tenants --search {org} --suspended", 0),
    ("admin show-tenant {org}", 0),
    ("admin show-tenant {org} --json", 0),
    ("admin show-tenant unknown", 5),
    ("admin show-tenant a/b", 5),
    ("admin create-tenant --id {org} --name a --owner-email a@b.example", 1),
    ("admin create-tenant --id new --name a --owner-email a@b.example --plan gold", 2),
    ("admin create-tenant --id new-{road} --name a --owner-email a@b.example --plan pro", 0),
    ("admin suspend {org} --yes --reason Unpaid", 0),
    ("admin show-tenant {org} ", 0),
    ("admin list-tenants --search {org}  --json", 0),
    ("admin suspend {org} --yes --json", 0),
    ("admin suspend unknown --yes", 5),
    ("admin suspend {org}", 2),
    ("admin resume {org} --reason Paid", 0),
    ("admin resume {org} --json", 0),
    ("admin explain-tenant {org}", 0),
    ("admin explain-tenant {org} --json", 0),
    ("admin explain-tenant unknown", 5),
    ("admin export-tenant {org}", 0),
    ("admin export-tenant unknown", 5),
    ("admin verify-owner-address {org}", 0),
    ("admin create-key --org {org} --name a --scope projects:read --expires-in 90d", 0),
    ("admin create-key --org {org} --name a --owner --json", 0),
    ("admin create-key --org unknown --name a --owner", 5),
    ("admin create-key --org {org} --name a --scope a:b --expires-in 1d --expires-at 2d", 2),
    ("admin revoke-key {key} --yes --reason Leaked", 0),
    ("admin revoke-key {key} --yes --json", 0),
    ("admin revoke-key key_unknown --yes", 5),
    ("admin revoke-key {key}", 2),
    ("admin link {customer} --org {org}", 0),
    ("admin move {customer} --org {org} --yes --json --reason Sold", 0),
    ("admin unlink {customer} --yes --reason Wrong", 0),
    ("admin unlink {customer} --yes", 5),
    ("admin unlink {customer}", 2),
    ("admin link {customer} --org {org} --json", 0),
    ("admin list-parked-events", 0),
    ("admin show-event-body evt_unknown", 5),
    ("admin grant {org} contract --plan pro --until 365d --reason Invoice", 0),
    ("admin grant {org} contract --plan pro --reason Invoice --json", 0),
    ("admin grant {org} contract --plan gold --reason Invoice", 2),
    ("admin grants {org}", 0),
    ("admin grants {org} --json", 0),
    ("admin grant {org} contract --end", 0),
    ("admin grant {org} other --end", 5),
    ("admin grants unknown", 5),
    ("admin usage --org {org}", 0),
    ("admin usage --by key --org {org} --since 2d", 0),
    ("admin usage --since 100d", 2),
    ("admin imported-keys --org {org}", 0),
    ("admin imported-keys --org unknown", 5),
    ("admin import-keys {road}.jsonl --from jsonl --org {org} --dry-run", 0),
    ("admin import-keys {road}.jsonl --from jsonl --org {org} --json", 0),
    ("admin import-keys {road}.jsonl --from jsonl --org {org}", 0),
    ("admin import-keys {road}.jsonl --from jsonl --org unknown", 2),
    ("admin imported-keys --org {org} --json", 0),
    ("webhooks list --json", 0),
    ("webhooks list", 0),
    ("webhooks test app", 0),
    ("webhooks test app --json", 0),
    ("webhooks test unknown", 5),
    ("webhooks enable app --json", 0),
    ("webhooks resend app", 0),
    ("webhooks resend unknown", 5),
    ("admin end-tenant {org} --yes --json --reason Left", 0),
    ("admin end-tenant {org} --yes", 0),
    ("admin end-tenant unknown --yes", 5),
)
"""Commands in their order, and the exit code of each."""


class Roads(NamedTuple):
    """One service, which the commands reach over HTTP and by its database."""

    served: Served
    folder: Path
    catalog: Path

    def values(self, road: str) -> dict[str, str]:
        """The variables of a road."""
        if road == HTTP:
            return {
                "TENANTRY_OPERATOR_TOKEN": OPERATOR_TOKEN,
                "TENANTRY_BASE_URL": self.served.url,
            }
        return {
            "DATABASE_URL": as_url(self.served.service.conninfo),
            "API_KEY_PEPPER": PEPPER,
            "TENANTRY_PLANS": str(self.catalog),
            "KEY_PREFIX": "svc",
        }

    async def run(self, road: str, command: str, *more: str) -> Done:
        """Run a command over a road."""
        return await invoke_async(*command.split(), *more, folder=self.folder, **self.values(road))

    async def done(self, road: str, command: str, *more: str) -> str:
        """Run a command that must succeed; return its stdout."""
        ended = await self.run(road, command, *more)
        assert ended.code == 0, ended
        return ended.out

    async def prepare(self, road: str) -> dict[str, str]:
        """Make a tenant of this road, with a customer and a key; return the names of all three."""
        word = f"by-{road}-{next(_NUMBERS)}"
        org = f"{word}-org"
        owner = ("--owner-email", f"owner@{word}.example", "--customer", f"cus_{word}")
        await self.run(road, f"admin create-tenant --id {org} --name {word}", *owner)
        named = ("--name", "CI", "--scope", "projects:read", "--json")
        key = json.loads(await self.done(road, f"admin create-key --org {org}", *named))
        return {"org": org, "customer": f"cus_{word}", "key": key["id"], "road": word}


@pytest.fixture(scope="module")
async def receiver() -> AsyncIterator[WebhookServer]:
    async with running_webhook_server() as server:
        yield server


@pytest.fixture(scope="module")
async def roads(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, receiver: WebhookServer
) -> AsyncIterator[Roads]:
    folder = tmp_path_factory.mktemp("roads")
    catalog = folder / "plans.toml"
    url = f"http://127.0.0.1:{receiver.port}/"
    endpoint = f'name = "app"\nurl = "{url}"\ntypes = ["tenant.*"]\nsecrets = ["{SECRET}"]\n'
    plans = '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\n'
    catalog.write_text(f"{plans}[[webhooks]]\n{endpoint}allow_private = true\n")
    with postgres.database() as conninfo:
        clock = ManualClock(system_clock())
        async with serving(conninfo, clock, TENANTRY_PLANS=str(catalog)) as served:
            yield Roads(served, folder, catalog)


def same(text: str, names: dict[str, str]) -> str:
    """A text without what differs from one tenant, key and moment to the other."""
    for name in ("org", "customer", "key", "road"):
        text = text.replace(names[name], name.upper())
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return re.sub(r" {2,}", "  ", text)


async def test_both_roads_give_the_same(roads: Roads) -> None:
    names = {road: await roads.prepare(road) for road in ROADS}
    for road in ROADS:
        key = {"digest": f"{DIGEST}{ROADS.index(road):02}", "name": "old", "scopes": ["a:b"]}
        (roads.folder / f"{names[road]['road']}.jsonl").write_text(
            json.dumps({**key, "externalId": "k1"})
        )
    for command, code in SCRIPT:
        ended = {}
        for road in ROADS:
            done = await roads.run(road, command.format(**names[road]))
            ended[road] = [done.code, *same(done.out, names[road]).splitlines()]
            assert done.code == code, (road, command, done)
        assert ended[HTTP] == ended[DATABASE], command


async def test_changes_are_followed_over_both_roads(roads: Roads) -> None:
    org = (await roads.prepare(HTTP))["org"]
    lines = {}
    for road in ROADS:
        options = ("--after", "oldest", "--org", org, "--json")
        async with running(
            "events", "follow", *options, folder=roads.folder, **roads.values(road)
        ) as command:
            await command.until("api_key.created", "out")
            assert await command.end(signal.SIGINT) == 0
        lines[road] = command.text["out"].splitlines()[:2]
    assert lines[HTTP] == lines[DATABASE]


async def test_audit_trail_is_the_same_over_both_roads(roads: Roads) -> None:
    await roads.prepare(HTTP)
    trails = [await roads.done(road, "admin export-audit") for road in ROADS]
    assert trails[0] == trails[1]
    assert "tenant.created" in trails[0]


@cases(
    "command",
    ["admin find x", "admin create-key --org a --name b --owner", "webhooks list", "events follow"],
)
async def test_without_a_road_both_are_named(tmp_path: Path, command: str) -> None:
    done = await invoke_async(*command.split(), folder=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "Set TENANTRY_OPERATOR_TOKEN and TENANTRY_BASE_URL" in done.err
    assert "or DATABASE_URL" in done.err
    assert "cannot start" not in done.err


async def test_with_both_the_command_says_which(roads: Roads) -> None:
    both = roads.values(HTTP) | roads.values(DATABASE)
    show = ("admin", "list-tenants", "--limit", "1", "--json")
    asked = await invoke_async(*show, folder=roads.folder, **both)
    assert (asked.code, asked.out) == (2, "")
    assert "pass --over http or --over database" in asked.err
    for road in ROADS:
        done = await invoke_async(*show, "--over", road, folder=roads.folder, **both)
        assert done.code == 0, done


async def test_road_that_is_not_set_up_is_reported(roads: Roads) -> None:
    for road, other, missing in (
        (HTTP, DATABASE, "TENANTRY_OPERATOR_TOKEN"),
        (DATABASE, HTTP, "DATABASE_URL"),
    ):
        done = await roads.run(other, f"admin list-tenants --over {road}")
        assert (done.code, missing in done.err) == (2, True), done


async def test_api_key_is_no_operators_token(roads: Roads) -> None:
    org = (await roads.prepare(HTTP))["org"]
    named = ("--name", "a", "--owner")
    key = (await roads.done(DATABASE, f"admin create-key --org {org}", *named)).strip()
    values = {**roads.values(HTTP), "TENANTRY_OPERATOR_TOKEN": key}
    done = await invoke_async("admin", "list-tenants", folder=roads.folder, **values)
    assert (done.code, done.out, key in done.err) == (4, "", False)
    assert "TENANTRY_OPERATOR_TOKEN holds an API key." in done.err


async def test_wrong_token_exits_with_4(roads: Roads) -> None:
    values = {**roads.values(HTTP), "TENANTRY_OPERATOR_TOKEN": "x" * 40}
    done = await invoke_async("admin", "list-tenants", folder=roads.folder, **values)
    assert (done.code, done.out) == (4, "")
    assert f"{roads.served.url} rejects TENANTRY_OPERATOR_TOKEN: " in done.err


async def test_service_or_database_that_is_away_exits_with_6(roads: Roads) -> None:
    port = free_port()
    away = {
        HTTP: {"TENANTRY_BASE_URL": f"http://127.0.0.1:{port}"},
        DATABASE: {"DATABASE_URL": f"postgresql://127.0.0.1:{port}/x"},
    }
    for road, values in away.items():
        done = await invoke_async(
            *("admin", "find", "x"), folder=roads.folder, **{**roads.values(road), **values}
        )
        assert (done.code, done.out) == (6, ""), done


@cases("command", ["reconcile", "backfill --since 1d", "admin replay-events", "migrate"])
async def test_work_that_outlasts_a_request_stays_on_the_host(roads: Roads, command: str) -> None:
    done = await roads.run(HTTP, command)
    assert done.code == 2
    assert "This command works on the database, on the service's host." in done.err


async def test_prompts_name_what_they_change_and_where(roads: Roads) -> None:
    names = await roads.prepare(HTTP)
    questions = {HTTP: f" at {roads.served.url}?", DATABASE: " in the database "}
    for road in ROADS:
        for command in (
            "suspend {org}",
            "end-tenant {org}",
            "revoke-key {key}",
            "unlink {customer}",
        ):
            words = ("admin", *command.format(**names).split())
            done = await invoke_async(
                *words, folder=roads.folder, typed="n\n", **roads.values(road)
            )
            assert done.code == 1, done
            assert questions[road] in done.err
            assert "Nothing was done." in done.err


def test_over_http_nothing_of_the_database_is_imported(tmp_path: Path) -> None:
    for words in (["admin", "find", "x"], ["admin", "show-tenant", "a"], ["events", "follow"]):
        code = (
            "import sys; from tenantry_cli.commands import main\n"
            f"try: main({words})\n"
            "except SystemExit: print(*sys.modules, file=sys.stderr)"
        )
        values = {
            "HOME": str(tmp_path),
            "TENANTRY_OPERATOR_TOKEN": "x" * 40,
            "TENANTRY_BASE_URL": f"http://127.0.0.1:{free_port()}",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=values, capture_output=True, text=True, check=True
        )
        modules = set(done.stderr.split())
        assert "tenantry.cli.remote_operator" in modules
        assert not modules & {
            "psycopg",
            "litestar",
            "procrastinate",
            "tenantry.db",
            "tenantry.settings",
        }
