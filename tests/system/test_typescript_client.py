"""The TypeScript client: its package, and programs that use it against the real service."""

import asyncio
import base64
import json
import re
import shutil
import socket
import subprocess
import tarfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import pytest
from playwright.async_api import Browser, Route

import tenantry_sdk
from tenantry import __version__
from tenantry_sdk import webhooks as python_webhooks
from tests.sdk.faulty_proxy import Fault, faulty_proxy
from tests.sdk.sdk_support import Served, serving
from tests.support.postgres import PostgresServer
from tests.support.required import node, npm_dependency
from tests.support.service import KEYS, Organization
from tests.support.webhook_vectors import (
    BODY,
    DELIVERIES,
    NO_EVENTS,
    NOW,
    SECRET,
    SECRETS,
    TEXTS,
    signed,
)

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "typescript"
EXAMPLE: Final = ROOT / "examples" / "express" / "server.js"
DOCUMENT: Final = Path("tests/contract/openapi.json")
PRELUDE: Final = """
import {
    APIError, ConfigurationError, ConnectionFailedError, Pager, Secret, Tenantry, TenantryError, TimedOutError,
    UnreadableAnswerError, webhooks,
} from "@tenantry/client";

const { BASE_URL: baseUrl, API_KEY: apiKey } = process.env;
const tenantry = new Tenantry({ baseUrl, apiKey });
const print = (value) => console.log(JSON.stringify(value));
const rejection = async (promise) => { try { await promise; } catch (error) { return error; } };
const request = (key) => ({ headers: { authorization: `Bearer ${key}` } });
"""
LOST: Final = [
    Fault.UNAVAILABLE_BEFORE,
    Fault.UNAVAILABLE_AFTER,
    Fault.RESET_AFTER,
    Fault.TRUNCATED,
]
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


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The client, built and packed in a copy of its folder."""
    tools = npm_dependency(SOURCE, "typescript").parent
    work = tmp_path_factory.mktemp("package")
    source, user = work / "typescript", work / "user of it"
    shutil.copytree(
        SOURCE, source, ignore=shutil.ignore_patterns("node_modules", "dist", "generated")
    )
    (source / "node_modules").symlink_to(tools)
    (work / DOCUMENT.parent).mkdir(parents=True)
    shutil.copy(ROOT / DOCUMENT, work / DOCUMENT)
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


@pytest.fixture(scope="module")
async def served(postgres: PostgresServer) -> AsyncIterator[Served]:
    with postgres.database() as conninfo:
        async with serving(conninfo) as running:
            yield running


@pytest.fixture
async def acme(served: Served) -> Organization:
    return await served.service.organization()


def key_of(organization: Organization) -> str:
    return str(organization.owner.credential)


async def key_with(organization: Organization, *scopes: str, **fields: object) -> str:
    made = await organization.owner.post(
        KEYS, {"orgId": organization.id, "name": "k", "scopes": scopes, **fields}
    )
    return str(made.json()["secret"])


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_package_has_all_that_it_needs_and_nothing_else(package: Package) -> None:
    described = json.loads((package.client / "package.json").read_text("utf-8"))
    assert described["version"] == __version__
    assert "dependencies" not in described
    assert described["sideEffects"] is False
    assert {file.name for file in package.client.iterdir()} == {
        "LICENSE",
        "README.md",
        "dist",
        "package.json",
    }
    files = {
        str(file.relative_to(package.client / "dist"))
        for file in (package.client / "dist").rglob("*.*")
    }
    assert {"index.js", "index.d.ts", "generated/LICENSE.md"} <= files
    assert {file.rpartition(".")[2] for file in files} == {"js", "ts", "md"}
    assert (package.client / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_lock_file_names_no_registry() -> None:
    lock = (SOURCE / "package-lock.json").read_text("utf-8")
    assert '"resolved"' not in lock
    assert json.loads(lock)["version"] == __version__


async def test_a_commonjs_program_can_require_it(package: Package) -> None:
    program = 'process.stdout.write(typeof require("@tenantry/client").Tenantry)'
    process = await asyncio.create_subprocess_exec(
        node(), "--input-type=commonjs", "--eval", program, cwd=package.folder, stdout=PIPE
    )
    assert (await process.communicate())[0] == b"function"


async def test_a_key_is_created_listed_rotated_and_rejected_once_it_is_revoked(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { orgId } = await tenantry.auth.whoami();
        const names = ["Zoë", "名前", "a/b?c", "🔑", "last"];
        for (const name of names) await tenantry.apiKeys.create({ orgId, name, scopes: ["projects:read"] });
        const listed = [];
        for await (const key of tenantry.apiKeys.list({ orgId, limit: 2 })) listed.push(key);
        const rotated = await tenantry.apiKeys.rotate({ keyId: listed[0].id, overlapSeconds: 60 });
        const caller = new Tenantry({ baseUrl, tokens: async () => `${rotated.secret.reveal()}\\n` });
        const before = await caller.projects.list().firstPage();
        await tenantry.apiKeys.delete({ keyId: rotated.id });
        const { statusCode, code } = await rejection(caller.projects.list().firstPage());
        const isOfFirst = rotated.rotatedFrom === listed[0].id;
        print({ names: listed.map(({ name }) => name), isOfFirst, before, statusCode, code });
    """
    assert await package.result_of(program, served.url, key_of(acme)) == {
        "names": ["last", "🔑", "a/b?c", "名前", "Zoë", "key"],
        "isOfFirst": True,
        "before": {"data": [], "nextCursor": None},
        "statusCode": 401,
        "code": "api_key_revoked",
    }


