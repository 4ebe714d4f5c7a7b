"""The TypeScript client: its package, and programs that use it against the real service."""

import asyncio
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

from tenantry import __version__
from tests.sdk.faulty_proxy import Fault, faulty_proxy
from tests.sdk.support import Served, serving
from tests.support.postgres import PostgresServer
from tests.support.required import node, npm_dependency
from tests.support.service import KEYS, Organization

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "typescript"
EXAMPLE: Final = ROOT / "examples" / "express" / "server.js"
DOCUMENT: Final = Path("tests/contract/openapi.json")
PRELUDE: Final = """
import { ApiError, ConnectionError, paginate, Tenantry, TenantryError, TimeoutError } from "@tenantry/client";

const { BASE_URL: baseUrl, API_KEY: apiKey } = process.env;
const tenantry = new Tenantry({ baseUrl, apiKey });
const print = (value) => console.log(JSON.stringify(value));
const rejection = async (promise) => { try { await promise; } catch (error) { return error; } };
const request = (key) => ({ headers: { authorization: `Bearer ${key}` } });
"""
LOST: Final = [Fault.UNAVAILABLE_BEFORE, Fault.UNAVAILABLE_AFTER, Fault.RESET_AFTER, Fault.TRUNCATED]
ELSEWHERE: Final = """
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
            node(), "--input-type=module", "--eval", PRELUDE + program,
            cwd=self.folder, env={"BASE_URL": base_url, "API_KEY": key or ""}, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
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
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert [line for line in lines if not line.startswith((*names, " "))] == []
        return ["".join(line for line in lines if line.startswith(name)) for name in names]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The client, built and packed in a copy of its folder."""
    tools = npm_dependency(SOURCE, "typescript").parent
    work = tmp_path_factory.mktemp("package")
    source, user = work / "typescript", work / "user of it"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("node_modules", "dist", "generated"))
    (source / "node_modules").symlink_to(tools)
    (work / DOCUMENT.parent).mkdir(parents=True)
    shutil.copy(ROOT / DOCUMENT, work / DOCUMENT)
    packed = subprocess.run(["npm", "pack", "--silent"], cwd=source, capture_output=True, text=True, check=False)
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
    made = await organization.owner.post(KEYS, {"orgId": organization.id, "name": "k", "scopes": scopes, **fields})
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
    assert {file.name for file in package.client.iterdir()} == {"LICENSE", "README.md", "dist", "package.json"}
    files = {str(file.relative_to(package.client / "dist")) for file in (package.client / "dist").rglob("*.*")}
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
        const list = (page) => tenantry.apiKeys.list({ orgId, limit: 2, ...page });
        for await (const key of paginate(list)) listed.push(key);
        const rotated = await tenantry.apiKeys.rotate({ keyId: listed[0].id, overlapSeconds: 60 });
        const caller = new Tenantry({ baseUrl, apiKey: () => Promise.resolve(`${rotated.secret}\\n`) });
        const before = await caller.projects.list();
        await tenantry.apiKeys.delete({ keyId: rotated.id });
        const { status, code } = await rejection(caller.projects.list());
        const isOfFirst = rotated.rotatedFrom === listed[0].id;
        print({ names: listed.map(({ name }) => name), isOfFirst, before, status, code });
    """
    assert await package.result_of(program, served.url, key_of(acme)) == {
        "names": ["last", "🔑", "a/b?c", "名前", "Zoë", "key"],
        "isOfFirst": True,
        "before": {"data": [], "nextCursor": None},
        "status": 401,
        "code": "api_key_revoked",
    }


async def test_rejection_is_an_error_with_the_problem_document(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const error = await rejection(tenantry.projects.create({ name: "" }));
        print({ typed: error instanceof ApiError && error instanceof TenantryError, ...error, text: error.message });
    """
    error = await package.result_of(program, served.url, key_of(acme))
    assert error["typed"]
    assert (error["status"], error["code"]) == (422, "validation_failed")
    assert error["problem"]["type"] == "urn:tenantry:problem:validation_failed"
    assert [fault["location"] for fault in error["problem"]["errors"]] == ["name"]
    assert error["requestId"] == error["problem"]["requestId"]
    assert error["requestId"] in error["text"]


