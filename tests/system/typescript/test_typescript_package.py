"""The TypeScript client's package: its files, types and README, and programs that import it."""

import asyncio
import json
import re
from asyncio.subprocess import PIPE
from typing import Final

from playwright.async_api import Browser, Route

import tenantry_sdk
from tenantry import __version__
from tests.sdk.sdk_support import Served
from tests.support.required import node
from tests.support.service import Organization
from tests.support.typescript_client import ROOT, SOURCE, Package, key_of


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
    of_the_client = {"tenant", "withOptions", "request"}
    assert set(await package.result_of(program, served.url)) - of_the_client == {
        name for name in listed if name[0].islower()
    }


def test_examples_of_the_readme_compile(package: Package) -> None:
    blocks = re.findall(r"```ts\n(.*?)```", (SOURCE / "README.md").read_text("utf-8"), re.DOTALL)
    assert package.complaints(blocks, "--strict", "--skipLibCheck", "--types", "node") == [
        ""
    ] * len(blocks)


def test_types_have_the_names_of_the_python_sdk(package: Package) -> None:
    declared = (package.client / "dist" / "generated" / "types.gen.d.ts").read_text("utf-8")
    models = {
        name
        for name, value in vars(tenantry_sdk).items()
        if isinstance(value, type) and issubclass(value, tenantry_sdk.Model)
    }
    by_hand = {"Access", "Consumption", "Model", "Page", "Principal", "Health"}
    by_hand |= {model.__name__ for model in tenantry_sdk.ChangeEvent.__subclasses__()}
    by_hand.add("ChangeEvent")
    assert {name for name in models - by_hand if f"export type {name} = " not in declared} == set()


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
  for await (const event of tenantry.operator.events.follow({ types: "tenant.*" })) {
    if (event.type === "tenant.ended") return event.data.ownerEmail;
  }
  const caller: Principal = await tenantry.auth.verify(request, "reports:read", { mode: "any" });
  const event = await webhooks.unwrap(await request.clone().text(), request.headers, [made.secret, "whsec_old"]);
  const billing = await webhooks.verifyProviderEvent(await request.text(), request.headers, made.secret);
  return `${secret} ${ends} ${projects.length} ${caller.orgId} ${caller.access.state} ${event.orgId} ${billing.type}`;
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
    ("data.ownerEmail", "data.last4", "TS2339"),
]
"""What a user writes instead of a part of `GOOD`, and the error that it is."""


def test_types_accept_a_correct_program_and_reject_mistakes(package: Package) -> None:
    programs = [GOOD, *(GOOD.replace(right, wrong) for right, wrong, _ in MISTAKES)]
    accepted, *rejected = package.complaints(programs, "--strict", "--exactOptionalPropertyTypes")
    assert accepted == ""
    for (_, wrong, code), complaint in zip(MISTAKES, rejected, strict=True):
        assert re.findall(r"error (TS\d+)", complaint) == [code], (wrong, complaint)


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
            const headers = new Headers({ "Provider-Signature": await webhooks.signProviderEvent(body, "whsec_x") });
            await webhooks.verifyProviderEvent(body, headers, ["whsec_y", "whsec_x"]);
            await tenantry.projects.create({ name: "Zoë" });
            const names = [];
            for await (const { name } of tenantry.projects.list()) names.push(name);
            return names;
        }""",
        key_of(acme),
    )
    await context.close()
    assert names == ["Zoë"]
