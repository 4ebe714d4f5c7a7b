"""What snippets and example applications give by plan, feature or access, to tenants of each
standing.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from tenantry.common.clock import system_clock
from tests.sdk.sdk_support import Served, serving
from tests.support import events
from tests.support.catalogs import catalog_file
from tests.support.commands import run
from tests.support.documentation import ROOT, blocks, reader, sections_of
from tests.support.in_process import values_of
from tests.support.postgres import PostgresServer, as_url
from tests.support.required import node
from tests.support.service import VERIFY, ManualClock, Organization, Service
from tests.support.signing import deliver
from tests.support.typescript_client import Package

PLAN: Final = {
    "paid": "team",
    "grace": "team",
    "contract": "team",
    "unpaid": "free",
    "free": "free",
    "suspended": "org_suspended",
}
"""The plan that counts for a tenant of each standing, or the code of the refusal."""
FEATURE: Final = {
    "paid": "given",
    "grace": "given",
    "contract": "given",
    "unpaid": "feature_not_granted",
    "free": "feature_not_granted",
    "suspended": "org_suspended",
}
"""The same for the feature ``sso``, which only the plan ``team`` has."""
RECORDS: Final = {
    "paid": ("team", "active"),
    "grace": ("team", "past_due"),
    "contract": ("free", "canceled"),
    "unpaid": ("team", "unpaid"),
    "free": ("free", "none"),
    "suspended": ("team", "active"),
}
"""The ``plan`` and ``subscriptionStatus`` of each, by which no program may decide."""

UVICORN: Final = ("uvicorn app:app --port 8000", "Uvicorn running")
GUNICORN: Final = ("gunicorn --threads 8 --bind 127.0.0.1:8000 {}", "Listening at")
COMPILED: Final = "{} --module nodenext --skipLibCheck --types node app.ts && node app.js"
RUN: Final = """\
```{language} title="{name}"
{text}
```

<!-- keeps running -->

```sh
{command}
```

```text
{ready}
```
"""
LISTEN: Final = '\napp.listen(8000, "127.0.0.1", () => console.log("listening"));\n'
README: Final = """\
from types import SimpleNamespace

{lines}

def give(credential):
    return reports(SimpleNamespace(headers={{"Authorization": f"Bearer {{credential}}"}}))["plan"]
"""
ASK: Final = """\
import json, sys
from snippet import give
from tenantry_sdk import errors

def given(credential):
    try:
        return give(credential)
    except errors.APIError as error:
        return error.code

print(json.dumps([given(credential) for credential in sys.argv[1:]]))
"""


class Tenants(NamedTuple):
    """The service at its address, and a tenant of each standing."""

    served: Served
    organizations: Mapping[str, Organization]

    @property
    def keys(self) -> dict[str, str]:
        """The owner's key of each."""
        return {each: str(org.owner.credential) for each, org in self.organizations.items()}

    async def each(self, ask: Callable[[str], Awaitable[object]]) -> dict[str, object]:
        """What a program gives to the owner of each."""
        given = await asyncio.gather(*map(ask, self.keys.values()))
        return dict(zip(self.keys, given, strict=True))


@pytest.fixture(scope="module")
async def tenants(postgres: PostgresServer) -> AsyncIterator[Tenants]:
    catalog = catalog_file(shown("docs/how-to/sell-features.md", "plans.toml"))
    with postgres.database() as conninfo:
        # the applications have the machine's clock
        clock = ManualClock(system_clock())
        async with serving(conninfo, clock, TENANTRY_PLANS=catalog) as served:
            service = served.service
            yield Tenants(served, {each: await organization(service, each) for each in PLAN})


async def organization(service: Service, standing: str) -> Organization:
    """A new tenant of this standing, as the provider's events and the operator make it."""
    org = await service.organization()
    of_tenant: dict[str, Any] = {"customer": f"cus_{org.id}", "subscription_id": f"sub_{org.id}"}
    subscribed: dict[str, Any] = {"org": org.id, "price": "price_team", **of_tenant}
    now = int(service.clock.now.timestamp())
    paid = events.updated(created=now - 2, period_end=now + events.MONTH, **subscribed)
    later: dict[str, list[dict[str, Any]]] = {
        "grace": [events.failed(created=now - 1, **of_tenant)],
        "contract": [events.deleted(created=now - 1, **subscribed)],
        "unpaid": [events.updated(created=now - 1, status="unpaid", **subscribed)],
    }
    sent = [] if standing == "free" else [paid, *later.get(standing, [])]
    for event in sent:
        assert (await deliver(service.client, event, at=now)).text == "OK"
    if standing == "contract":
        terms = {"plan": "team", "reason": "Contract 2027-014"}
        assert (await service.operator.put(f"{org.path}/grants/contract", terms)).is_success
    if standing == "suspended":
        body = {"name": org.id, "ownerEmail": "owner@x.example", "suspended": True}
        assert (await service.operator.put(org.path, body)).is_success
    return org