async def test_readme_lists_every_method(package: Package, served: Served) -> None:
    program = """
        const methods = (name, object) => {
            const parts = Object.getOwnPropertyDescriptors(Object.getPrototypeOf(object));
            delete parts.constructor;
            return Object.entries(parts).flatMap(([part, { get }]) =>
                get ? methods([...name, part], object[part]) : [[...name, part]]);
        };
        print(methods([], Object.getPrototypeOf(tenantry)).map((parts) => parts.join(".")));
    """
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (SOURCE / "README.md").read_text("utf-8"), re.MULTILINE)
    listed = {f"{group}.{name}" for group, names in rows for name in re.findall(r"`([\w.]+)`", names)}
    assert set(await package.result_of(program, served.url)) == {name for name in listed if name[0].islower()}


async def test_audit_trail_is_exported_as_text(package: Package, served: Served, acme: Organization) -> None:
    exported = await package.result_of("print(await tenantry.auditEvents.export());", served.url, key_of(acme))
    assert [json.loads(line)["action"] for line in exported.splitlines()] == ["api_key.created", "tenant.created"]


async def test_credential_is_in_no_output(package: Package, served: Served, acme: Organization) -> None:
    program = """
        import { inspect } from "node:util";

        const shown = (value) => inspect(value, { depth: Infinity, showHidden: true });
        const broken = new Tenantry({ baseUrl, apiKey: `${apiKey}\\u0100 x` });
        const failed = [broken.projects.list(), tenantry.projects.get({ projectId: "x" })].map(rejection);
        print([tenantry, ...(await Promise.all(failed))].map(shown));
    """
    key = key_of(acme)
    texts = await package.result_of(program, served.url, key)
    assert [text for text in texts if key[12:] in text] == []
    assert "apiKey is not a credential" in texts[1]


@pytest.mark.parametrize(
    "address", ["http://accounts.example.com", "https://user:word@accounts.example.com", "ftp://x", "accounts", ""]
)
async def test_credentials_go_to_safe_addresses_only(package: Package, address: str) -> None:
    with pytest.raises(AssertionError, match="baseUrl"):
        await package.result_of("", address, "svc_live_x")


async def test_ids_stay_within_their_part_of_the_path(package: Package, served: Served, acme: Organization) -> None:
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
        const { data } = await tenantry.projects.list();
        await tenantry.projects.delete({ projectId: created.id });
        print(data.map(({ id }) => id === created.id));
    """
    async with faulty_proxy(served.url, lambda: next(faults, Fault.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [True]


@pytest.mark.parametrize("fault", [Fault.RESET_AFTER, Fault.UNAVAILABLE_AFTER], ids=lambda fault: fault.name)
async def test_deletion_succeeds_when_the_response_to_the_first_attempt_is_lost(
    package: Package, served: Served, acme: Organization, fault: Fault
) -> None:
    faults = iter([Fault.NONE, fault])
    program = """
        const { id } = await tenantry.projects.create({ name: "x" });
        await tenantry.projects.delete({ projectId: id });
        print((await tenantry.projects.list()).data);
    """
    async with faulty_proxy(served.url, lambda: next(faults, Fault.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == []


async def test_lost_secret_is_reported_with_the_id_of_its_key(
    package: Package, served: Served, acme: Organization
) -> None:
    faults = iter([Fault.RESET_AFTER])
    program = """
        const key = { orgId: ORG, name: "x", scopes: ["a:b"] };
        const { code, problem, idempotencyKey } = await rejection(tenantry.apiKeys.create(key));
        const { status } = await tenantry.apiKeys.get({ keyId: problem.id });
        print([code, status, typeof idempotencyKey]);
    """.replace("ORG", json.dumps(acme.id))
    async with faulty_proxy(served.url, lambda: next(faults, Fault.NONE)) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == ["idempotency_replay", "active", "string"]


async def test_change_is_sent_once(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const error = await rejection(tenantry.tenants.update({ tenantId: "x", name: "x" }));
        print([error instanceof ApiError, error.code, error.retryAfter]);
    """
    async with faulty_proxy(served.url, lambda: Fault.UNAVAILABLE_BEFORE) as (url, proxy):
        assert await package.result_of(program, url, key_of(acme)) == [True, "http_503", 0]
    assert len(proxy.met) == 1


