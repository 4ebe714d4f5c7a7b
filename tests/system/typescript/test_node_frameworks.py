"""The frameworks of docs/how-to/node-frameworks.md, and the Express example."""

from typing import Final

import pytest

from tests.sdk.sdk_support import Served
from tests.support.documentation import block_of
from tests.support.ports import free_port
from tests.support.protected_service import (
    check_outage,
    check_rejections,
    protected_service,
)
from tests.support.required import node, node_package
from tests.support.service import Organization
from tests.support.typescript_client import ROOT, Package, key_of

PAGE: Final = "how-to/node-frameworks.md"
EXPRESS: Final = block_of(PAGE, "import { expressErrorHandler")
FASTIFY: Final = block_of(PAGE, "import { fastifyErrorHandler")
HONO: Final = block_of(PAGE, "import { serve }")
REQUEST: Final = block_of(PAGE, "import { Tenantry, toResponse }")
EXAMPLE: Final = (ROOT / "examples" / "express" / "server.js").read_text("utf-8")
SERVERS: Final = [
    pytest.param(EXPRESS, id="express"),
    pytest.param(FASTIFY, id="fastify"),
    pytest.param(HONO, id="hono"),
    pytest.param(EXAMPLE, id="example"),
]
_FRAMEWORKS: Final = ("@hono", "fastify", "hono")
_SHOWN_PORT: Final = "8000"
HANDLED: Final = """
    const { expressErrorHandler, fastifyErrorHandler, toResponse } = await import("@tenantry/client");
    const thrown = (handler) => { try { handler(); } catch (error) { return error; } };
    let express;
    expressErrorHandler(own, undefined, undefined, (error) => { express = error; });
    const fastify = thrown(() => fastifyErrorHandler(own, undefined, undefined));
    const other = new Error("a bug");
    const unchanged = thrown(() => fastifyErrorHandler(other, undefined, undefined));
    print([own.statusCode, ...[express, fastify].map(({ statusCode, headers, cause }) =>
        statusCode === undefined && headers === undefined && cause === own),
        thrown(() => toResponse(own)) === own, unchanged === other]);
"""
OWN_CREDENTIAL: Final = "const own = await rejection(tenantry.apiKeys.get({ keyId: 'key_1' }));"
"""The service's own credential is wrong."""
UNKNOWN_FEATURE: Final = """
    const own = await rejection(tenantry.auth.verify(request(apiKey), null, { feature: "ssso" }));
"""
"""The service's code has the wrong name of a feature."""


@pytest.fixture(scope="module")
def package_with_frameworks(package: Package) -> Package:
    """The client beside the frameworks."""
    installed = node_package("node_frameworks", "fastify").parent
    for name in _FRAMEWORKS:
        link = package.folder / "node_modules" / name
        if not link.exists():
            link.symlink_to(installed / name)
    return package


@pytest.mark.parametrize("program", SERVERS)
async def test_service_answers_its_callers_as_tenantry_does(
    package_with_frameworks: Package,
    served: Served,
    acme: Organization,
    nowhere: str,
    program: str,
) -> None:
    folder = package_with_frameworks.folder
    port = free_port()
    (folder / "server.mjs").write_text(program.replace(_SHOWN_PORT, str(port)))
    command = [node(), "server.mjs"]
    async with protected_service(command, folder, port, served.url, PORT=str(port)) as client:
        await check_rejections(client, served, acme)
    async with protected_service(command, folder, port, nowhere, PORT=str(port)) as client:
        await check_outage(client)


async def test_handler_of_a_request_answers_its_callers_as_tenantry_does(
    package: Package, served: Served, acme: Organization
) -> None:
    (package.folder / "route.mjs").write_text(REQUEST)
    program = """
        process.env.TENANTRY_BASE_URL = baseUrl;
        const { GET } = await import("./route.mjs");
        const answers = [request(apiKey), {}].map((init) => GET(new Request("http://x/reports", init)));
        print(await Promise.all((await Promise.all(answers)).map(async (answer) =>
            [answer.status, answer.headers.get("www-authenticate"), await answer.json()])));
    """
    accepted, rejected = await package.result_of(program, served.url, key_of(acme))
    assert accepted == [200, None, {"tenant": acme.id, "plan": "free"}]
    assert rejected[:2] == [401, 'Bearer realm="api"']
    assert rejected[2]["code"] == "missing_credential"


async def test_rejection_of_a_call_of_the_service_is_no_answer_for_its_caller(
    package: Package, served: Served
) -> None:
    result = await package.result_of(OWN_CREDENTIAL + HANDLED, served.url, "svc_live_x")
    assert result == [401, True, True, True, True]


async def test_unknown_feature_is_no_answer_for_the_caller(
    package: Package, served: Served, acme: Organization
) -> None:
    result = await package.result_of(UNKNOWN_FEATURE + HANDLED, served.url, key_of(acme))
    assert result == [404, True, True, True, True]


def test_programs_of_the_page_have_correct_types(package_with_frameworks: Package) -> None:
    programs = [EXPRESS, FASTIFY, HONO, REQUEST]
    # the page's handler of a request is JavaScript, without the type of its argument
    options = ("--strict", "--noImplicitAny", "false", "--skipLibCheck", "--types", "node")
    assert package_with_frameworks.complaints(programs, *options) == [""] * len(programs)