def shown(page: str, name: str) -> str:
    """The only block of a page with this title, or with this name in its first line."""
    [text] = [
        block.text
        for block in blocks(ROOT / page)
        if block.name == name or block.text.startswith(f"# {name}\n")
    ]
    return text


def with_line(page: str, line: str) -> str:
    """The only block of a page that contains this."""
    [text] = [block.text for block in blocks(ROOT / page) if line in block.text]
    return text


def of_tutorial(name: str) -> str:
    """The parts of a tutorial that make and start its application."""
    page = ROOT / "docs" / "tutorials" / f"{name}.md"
    return sections_of(page, "Write the application", "Run it")


def page_of(text: str, server: tuple[str, str], language: str = "py") -> str:
    """A page that makes and starts an application which the documentation shows without that."""
    command, ready = server
    name = f"app.{language}"
    return RUN.format(language=language, name=name, text=text, command=command, ready=ready)


def of_example(name: str, server: tuple[str, str]) -> str:
    return page_of((ROOT / "examples" / name / "app.py").read_text("utf-8"), server)


def of_guide(name: str) -> str:
    return page_of(shown("docs/how-to/in-process.md", name), UVICORN)


def gunicorn(application: str) -> tuple[str, str]:
    command, ready = GUNICORN
    return command.format(application), ready


APPLICATIONS: Final[dict[str, tuple[Callable[[], str], str]]] = {
    "tutorials/protect-fastapi": (partial(of_tutorial, "protect-fastapi"), "/reports"),
    "tutorials/protect-flask": (partial(of_tutorial, "protect-flask"), "/reports"),
    "tutorials/protect-django": (partial(of_tutorial, "protect-django"), "/reports"),
    "how-to/in-process, Starlette": (partial(of_guide, "app.py"), "/projects"),
    "how-to/in-process, FastAPI": (partial(of_guide, "api.py"), "/projects"),
    "examples/fastapi": (partial(of_example, "fastapi", UVICORN), "/projects"),
    "examples/flask": (partial(of_example, "flask", gunicorn("app:app")), "/projects"),
    "examples/django": (partial(of_example, "django", gunicorn("app:application")), "/projects"),
}
"""How each application in Python is made and started, and its path that answers with the plan."""