async def test_retries_are_limited(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const error = await rejection(new Tenantry({ baseUrl, apiKey, retries: 1 }).projects.list());
        print([error instanceof ConnectionError, error instanceof TimeoutError]);
    """
    async with faulty_proxy(served.url, lambda: Fault.RESET_BEFORE) as (url, proxy):
        assert await package.result_of(program, url, key_of(acme)) == [True, False]
    assert len(proxy.met) == 2


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.SLOW_HEAD, Fault.SLOW_BODY], ids=lambda fault: fault.name)
@pytest.mark.parametrize("limit", ["timeout: 200", "attemptTimeout: 200, retries: 1"])
async def test_slow_response_times_out(
    package: Package, served: Served, acme: Organization, fault: Fault, limit: str
) -> None:
    program = f"""
        const error = await rejection(new Tenantry({{ baseUrl, apiKey, {limit} }}).projects.list());
        print([error instanceof TimeoutError, error instanceof ConnectionError]);
    """
    async with faulty_proxy(served.url, lambda: fault) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == [True, True]


async def test_caller_can_cancel_a_call(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const controller = new AbortController();
        const call = rejection(tenantry.projects.list({}, { signal: controller.signal }));
        controller.abort(new Error("enough"));
        print((await call).message);
    """
    async with faulty_proxy(served.url, lambda: Fault.SILENT) as (url, _):
        assert await package.result_of(program, url, key_of(acme)) == "enough"


async def test_incomplete_json_is_a_lost_response(package: Package, served: Served) -> None:
    program = (
        ELSEWHERE
        + """
        const bodies = ["", '{"data": [', '{"data": [], "nextCursor": null}'];
        const answer = (_, response) => {
            response.writeHead(200, { "content-type": "application/json" }).end(bodies.shift() ?? "{");
        };
        const page = await elsewhere.projects.list();
        const error = await rejection(elsewhere.projects.list());
        print([page.data, error instanceof ConnectionError, error.message]);
        server.close();
    """
    )
    message = "GET /api/v1/projects: the response was incomplete"
    assert await package.result_of(program, served.url, "svc_live_x") == [[], True, message]


async def test_page_of_another_service_is_no_result(package: Package, served: Served) -> None:
    program = (
        ELSEWHERE
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
            errors.push(await rejection(elsewhere.projects.list()));
        }
        print(errors.map((error) => [error.name, error.message]));
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        ["TenantryError", "The response (200, text/html) is not one of tenantry."],
        ["TenantryError", "The response (204, no type) is not one of tenantry."],
        ["ApiError", "302 http_302: The response gives no reason."],
        ["ApiError", "404 http_404: <h1> Nothing here"],
    ]