async def test_rejection_is_an_error_with_the_problem_document(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const error = await rejection(tenantry.projects.create({ name: "" }));
        print({ typed: error instanceof APIError && error instanceof TenantryError, ...error, text: error.message });
    """
    error = await package.result_of(program, served.url, key_of(acme))
    assert error["typed"]
    assert (error["statusCode"], error["code"]) == (422, "validation_failed")
    assert error["document"]["type"] == "urn:tenantry:problem:validation_failed"
    assert error["detail"] == error["document"]["detail"]
    assert [fault["location"] for fault in error["errors"]] == ["name"]
    assert error["requestId"] == error["document"]["requestId"] == error["headers"]["x-request-id"]
    assert json.loads(error["content"]) == error["document"]
    assert error["requestId"] in error["text"]


async def test_readme_lists_every_method(package: Package, served: Served) -> None:
    program = """
        const methods = (name, object) => {
            const own = Object.getPrototypeOf(object);
            const parts = { ...Object.getOwnPropertyDescriptors(Object.getPrototypeOf(own)),
                ...Object.getOwnPropertyDescriptors(own) };
            delete parts.constructor;
            return Object.entries(parts).flatMap(([part, { get }]) => {
                if (part.startsWith("__")) return [];
                return get ? methods([...name, part], object[part]) : [[...name, part]];
            });
        };
        const ours = methods([], tenantry).map((parts) => parts.join("."));
        print(ours.filter((name) => !(name in Object.prototype)));
    """
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \|$", (SOURCE / "README.md").read_text("utf-8"), re.MULTILINE
    )
    listed = {
        f"{group}.{name}" for group, names in rows for name in re.findall(r"`([\w.]+)`", names)
    }
    assert set(await package.result_of(program, served.url)) == {
        name for name in listed if name[0].islower()
    }


async def test_audit_trail_is_exported_as_text(
    package: Package, served: Served, acme: Organization
) -> None:
    exported = await package.result_of(
        "print(await tenantry.auditEvents.export());", served.url, key_of(acme)
    )
    assert [json.loads(line)["action"] for line in exported.splitlines()] == [
        "api_key.created",
        "tenant.created",
    ]


async def test_credential_is_in_no_output(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        import { inspect } from "node:util";

        const shown = (value) => inspect(value, { depth: Infinity, showHidden: true });
        const broken = (apiKey) => Promise.resolve().then(() => new Tenantry({ baseUrl, apiKey }));
        const failed = [broken(`${apiKey}\\u0100 x`), tenantry.projects.get({ projectId: "x" })].map(rejection);
        print([tenantry, ...(await Promise.all(failed))].flatMap((value) => [shown(value), JSON.stringify(value)]));
    """
    key = key_of(acme)
    texts = await package.result_of(program, served.url, key)
    assert [text for text in texts if key[12:] in text] == []
    assert "ConfigurationError: apiKey is not a credential" in texts[2]


async def test_secret_of_a_new_key_is_masked_wherever_it_is_printed(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        import { format, inspect } from "node:util";

        const { orgId } = await tenantry.auth.whoami();
        const key = await tenantry.apiKeys.create({ orgId, name: "x", scopes: ["api-keys:write"] });
        const own = new Tenantry({ baseUrl, apiKey: key.secret });
        const shown = (value) => [inspect(value, { depth: Infinity, showHidden: true }), JSON.stringify(value),
            format("%s %o %j", value, value, value)];
        const printed = [key, key.secret, { nested: [key] }, own].flatMap(shown);
        printed.push(`${key.secret}`, "" + key.secret, String(key.secret), Object.values(key).join());
        const { id } = await own.auth.whoami();
        const rotated = await own.apiKeys.rotate({ keyId: id });
        const reported = await tenantry.apiKeys.reportLeak({ secret: rotated.secret });
        const secrets = [key, rotated].map(({ secret }) => secret.reveal());
        print({ secrets, printed, same: id === key.id, isSecret: key.secret instanceof Secret, status: reported.status,
            json: JSON.parse(JSON.stringify(rotated)).secret });
    """
    result = await package.result_of(program, served.url, key_of(acme))
    assert [secret[:9] for secret in result["secrets"]] == ["svc_live_"] * 2
    assert [text for text in result["printed"] if result["secrets"][0][13:54] in text] == []
    assert (result["same"], result["isSecret"], result["status"]) == (True, True, "revoked")
    assert result["json"] == "**********"


async def test_list_iterates_over_items_and_pages_again_and_again(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        for (const name of ["a", "b", "c"]) await tenantry.projects.create({ name });
        const list = tenantry.projects.list({ limit: 2 });
        const names = async (items) => {
            const found = [];
            for await (const { name } of items) found.push(name);
            return found;
        };
        const pages = [];
        for await (const page of list.pages()) pages.push([page.data.length, page.nextCursor !== null, page.hasNext]);
        const first = await list.firstPage();
        const second = await first.next();
        const there = await tenantry.projects.list({ cursor: first.nextCursor }).firstPage();
        const plans = await names(tenantry.plans.list());
        print({ once: await names(list), again: await names(list), pages, second: second.data, there: there.data,
            end: (await rejection(second.next())).name, isPager: list instanceof Pager, plans: plans.length > 0,
            json: Object.keys(JSON.parse(JSON.stringify(first))) });
    """
    result = await package.result_of(program, served.url, key_of(acme))
    assert result["once"] == result["again"] == ["c", "b", "a"]
    assert result["pages"] == [[2, True, True], [1, False, False]]
    assert (
        [one["name"] for one in result["second"]]
        == [one["name"] for one in result["there"]]
        == ["a"]
    )
    assert (result["end"], result["isPager"], result["plans"]) == ("RangeError", True, True)
    assert result["json"] == ["data", "nextCursor"]


async def test_pages_are_fetched_on_demand(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        for (const name of ["a", "b", "c"]) await tenantry.projects.create({ name });
        let asked = 0;
        const counting = (...request) => { asked++; return fetch(...request); };
        const caller = new Tenantry({ baseUrl, apiKey, fetch: counting });
        const list = caller.projects.list({ limit: 1 });
        const counts = [asked];
        for await (const _ of list) {
            counts.push(asked);
            if (counts.length === 3) break;
        }
        print(counts);
    """
    assert await package.result_of(program, served.url, key_of(acme)) == [0, 1, 2]


async def test_creation_takes_an_idempotency_key(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const idempotencyKey = crypto.randomUUID();
        const create = () => tenantry.projects.create({ name: "x", idempotencyKey });
        print((await create()).id === (await create()).id);
    """
    assert await package.result_of(program, served.url, key_of(acme)) is True


def test_types_have_the_names_of_the_python_sdk(package: Package) -> None:
    declared = (package.client / "dist" / "generated" / "types.gen.d.ts").read_text("utf-8")
    models = {
        name
        for name, value in vars(tenantry_sdk).items()
        if isinstance(value, type) and issubclass(value, tenantry_sdk.Model)
    }
    by_hand = {"Model", "Page", "Principal", "Health"}
    assert {name for name in models - by_hand if f"export type {name} = " not in declared} == set()


async def test_credential_comes_from_one_place(package: Package, served: Served) -> None:
    program = """
        const options = [{ apiKey: "a", tokens: () => "b" }, { apiKey: "a b" }, { apiKey: "" }, { baseUrl: "ftp://x" }];
        print(options.map((one) => { try { new Tenantry({ baseUrl, ...one }); } catch (error) {
            return [error instanceof ConfigurationError, error.name]; } }));
    """
    assert await package.result_of(program, served.url) == [[True, "ConfigurationError"]] * 4


async def test_webhooks_are_judged_as_by_the_python_sdk(package: Package, served: Served) -> None:
    program = """
        import { readFileSync } from "node:fs";

        const { deliveries, bodies, body, secret, now } = JSON.parse(readFileSync("vectors.json", "utf-8"));
        const judge = async (...given) => {
            try { return (await webhooks.verify(...given)).id; } catch (error) { return [error.name, error.reason]; }
        };
        const bytes = (base64) => new Uint8Array(Buffer.from(base64, "base64"));
        print({
            deliveries: await Promise.all(deliveries.map((headers) => judge(body, headers, secret, { now }))),
            bodies: await Promise.all(bodies.map(([one, headers]) => judge(bytes(one), headers, secret, { now }))),
        });
    """
    vectors = {
        "deliveries": [delivery.headers for delivery in DELIVERIES],
        "bodies": [(base64.b64encode(body).decode(), signed(body)) for body in NO_EVENTS],
        "body": BODY.decode(),
        "secret": SECRET,
        "now": NOW,
    }
    (package.folder / "vectors.json").write_text(json.dumps(vectors))
    judged = await package.result_of(program, served.url)
    for delivery, result in zip(DELIVERIES, judged["deliveries"], strict=True):
        if delivery.reason is None:
            assert result == "evt_1", delivery
        else:
            assert result[0] == "SignatureError", delivery
            assert delivery.reason in result[1], delivery
    assert judged["bodies"] == [["PayloadError", None]] * len(NO_EVENTS)


async def test_signatures_are_those_of_the_python_sdk(package: Package, served: Served) -> None:
    program = """
        import { readFileSync } from "node:fs";

        const { texts, secrets, at } = JSON.parse(readFileSync("texts.json", "utf-8"));
        const bodies = texts.map((text) => new Uint8Array(Buffer.from(text, "base64")));
        const sign = (body, secret) => webhooks.sign(body, secret, { at: new Date((at + 0.9) * 1000) });
        print(await Promise.all(bodies.flatMap((body) => secrets.map((secret) => sign(body, secret)))));
    """
    texts = [base64.b64encode(text).decode() for text in TEXTS]
    (package.folder / "texts.json").write_text(
        json.dumps({"texts": texts, "secrets": SECRETS, "at": NOW})
    )
    assert await package.result_of(program, served.url) == [
        python_webhooks.sign(text, secret, at=NOW) for text in TEXTS for secret in SECRETS
    ]


async def test_webhook_verification_takes_what_servers_have(
    package: Package, served: Served
) -> None:
    program = """
        const body = '{"type": "x", "data": {"object": {"name": "Zo\u00eb"}}}';
        const header = await webhooks.sign(body, new Secret("whsec_new"));
        const verify = async (...given) => {
            try { return (await webhooks.verify(...given)).data.object.name; } catch (error) { return error.name; }
        };
        const bytes = new TextEncoder().encode(body);
        const inHeaders = new Headers({ "Provider-Signature": header });
        const twice = new Headers([["Provider-Signature", header], ["Provider-Signature", header]]);
        print(await Promise.all([
            verify(body, inHeaders, "whsec_new"),
            verify(bytes, { "provider-signature": [header] }, ["whsec_old", new Secret("whsec_new")]),
            verify(bytes.buffer, { "PROVIDER-SIGNATURE": header }, new Secret("whsec_new")),
            verify(Buffer.from(body), inHeaders, "whsec_new", { tolerance: 1000 }),
            verify(body, inHeaders, "whsec_old"),
            verify(body, twice, "whsec_new"),
            verify(body, { "provider-signature": [header, header] }, "whsec_new"),
            verify(body, inHeaders, "whsec_new", { tolerance: NaN }),
            ...["", " ", [], ["", "whsec_new"], new Secret(""), [undefined]].map((no) => verify(body, inHeaders, no)),
        ]));
    """
    accepted, rejected = ["Zoë"] * 4, ["SignatureError"] * 4
    assert await package.result_of(program, served.url) == [
        *accepted,
        *rejected,
        *["TypeError"] * 6,
    ]


@pytest.mark.parametrize(
    "address",
    [
        "http://accounts.example.com",
        "https://user:word@accounts.example.com",
        "ftp://x",
        "accounts",
        "",
    ],
)
async def test_credentials_go_to_safe_addresses_only(package: Package, address: str) -> None:
    with pytest.raises(AssertionError, match="baseUrl"):
        await package.result_of("", address, "svc_live_x")


async def test_ids_stay_within_their_part_of_the_path(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const ids = ["..", ".", "", "../api-keys", "%2e%2e", "x?y#z"];
        const failed = await Promise.all(ids.map((keyId) => rejection(tenantry.apiKeys.get({ keyId }))));
        failed.push(await rejection(tenantry.apiKeys.get({ id: "key_1" })));
        print(failed.map((error) => error.code ?? error.message));
    """
    assert await package.result_of(program, served.url, key_of(acme)) == [
        *["keyId is not an id"] * 3,
        *["not_found"] * 3,
        "keyId is not an id",
    ]


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
async def test_creation_is_retried_and_applied_once(
    package: Package, served: Served, acme: Organization, fault: Fault
) -> None:
    faults = iter([fault])
    program = """
        const created = await tenantry.projects.create({ name: "Zoë" });
        const { data } = await tenantry.projects.list().firstPage();
        await tenantry.projects.delete({ projectId: created.id });
        print(data.map(({ id }) => id === created.id));
    """
    async with faulty_proxy(served.url, lambda: next(faults, Fault.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [True]


@pytest.mark.parametrize(
    "fault", [Fault.RESET_AFTER, Fault.UNAVAILABLE_AFTER], ids=lambda fault: fault.name
)
async def test_deletion_succeeds_when_the_response_to_the_first_attempt_is_lost(
    package: Package, served: Served, acme: Organization, fault: Fault
) -> None:
    faults = iter([Fault.NONE, fault])
    program = """
        const { id } = await tenantry.projects.create({ name: "x" });
        await tenantry.projects.delete({ projectId: id });
        print((await tenantry.projects.list().firstPage()).data);
    """
    async with faulty_proxy(served.url, lambda: next(faults, Fault.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == []


async def test_lost_secret_is_reported_with_the_id_of_its_key(
    package: Package, served: Served, acme: Organization
) -> None:
    faults = iter([Fault.RESET_AFTER])
    program = """
        const key = { orgId: ORG, name: "x", scopes: ["a:b"] };
        const { code, document, idempotencyKey } = await rejection(tenantry.apiKeys.create(key));
        const { status } = await tenantry.apiKeys.get({ keyId: document.id });
        print([code, status, typeof idempotencyKey]);
    """.replace("ORG", json.dumps(acme.id))
    async with faulty_proxy(served.url, lambda: next(faults, Fault.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [
            "idempotency_replay",
            "active",
            "string",
        ]


async def test_change_is_sent_once(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const error = await rejection(tenantry.tenants.update({ tenantId: "x", name: "x" }));
        print([error instanceof APIError, error.code, error.retryAfter]);
    """
    async with faulty_proxy(served.url, lambda: Fault.UNAVAILABLE_BEFORE) as (url, proxy):
        assert await package.result_of(program, url, key_of(acme)) == [True, "http_503", 0]
    assert len(proxy.met) == 1


async def test_retries_are_limited(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const error = await rejection(new Tenantry({ baseUrl, apiKey, retries: 1 }).projects.list().firstPage());
        print([error instanceof ConnectionFailedError, error instanceof TimedOutError]);
    """
    async with faulty_proxy(served.url, lambda: Fault.RESET_BEFORE) as (url, proxy):
        assert await package.result_of(program, url, key_of(acme)) == [True, False]
    assert len(proxy.met) == 2


@pytest.mark.parametrize(
    "fault", [Fault.SILENT, Fault.SLOW_HEAD, Fault.SLOW_BODY], ids=lambda fault: fault.name
)
@pytest.mark.parametrize("limit", ["timeout: 200", "attemptTimeout: 200, retries: 1"])
async def test_slow_response_times_out(
    package: Package, served: Served, acme: Organization, fault: Fault, limit: str
) -> None:
    program = f"""
        const error = await rejection(new Tenantry({{ baseUrl, apiKey, {limit} }}).projects.list().firstPage());
        print([error instanceof TimedOutError, error instanceof ConnectionFailedError]);
    """
    async with faulty_proxy(served.url, lambda: fault) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [True, True]


async def test_caller_can_cancel_a_call(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const controller = new AbortController();
        const call = rejection(tenantry.projects.list({}, { signal: controller.signal }).firstPage());
        controller.abort(new Error("enough"));
        print((await call).message);
    """
    async with faulty_proxy(served.url, lambda: Fault.SILENT) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == "enough"


async def test_incomplete_json_is_a_lost_response(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const bodies = ["", '{"data": [', '{"data": [], "nextCursor": null}'];
        const answer = (_, response) => {
            response.writeHead(200, { "content-type": "application/json" }).end(bodies.shift() ?? "{");
        };
        const page = await elsewhere.projects.list().firstPage();
        const error = await rejection(elsewhere.projects.list().firstPage());
        print([page.data, error instanceof ConnectionFailedError, error.message]);
        server.close();
    """
    )
    message = "GET /api/v1/projects: the response was incomplete"
    assert await package.result_of(program, served.url, "svc_live_x") == [[], True, message]


async def test_page_of_another_service_is_no_result(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const answers = [
            (response) => response.writeHead(200, { "content-type": "text/html" }).end("<h1>Welcome"),
            (response) => response.writeHead(204).end(),
            (response) => response.writeHead(302, { location: baseUrl }).end(),
            (response) => response.writeHead(404, { "content-type": "text/html" }).end("<h1>\\u0000Nothing\\nhere"),
        ];
        let answer;
        const errors = [];
        for (const one of answers) {
            answer = (_, response) => one(response);
            errors.push(await rejection(elsewhere.projects.list().firstPage()));
        }
        print(errors.map((error) => [error.name, error.message]));
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        ["UnreadableAnswerError", "The response (200, text/html) is not one of tenantry."],
        ["UnreadableAnswerError", "The response (204, no type) is not one of tenantry."],
        ["APIError", "302 http_302: The response gives no reason."],
        ["APIError", "404 http_404: <h1> Nothing here"],
    ]


async def test_creation_is_repeated_with_one_key_while_the_lost_attempt_still_runs(
    package: Package, served: Served
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const keys = [];
        const body = { status: 409, code: "idempotency_in_flight", detail: "Wait.", requestId: "r" };
        const answers = [
            (request) => request.socket.destroy(),
            ...Array(4).fill((_, response) => response.writeHead(409).end(JSON.stringify(body))),
            (_, response) => response.writeHead(201, { "content-type": "application/json" }).end('{"id":"proj_1"}'),
        ];
        const answer = (request, response) => {
            keys.push(request.headers["idempotency-key"]);
            answers.shift()(request, response);
        };
        const { id } = await elsewhere.projects.create({ name: "x" });
        print([id, keys.length, new Set(keys).size]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == ["proj_1", 6, 1]


async def test_call_is_not_retried_when_it_would_end_before_retry_after(
    package: Package, served: Served
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const values = ["3600", "999999999", new Date(Date.now() + 3600_000).toUTCString()];
        let asked = 0;
        const answer = (_, response) => response.writeHead(503, { "retry-after": values[asked++] }).end();
        const errors = [];
        for (const _ of values) errors.push(await rejection(elsewhere.projects.list().firstPage()));
        print([asked, errors.map(({ code, retryAfter }) => [code, retryAfter > 3000])]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        3,
        [["http_503", True]] * 3,
    ]


async def test_verify_passes_the_rate_limit_on(package: Package, served: Served) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const policy = { "ratelimit": '"tenant";r=0;t=7', "ratelimit-policy": '"tenant";q=600;w=60' };
        const told = { "retry-after": "7", ...policy, "set-cookie": "x" };
        const body = JSON.stringify({ status: 429, code: "rate_limited", detail: "Wait.", requestId: "r" });
        const answer = (_, response) => response.writeHead(429, told).end(body);
        const { statusCode, headersToPassOn } = await rejection(elsewhere.auth.verify(request(apiKey), null));
        print([statusCode, headersToPassOn]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        429,
        {
            "Cache-Control": "no-store",
            "Retry-After": "7",
            "RateLimit": '"tenant";r=0;t=7',
            "RateLimit-Policy": '"tenant";q=600;w=60',
        },
    ]


async def test_verify_returns_the_caller_until_its_key_is_revoked(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { orgId } = await tenantry.auth.whoami();
        const key = await tenantry.apiKeys.create({ orgId, name: "x", scopes: ["reports:read"] });
        const gateway = new Tenantry({ baseUrl });
        const of = new Headers(request(key.secret.reveal()).headers);
        const asked = { headers: { get: (name) => of.get(name) } }; // as Headers of another realm
        const caller = await gateway.auth.verify(asked, "reports:read");
        const forbidden = await rejection(gateway.auth.verify(request(key.secret.reveal()), "reports:write"));
        await tenantry.apiKeys.delete({ keyId: key.id });
        const revoked = await rejection(gateway.auth.verify(request(key.secret.reveal()), null));
        const told = [forbidden, revoked].map((error) =>
            [error.statusCode, error.code, error.headersToPassOn["WWW-Authenticate"]]);
        print([{ ...caller, id: caller.id === key.id }, ...told]);
    """
    caller, forbidden, revoked = await package.result_of(program, served.url, key_of(acme))
    assert caller == {
        "orgId": acme.id,
        "id": True,
        "kind": "api_key",
        "mode": "live",
        "plan": "free",
        "subscriptionStatus": "none",
        "access": "none",
        "effectivePlan": "free",
    }
    assert forbidden[:2] == [403, "insufficient_scope"]
    assert 'scope="reports:write"' in forbidden[2]
    assert revoked[:2] == [401, "api_key_revoked"]
    assert 'error="invalid_token"' in revoked[2]


async def test_verify_rejects_what_is_no_single_valid_credential(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const values = [undefined, "", "Bearer", "Bearer svc_live_x", "Bearer \\u00e9", "Bearer \\u0100",
            "Bearer a\\nb", [`Bearer ${apiKey}`, `Bearer ${apiKey}`], `Basic ${apiKey}`];
        const codes = [];
        for (const authorization of values) {
            const error = await rejection(tenantry.auth.verify({ headers: { authorization } }, null));
            codes.push([error.statusCode, error.code]);
        }
        const doubled = new Headers(request(apiKey).headers);
        doubled.append("authorization", `Bearer ${apiKey}`);
        codes.push([(await rejection(tenantry.auth.verify({ headers: doubled }, null))).statusCode]);
        print(codes);
    """
    codes = await package.result_of(program, served.url, key_of(acme))
    assert codes[0] == [401, "missing_credential"]
    assert {status for status, *_ in codes} == {401}


async def test_verify_takes_the_organization_that_the_request_names(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const naming = (name) => ({ headers: { ...request(apiKey).headers, "x-organization-id": name } });
        const names = ["another", "\\u00e9", ["a", "b"]];
        const errors = await Promise.all(names.map((name) => rejection(tenantry.auth.verify(naming(name), null))));
        print(errors.map(({ code }) => code));
    """
    token = str(served.service.user("ada", org=acme.id, role="owner").credential)
    assert await package.result_of(program, served.url, token) == ["org_mismatch"] * 3


async def test_verify_accepts_test_keys_only_where_it_is_told_to(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const modes = [undefined, "live", "test", "any"];
        print(await Promise.all(modes.map(async (mode) => {
            const answer = tenantry.auth.verify(request(apiKey), null, { mode });
            return (await rejection(answer))?.code ?? (await answer).mode;
        })));
    """
    key = await key_with(acme, "reports:read", mode="test")
    assert await package.result_of(program, served.url, key) == [
        "mode_mismatch",
        "mode_mismatch",
        "test",
        "test",
    ]


async def test_verify_takes_scopes_only(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const scopes = ["", "-", "..", "../whoami", "a:b/../../whoami", "a:b?x", "A:b", "-/mode/any"];
        const check = (...options) => rejection(tenantry.auth.verify(request(apiKey), ...options));
        const errors = await Promise.all(scopes.map((scope) => check(scope)));
        errors.push(await check(null, { mode: "../../x:y" }));
        print(errors.map(({ name }) => name));
    """
    assert await package.result_of(program, served.url, key_of(acme)) == ["TypeError"] * 9


async def test_verify_finds_the_header_in_any_case(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const capital = { Authorization: `Bearer ${apiKey}` };
        const twice = { ...capital, ...request(apiKey).headers };
        print([(await tenantry.auth.verify({ headers: capital }, null)).orgId,
            (await rejection(tenantry.auth.verify({ headers: twice }, null))).statusCode]);
    """
    assert await package.result_of(program, served.url, key_of(acme)) == [acme.id, 401]


async def test_verify_rejects_when_tenantry_is_unreachable(
    package: Package, served: Served, acme: Organization, nowhere: str
) -> None:
    program = """
        const error = await rejection(tenantry.auth.verify(request(apiKey), null, { timeout: 300 }));
        print([error.statusCode, error.code, JSON.parse(error.content).status, error.headersToPassOn["Retry-After"]]);
    """
    expected = [503, "auth_unavailable", 503, "1"]
    assert await package.result_of(program, nowhere, key_of(acme)) == expected
    lost = (Fault.RESET_AFTER, Fault.TRUNCATED_HEAD, Fault.GARBAGE)
    for fault in (Fault.SILENT, Fault.UNAVAILABLE_AFTER, *lost):
        async with faulty_proxy(served.url, lambda fault=fault: fault) as (url, proxy):  # type: ignore[misc]
            assert await package.result_of(program, url, key_of(acme)) == expected, fault
        assert len(proxy.met) == (2 if fault in lost else 1)


async def test_verify_retries_a_lost_connection_once(
    package: Package, served: Served, acme: Organization
) -> None:
    faults = iter([Fault.RESET_BEFORE, Fault.NONE])
    async with faulty_proxy(served.url, lambda: next(faults)) as (url, proxy):
        program = "print((await tenantry.auth.verify(request(apiKey), null)).orgId);"
        assert await package.result_of(program, url, key_of(acme)) == acme.id
    assert len(proxy.met) == 2


async def test_verify_rejects_when_another_server_answers(
    package: Package, served: Served, acme: Organization
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const names = ["tenant-id", "principal-id", "principal-kind", "mode", "plan", "subscription-status", "access",
            "effective-plan"];
        const identity = Object.fromEntries(names.map((name) => [`x-${name}`, "x"]));
        const answers = [[200, {}], [200, { "x-tenant-id": "acme" }], [204, identity], [201, identity],
            [302, { location: "/granted" }], [307, { ...identity, location: "/granted" }],
            [401, {}], [404, {}], [500, {}]];
        let answer;
        const codes = [];
        for (const [status, headers] of answers) {
            answer = ({ url }, response) => {
                const granted = url === "/granted"; // where a redirect leads
                response.writeHead(granted ? 200 : status, granted ? identity : headers).end();
            };
            codes.push((await rejection(elsewhere.auth.verify(request(apiKey), null)))?.code);
        }
        answer = (_, response) => response.writeHead(200, identity).end();
        print([codes, (await elsewhere.auth.verify(request(apiKey), null)).orgId]);
        server.close();
    """
    )
    codes, accepted = await package.result_of(program, served.url, key_of(acme))
    assert codes == ["auth_unavailable"] * 9
    assert accepted == "x"  # what is rejected above is not the identity


@asynccontextmanager
async def express_service(package: Package, base_url: str) -> AsyncIterator[str]:
    """The example's address, while it runs."""
    shutil.copy(EXAMPLE, package.folder / "server.js")
    process = await asyncio.create_subprocess_exec(
        node(),
        "server.js",
        cwd=package.folder,
        env={"TENANTRY_BASE_URL": base_url, "PORT": "0"},
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.communicate()


async def test_express_example_lets_only_callers_with_the_scope_in(
    package: Package, served: Served, acme: Organization, nowhere: str
) -> None:
    reader = await served.service.key(acme.owner, acme.id, "reports:read")
    other = await served.service.key(acme.owner, acme.id, "projects:read")
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def ask(url: str, credential: str | None) -> httpx2.Response:
            return await client.get(
                url, headers={"Authorization": f"Bearer {credential}"} if credential else {}
            )

        async with express_service(package, served.url) as url:
            assert (await ask(url, reader.caller.credential)).json() == {
                "tenant": acme.id,
                "reports": [],
            }
            missing = await ask(url, None)
            assert missing.headers["www-authenticate"] == 'Bearer realm="api"'
            assert missing.headers["content-type"].startswith("application/problem+json")
            assert missing.json()["code"] == "missing_credential"
            assert (await ask(url, other.caller.credential)).json()["code"] == "insufficient_scope"
            two = [
                ("Authorization", f"Bearer {caller.credential}")
                for caller in (reader.caller, other.caller)
            ]
            assert (await client.get(url, headers=two)).json()["code"] == "invalid_credential"
            await acme.owner.delete(reader.path)
            assert (await ask(url, reader.caller.credential)).json()["code"] == "api_key_revoked"
        async with express_service(package, nowhere) as url:
            unavailable = await ask(url, other.caller.credential)
            assert (unavailable.status_code, unavailable.headers["retry-after"]) == (503, "1")


GOOD: Final = """
import type { ApiKey, NewApiKey, Principal, Project } from "@tenantry/client";
import { APIError, Tenantry, webhooks } from "@tenantry/client";

export async function use(tenantry: Tenantry, request: Request): Promise<string> {
  const made: NewApiKey = await tenantry.apiKeys.create({ orgId: "acme", name: "CI", scopes: ["projects:read"] });
  const secret: string = made.secret.reveal();
  const ends: string | null = made.expiresAt;
  for await (const key of tenantry.apiKeys.list({ status: "active" })) {
    const { id }: ApiKey = key;
    await tenantry.apiKeys.rotate({ keyId: id, overlapSeconds: 60 });
  }
  await tenantry.apiKeys.reportLeak({ secret: made.secret });
  const { data } = await tenantry.projects.list({ limit: 50 }, { signal: request.signal }).firstPage();
  const projects: Project[] = data;
  const caller: Principal = await tenantry.auth.verify(request, "reports:read", { mode: "any" });
  const event = await webhooks.verify(await request.text(), request.headers, [made.secret, "whsec_old"]);
  return `${secret} ${ends} ${projects.length} ${caller.orgId} ${event.type}`;
}

export const reason = (error: unknown): string | undefined =>
  error instanceof APIError ? (error.errors[0]?.message ?? error.code) : undefined;
"""


MISTAKES: Final = [
    ('name: "CI"', 'name: "CI", nmae: "x"', "TS2353"),
    ('name: "CI", ', "", "TS2345"),
    ('status: "active"', 'status: "gone"', "TS2322"),
    ("const ends: string | null", "const ends: string", "TS2322"),
    ("keyId: id, ", "", "TS2345"),
    ('mode: "any"', 'mode: "all"', "TS2322"),
    ("caller.orgId", "caller.tenantId", "TS2339"),
    ("made.secret.reveal()", "made.secret", "TS2322"),
    (".firstPage()", "", "TS2339"),
]
"""What a user writes instead of a part of `GOOD`, and the error that it is."""


def test_types_accept_a_correct_program_and_reject_mistakes(package: Package) -> None:
    programs = [GOOD, *(GOOD.replace(right, wrong) for right, wrong, _ in MISTAKES)]
    accepted, *rejected = package.complaints(programs, "--strict", "--exactOptionalPropertyTypes")
    assert accepted == ""
    for (_, wrong, code), complaint in zip(MISTAKES, rejected, strict=True):
        assert re.findall(r"error (TS\d+)", complaint) == [code], (wrong, complaint)


def test_examples_of_the_readme_compile(package: Package) -> None:
    blocks = re.findall(r"```ts\n(.*?)```", (SOURCE / "README.md").read_text("utf-8"), re.DOTALL)
    assert package.complaints(blocks, "--strict", "--skipLibCheck", "--types", "node") == [
        ""
    ] * len(blocks)


async def test_a_page_of_the_services_origin_can_use_it(
    package: Package, served: Served, acme: Organization, browser: Browser
) -> None:
    async def serve(route: Route) -> None:
        file = package.client / "dist" / route.request.url.partition("/client/")[2]
        await route.fulfill(path=file, content_type="text/javascript")

    context = await browser.new_context()
    page = await context.new_page()
    await page.route("**/client/**", serve)
    await page.goto(f"{served.url}/healthz")
    names = await page.evaluate(
        """async (apiKey) => {
            const { Tenantry, webhooks } = await import("/client/index.js");
            const tenantry = new Tenantry({ baseUrl: location.origin, apiKey });
            const body = '{"type": "x", "data": {}}';
            const headers = new Headers({ "Provider-Signature": await webhooks.sign(body, "whsec_x") });
            await webhooks.verify(body, headers, ["whsec_y", "whsec_x"]);
            await tenantry.projects.create({ name: "Zoë" });
            const names = [];
            for await (const { name } of tenantry.projects.list()) names.push(name);
            return names;
        }""",
        key_of(acme),
    )
    await context.close()
    assert names == ["Zoë"]