@asynccontextmanager
async def application(
    page: str, tenants: Tenants, folder: Path
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the application that this page makes and starts, beside the service."""
    home, place = folder / "home", folder / "application"
    home.mkdir()
    (place / ".tenantry").mkdir(parents=True, exist_ok=True)
    (home / "page.md").write_text(page, "utf-8")
    values = variables(tenants)
    demo = {
        "TENANTRY_DEMO_DATABASE_URL": values["DATABASE_URL"],
        "TENANTRY_DEMO_ADDRESS": tenants.served.url,
        **values,
    }
    (place / ".tenantry" / "demo.env").write_text(
        "".join(f"{name}={value}\n" for name, value in demo.items())
    )
    async with reader(place, home, **values) as following:
        await following.follow(home / "page.md")
        async with httpx2.AsyncClient(
            base_url=following.address("8000"), trust_env=False, timeout=30
        ) as client:
            yield client


def variables(tenants: Tenants) -> dict[str, str]:
    """What the programs read in their environment."""
    service = tenants.served.service
    catalog = catalog_file(shown("docs/how-to/sell-features.md", "plans.toml"))
    values = values_of(service, DATABASE_URL=as_url(service.conninfo), TENANTRY_PLANS=catalog)
    return {**values, "TENANTRY_BASE_URL": tenants.served.url}


async def answers(
    client: httpx2.AsyncClient,
    path: str,
    tenants: Tenants,
    given: Callable[[httpx2.Response], object],
) -> dict[str, object]:
    """What an application gives to each tenant, or the code of its refusal."""

    async def ask(key: str) -> object:
        answer = await client.get(path, headers={"Authorization": f"Bearer {key}"})
        return answer.json()["code"] if answer.is_error else given(answer)

    return await tenants.each(ask)


def plan_of(answer: httpx2.Response) -> object:
    return answer.json()["plan"]


def plan_in_headers(answer: httpx2.Response) -> object:
    return answer.headers["x-effective-plan"]


def has_exports(answer: httpx2.Response) -> object:
    return "given" if answer.json() == {"exports": True} else answer.text


async def test_plan_and_status_alone_would_give_something_else(tenants: Tenants) -> None:
    operator = tenants.served.service.operator
    records = {
        standing: (await operator.get(f"{org.path}/export")).json()["tenant"]
        for standing, org in tenants.organizations.items()
    }
    assert {
        standing: (record["plan"], record["subscriptionStatus"])
        for standing, record in records.items()
    } == RECORDS


@pytest.mark.parametrize("name", APPLICATIONS)
async def test_application_gives_the_plan_that_counts(
    name: str, tenants: Tenants, tmp_path: Path
) -> None:
    make, path = APPLICATIONS[name]
    async with application(make(), tenants, tmp_path) as client:
        assert await answers(client, path, tenants, plan_of) == PLAN


async def test_route_of_the_guide_needs_a_feature(tenants: Tenants, tmp_path: Path) -> None:
    route = with_line("docs/how-to/sell-features.md", 'feature="sso"')
    page = page_of(shown("docs/how-to/in-process.md", "api.py") + route, UVICORN)
    async with application(page, tenants, tmp_path) as client:
        assert await answers(client, "/reports", tenants, has_exports) == FEATURE


async def test_gateway_gives_the_plan_that_counts_and_checks_a_feature(tenants: Tenants) -> None:
    client = tenants.served.service.client
    assert await answers(client, f"{VERIFY}-", tenants, plan_in_headers) == PLAN
    path = f"{VERIFY}reports:read/feature:sso"
    assert await answers(client, path, tenants, lambda _: "given") == FEATURE


async def test_application_of_the_tutorial_for_node(
    tenants: Tenants, package: Package, tmp_path: Path
) -> None:
    node()
    in_folder_with_packages(tmp_path, package)
    async with application(of_tutorial("protect-express"), tenants, tmp_path) as client:
        assert await answers(client, "/reports", tenants, plan_of) == PLAN


async def test_application_of_the_readme_for_node(
    tenants: Tenants, package: Package, tmp_path: Path
) -> None:
    node()
    in_folder_with_packages(tmp_path, package)
    text = with_line("typescript/README.md", "auth.verify(").replace(
        "https://accounts.example.com", tenants.served.url
    )
    server = (COMPILED.format(package.tools / ".bin" / "tsc"), "listening")
    async with application(page_of(text + LISTEN, server, "ts"), tenants, tmp_path) as client:
        assert await answers(client, "/reports", tenants, plan_of) == PLAN


def in_folder_with_packages(folder: Path, package: Package) -> None:
    """Let the application of this folder import the client and Express."""
    place = folder / "application"
    place.mkdir()
    (place / "node_modules").symlink_to(package.folder / "node_modules")
    (place / "package.json").write_text('{"type": "module"}')


async def given_by(snippet: str, tenants: Tenants, folder: Path) -> dict[str, Any]:
    """What the function ``give`` of a snippet gives to each caller."""
    (folder / "snippet.py").write_text(snippet)
    (folder / "ask.py").write_text(ASK)
    done = await run(*tenants.keys.values(), folder=folder, module="ask", **variables(tenants))
    assert done.code == 0, done.err
    return dict(zip(tenants.keys, json.loads(done.out), strict=True))


async def test_lines_of_the_readme_give_the_plan_that_counts(
    tenants: Tenants, tmp_path: Path
) -> None:
    lines = with_line("README.md", "auth.verify(").replace(
        "http://127.0.0.1:3001", tenants.served.url
    )
    snippet = README.format(lines=lines)
    assert await given_by(snippet, tenants, tmp_path) == PLAN


async def test_application_that_the_guide_tests_decides_by_access(
    tenants: Tenants, tmp_path: Path
) -> None:
    shop = shown("docs/how-to/testing.md", "shop.py")
    given = await given_by(f"{shop}\n\ngive = may_export\n", tenants, tmp_path)
    assert given == {standing: plan == "team" for standing, plan in PLAN.items()}


async def test_program_of_the_guide_counts_against_the_quota_of_the_plan_that_counts(
    tenants: Tenants, tmp_path: Path
) -> None:
    (tmp_path / "export.py").write_text(shown("docs/how-to/sell-features.md", "export.py"))

    async def export(key: str) -> str:
        values = {**variables(tenants), "TENANTRY_API_KEY": key}
        done = await run("job-1", "2", folder=tmp_path, module="export", **values)
        [refused] = re.findall("org_suspended", done.err)[:1] or [""]
        return done.out.strip() or refused

    left = {"team": "Exported. 998 left.", "free": "Exported. 1 left."}
    assert await tenants.each(export) == {
        standing: left.get(plan, plan) for standing, plan in PLAN.items()
    }