async def test_creation_is_repeated_with_one_key_while_the_lost_attempt_still_runs(
    package: Package, served: Served
) -> None:
    program = (
        ELSEWHERE
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


async def test_call_is_not_retried_when_it_would_end_before_retry_after(package: Package, served: Served) -> None:
    program = (
        ELSEWHERE
        + """
        const values = ["3600", "999999999", new Date(Date.now() + 3600_000).toUTCString()];
        let asked = 0;
        const answer = (_, response) => response.writeHead(503, { "retry-after": values[asked++] }).end();
        const errors = [];
        for (const _ of values) errors.push(await rejection(elsewhere.projects.list()));
        print([asked, errors.map(({ code, retryAfter }) => [code, retryAfter > 3000])]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [3, [["http_503", True]] * 3]


async def test_verify_passes_the_rate_limit_on(package: Package, served: Served) -> None:
    program = (
        ELSEWHERE
        + """
        const policy = { "ratelimit": '"tenant";r=0;t=7', "ratelimit-policy": '"tenant";q=600;w=60' };
        const told = { "retry-after": "7", ...policy, "set-cookie": "x" };
        const body = JSON.stringify({ status: 429, code: "rate_limited", detail: "Wait.", requestId: "r" });
        const answer = (_, response) => response.writeHead(429, told).end(body);
        const { status, headers } = await rejection(elsewhere.verify(request(apiKey), "-"));
        print([status, headers]);
        server.close();
    """
    )
    assert await package.result_of(program, served.url, "svc_live_x") == [
        429,
        {"retry-after": "7", "ratelimit": '"tenant";r=0;t=7', "ratelimit-policy": '"tenant";q=600;w=60'},
    ]


async def test_verify_returns_the_caller_until_its_key_is_revoked(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { orgId } = await tenantry.auth.whoami();
        const key = await tenantry.apiKeys.create({ orgId, name: "x", scopes: ["reports:read"] });
        const gateway = new Tenantry({ baseUrl });
        const of = new Headers(request(key.secret).headers);
        const asked = { headers: { get: (name) => of.get(name) } }; // as Headers of another realm
        const caller = await gateway.verify(asked, "reports:read");
        const forbidden = await rejection(gateway.verify(request(key.secret), "reports:write"));
        await tenantry.apiKeys.delete({ keyId: key.id });
        const revoked = await rejection(gateway.verify(request(key.secret), "-"));
        const told = [forbidden, revoked].map((error) => [error.status, error.code, error.headers["www-authenticate"]]);
        print([{ ...caller, principalId: caller.principalId === key.id }, ...told]);
    """
    caller, forbidden, revoked = await package.result_of(program, served.url, key_of(acme))
    assert caller == {
        "tenantId": acme.id, "principalId": True, "principalKind": "api_key", "mode": "live", "plan": "free",
        "subscriptionStatus": "none", "access": "none", "effectivePlan": "free",
    }  # fmt: skip
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
            const error = await rejection(tenantry.verify({ headers: { authorization } }, "-"));
            codes.push([error.status, error.code]);
        }
        const doubled = new Headers(request(apiKey).headers);
        doubled.append("authorization", `Bearer ${apiKey}`);
        codes.push([(await rejection(tenantry.verify({ headers: doubled }, "-"))).status]);
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
        const errors = await Promise.all(names.map((name) => rejection(tenantry.verify(naming(name), "-"))));
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
            const answer = tenantry.verify(request(apiKey), "-", { mode });
            return (await rejection(answer))?.code ?? (await answer).mode;
        })));
    """
    key = await key_with(acme, "reports:read", mode="test")
    assert await package.result_of(program, served.url, key) == ["mode_mismatch", "mode_mismatch", "test", "test"]


async def test_verify_takes_scopes_only(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const scopes = ["", "..", "../whoami", "a:b/../../whoami", "a:b?x", "A:b", "-/mode/any"];
        const errors = await Promise.all(scopes.map((scope) => rejection(tenantry.verify(request(apiKey), scope))));
        errors.push(await rejection(tenantry.verify(request(apiKey), "-", { mode: "../../x:y" })));
        print(errors.map(({ name }) => name));
    """
    assert await package.result_of(program, served.url, key_of(acme)) == ["TypeError"] * 8


async def test_verify_finds_the_header_in_any_case(package: Package, served: Served, acme: Organization) -> None:
    program = """
        const capital = { Authorization: `Bearer ${apiKey}` };
        const twice = { ...capital, ...request(apiKey).headers };
        print([(await tenantry.verify({ headers: capital }, "-")).tenantId,
            (await rejection(tenantry.verify({ headers: twice }, "-"))).status]);
    """
    assert await package.result_of(program, served.url, key_of(acme)) == [acme.id, 401]


async def test_verify_rejects_when_tenantry_is_unreachable(
    package: Package, served: Served, acme: Organization, nowhere: str
) -> None:
    program = """
        const error = await rejection(tenantry.verify(request(apiKey), "-", { timeout: 300 }));
        print([error.status, error.code, error.problem.status, error.headers["retry-after"]]);
    """
    expected = [503, "auth_unavailable", 503, "1"]
    assert await package.result_of(program, nowhere, key_of(acme)) == expected
    lost = (Fault.RESET_AFTER, Fault.TRUNCATED_HEAD, Fault.GARBAGE)
    for fault in (Fault.SILENT, Fault.UNAVAILABLE_AFTER, *lost):
        async with faulty_proxy(served.url, lambda fault=fault: fault) as (url, proxy):  # type: ignore[misc]
            assert await package.result_of(program, url, key_of(acme)) == expected, fault
        assert len(proxy.met) == (2 if fault in lost else 1)


async def test_verify_retries_a_lost_connection_once(package: Package, served: Served, acme: Organization) -> None:
    faults = iter([Fault.RESET_BEFORE, Fault.NONE])
    async with faulty_proxy(served.url, lambda: next(faults)) as (url, proxy):
        program = 'print((await tenantry.verify(request(apiKey), "-")).tenantId);'
        assert await package.result_of(program, url, key_of(acme)) == acme.id
    assert len(proxy.met) == 2


async def test_verify_rejects_when_another_server_answers(package: Package, served: Served, acme: Organization) -> None:
    program = (
        ELSEWHERE
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
            codes.push((await rejection(elsewhere.verify(request(apiKey), "-")))?.code);
        }
        answer = (_, response) => response.writeHead(200, identity).end();
        print([codes, (await elsewhere.verify(request(apiKey), "-")).tenantId]);
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
        node(), "server.js", cwd=package.folder, env={"TENANTRY_BASE_URL": base_url, "PORT": "0"}, stdout=PIPE
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
            return await client.get(url, headers={"Authorization": f"Bearer {credential}"} if credential else {})

        async with express_service(package, served.url) as url:
            assert (await ask(url, reader.caller.credential)).json() == {"tenant": acme.id, "reports": []}
            missing = await ask(url, None)
            assert missing.headers["www-authenticate"] == 'Bearer realm="api"'
            assert missing.headers["content-type"].startswith("application/problem+json")
            assert missing.json()["code"] == "missing_credential"
            assert (await ask(url, other.caller.credential)).json()["code"] == "insufficient_scope"
            two = [("Authorization", f"Bearer {caller.credential}") for caller in (reader.caller, other.caller)]
            assert (await client.get(url, headers=two)).json()["code"] == "invalid_credential"
            await acme.owner.delete(reader.path)
            assert (await ask(url, reader.caller.credential)).json()["code"] == "api_key_revoked"
        async with express_service(package, nowhere) as url:
            unavailable = await ask(url, other.caller.credential)
            assert (unavailable.status_code, unavailable.headers["retry-after"]) == (503, "1")


GOOD: Final = """
import { ApiError, type ApiKey, type Caller, paginate, type Project, Tenantry } from "@tenantry/client";

export async function use(tenantry: Tenantry, request: Request): Promise<string> {
  const made = await tenantry.apiKeys.create({ orgId: "acme", name: "CI", scopes: ["projects:read"] });
  const ends: string | null = made.expiresAt;
  for await (const key of paginate((page) => tenantry.apiKeys.list({ status: "active", ...page }))) {
    const { id }: ApiKey = key;
    await tenantry.apiKeys.rotate({ keyId: id, overlapSeconds: 60 });
  }
  const projects: Project[] = (await tenantry.projects.list()).data;
  const caller: Caller = await tenantry.verify(request, "reports:read", { mode: "any" });
  return `${made.secret} ${ends} ${projects.length} ${caller.tenantId}`;
}

export const reason = (error: unknown): string | undefined =>
  error instanceof ApiError ? (error.problem.errors?.[0]?.message ?? error.code) : undefined;
"""


MISTAKES: Final = [
    ('name: "CI"', 'name: "CI", nmae: "x"', "TS2353"),
    ('name: "CI", ', "", "TS2345"),
    ('status: "active"', 'status: "gone"', "TS2322"),
    ("const ends: string | null", "const ends: string", "TS2322"),
    ("keyId: id, ", "", "TS2345"),
    ('mode: "any"', 'mode: "all"', "TS2322"),
    ("caller.tenantId", "caller.tenant", "TS2551"),
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
    assert package.complaints(blocks, "--strict", "--skipLibCheck", "--types", "node") == ["", "", ""]


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
            const { paginate, Tenantry } = await import("/client/index.js");
            const tenantry = new Tenantry({ baseUrl: location.origin, apiKey });
            await tenantry.projects.create({ name: "Zoë" });
            const names = [];
            for await (const { name } of paginate((page) => tenantry.projects.list(page))) names.push(name);
            return names;
        }""",
        key_of(acme),
    )
    await context.close()
    assert names == ["Zoë"]
