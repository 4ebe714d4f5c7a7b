"""The API reference, generated from the OpenAPI document."""

import asyncio
import itertools
import re
import shlex
from collections import Counter
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlsplit

import jsonschema_rs
import pytest
import schemathesis

# else the test loads it, while other threads may be loading too
import schemathesis.specs.openapi.schemas

from tenantry.api.openapi import CODES_KEY, hand_written_part
from tenantry.api.reference import PATH
from tenantry.integrations.stripe.signature import SignatureVerifier
from tenantry.server.page_assets import ASSETS
from tenantry.server.problems import STATUS_OF, STATUSES
from tenantry.server.security_headers import POLICY
from tests.support.app import OPERATOR_TOKEN, WEBHOOK_SECRET
from tests.support.required import debian_program
from tests.support.service import Caller, JsonObject, Service

DOCUMENT: Final = "/api/v1/openapi.json"
METHODS: Final = ("get", "post", "put", "patch", "delete")
HEADINGS: Final = ("h1", "h2", "h3", "h4")
NO_KEY: Final = "svc_live_4fGhT0...x9Qz"
UNKNOWN_KEY: Final = "svc_live_0000000000000000000000000000000000000000000297tdY"
UNACCEPTABLE: Final = {400, 401, 403, 405, 413, 415, 422, 500, 503}


class Reading(HTMLParser):
    """A page's ids, links, headings and examples."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.headings: list[str] = []
        self.tags: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self._label: str | None = None
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        self.ids += [named["id"]] if "id" in named else []
        self.targets += [named[name] for name in ("href", "src") if name in named]
        self.headings += [tag] if tag in HEADINGS else []
        if tag == "pre":
            self._label = named["aria-label"]
            self.examples[self._label] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._label = None

    def handle_data(self, data: str) -> None:
        self.words += data
        if self._label is not None:
            self.examples[self._label] += data


@pytest.fixture(scope="module")
async def page(service: Service) -> Reading:
    return Reading((await service.anonymous.get(PATH)).text)


@pytest.fixture(scope="module")
async def document(service: Service) -> JsonObject:
    document: JsonObject = (await service.anonymous.get(DOCUMENT)).json()
    return document


def operations(document: JsonObject) -> list[tuple[str, str, JsonObject]]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]


# The page


async def test_page_is_public_shut_in_and_kept_for_a_while(service: Service) -> None:
    answer = await service.anonymous.get(PATH)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "public, max-age=300"


def test_it_has_nothing_inline_and_no_outside_addresses(page: Reading) -> None:
    assert not page.tags.keys() & {"style", "img", "iframe", "form"}
    assert page.tags["script"] == 1
    assert [target for target in page.targets if not target.startswith(("#", "/"))] == []


def test_it_leads_to_the_dashboard(page: Reading) -> None:
    assert "/" in page.targets


async def test_what_it_is_made_of_is_served(service: Service, page: Reading) -> None:
    assets = [target for target in page.targets if target.startswith(ASSETS)]
    assert [name.rpartition("/")[2] for name in assets] == [
        "icon.svg",
        "base.css",
        "reference.css",
        "dashboard.js",
    ]
    for name in assets:
        answer = await service.anonymous.get(name)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)


def test_its_links_lead_somewhere_and_its_ids_are_unique(page: Reading) -> None:
    assert [name for name, times in Counter(page.ids).items() if times > 1] == []
    assert {target[1:] for target in page.targets if target.startswith("#")} - set(
        page.ids
    ) == set()


def test_its_headings_are_in_order(page: Reading) -> None:
    levels = [HEADINGS.index(heading) for heading in page.headings]
    assert levels[0] == 0
    assert levels.count(0) == 1
    assert [after for before, after in itertools.pairwise(levels) if after > before + 1] == []


def test_every_operation_is_on_it(page: Reading, document: JsonObject) -> None:
    summaries = [operation["summary"] for _, _, operation in operations(document)]
    assert [summary for summary in summaries if summary not in page.words] == []


def test_every_error_code_is_on_it_with_its_meaning(page: Reading) -> None:
    meanings = hand_written_part()[CODES_KEY]
    assert {error.code for error in STATUSES} <= STATUS_OF.keys() == meanings.keys()
    assert [
        code for code, meaning in meanings.items() if not meaning or code not in page.words
    ] == []


async def test_every_example_request_is_one_that_the_service_accepts(
    service: Service, page: Reading
) -> None:
    org = await service.organization()
    variables = {
        "TENANTRY_API_KEY": org.owner.credential or "",
        "USER_TOKEN": service.user("reader", org="fresh").credential or "",
        "OPERATOR_TOKEN": OPERATOR_TOKEN,
        "NEXT_CURSOR": "",
        "TENANTRY_BASE_URL": "",
    }
    examples = {name: text for name, text in page.examples.items() if text.startswith("curl ")}
    answers = {}
    for name, text in examples.items():
        theirs = text.replace('"acme"', f'"{org.id}"').replace(NO_KEY, UNKNOWN_KEY)
        method, path, headers, body = parse_command(theirs, variables)
        path = path.replace("&cursor=", "")
        answer = await service.client.request(method, path, headers=headers, content=body)
        answers[name] = answer.status_code
    assert len(answers) > 20
    assert {name: status for name, status in answers.items() if status in UNACCEPTABLE} == {}


def parse_command(
    text: str, variables: dict[str, str]
) -> tuple[str, str, dict[str, str], str | None]:
    """The method, path, headers and body of a curl command."""
    for name, value in variables.items():
        text = text.replace(f"${name}", value)
    words = iter(shlex.split(text.replace("\\\n", " "))[1:])
    method, path, headers, body = "", "", {}, None
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(words)
        else:
            path = word
    return method or ("GET" if body is None else "POST"), path, headers, body


async def test_the_signed_example_makes_a_good_signature(page: Reading) -> None:
    debian_program("openssl")
    text = page.examples["Signed request: Receive a payment-provider event"]
    shell = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        "curl() { for word; do printf '%s\\n' \"$word\"; done; }\n" + text,
        env={
            "PATH": "/usr/bin:/bin",
            "PROVIDER_WEBHOOK_SECRET": WEBHOOK_SECRET,
            "TENANTRY_BASE_URL": "",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await shell.communicate()
    words = output.decode().splitlines()
    header = next(word for word in words if word.startswith("Provider-Signature: ")).partition(
        ": "
    )[2]
    stamp = float(re.findall(r"t=(\d+)", header)[0])
    assert words[0] == "/api/v1/webhooks/payment-provider"
    assert (
        SignatureVerifier([WEBHOOK_SECRET], 300).check(header.encode(), words[-1].encode(), stamp)
        is None
    )


# The document


def test_it_is_openapi_3_1(document: JsonObject) -> None:
    assert document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(document).validate()


def test_every_operation_says_what_it_is(document: JsonObject) -> None:
    found = operations(document)
    assert [
        f"{method} {path}"
        for method, path, one in found
        if not (one["summary"] and one["description"])
    ] == []
    assert [
        f"{method} {path}"
        for method, path, one in found
        if not all(a["description"] for a in one["responses"].values())
    ] == []
    assert [
        name
        for name, times in Counter(one["operationId"] for _, _, one in found).items()
        if times > 1
    ] == []


def test_every_operation_is_in_a_group_that_is_described(document: JsonObject) -> None:
    groups = {tag["name"] for tag in document["tags"]}
    assert {tag for _, _, one in operations(document) for tag in one["tags"]} == groups


def test_every_field_and_parameter_has_a_meaning(document: JsonObject) -> None:
    fields = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
        if not described.get("description")
    ]
    parameters = [
        f"{one['operationId']}.{parameter['name']}"
        for _, _, one in operations(document)
        for parameter in one.get("parameters", ())
        if not parameter.get("description")
    ]
    assert (fields, parameters) == ([], [])


def test_every_example_fits_its_schema(document: JsonObject) -> None:
    faults = {}
    for name, schema in document["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            validator = jsonschema_rs.Draft202012Validator(
                {**described, "components": document["components"]}, validate_formats=True
            )
            for example in described.get("examples", ()):
                faults[name, field] = [
                    str(error.message) for error in validator.iter_errors(example)
                ]
    assert len(faults) > 100
    assert {name: found for name, found in faults.items() if found} == {}


def test_every_field_of_an_object_has_an_example(document: JsonObject) -> None:
    schemas: dict[str, JsonObject] = document["components"]["schemas"]
    fields = {
        (name, field): described
        for name in ("Project", "ApiKey", "Tenant", "PlanView", "Whoami")
        for field, described in schemas[name]["properties"].items()
    }
    assert [
        name for name, described in fields.items() if not {"examples", "$ref"} & described.keys()
    ] == []


async def test_the_scope_that_it_names_is_the_one_that_is_asked_for(
    service: Service, document: JsonObject
) -> None:
    org = await service.organization()
    holder_of_little = (await service.key(org.owner, org.id, "nothing:here")).caller
    named, asked = {}, {}
    for method, path, operation in operations(document):
        if operation["security"] and (scopes := operation["security"][0].get("bearer")):
            named[f"{method} {path}"] = scopes[0]
            answer = await holder_of_little.call(method.upper(), re.sub(r"{\w+}", "x", path))
            asked[f"{method} {path}"] = re.findall(
                'scope="(.+?)"', answer.headers["www-authenticate"]
            )[0]
    assert len(named) > 15
    assert asked == named


@pytest.mark.parametrize("scheme", ["userToken", "operatorToken"])
async def test_where_it_asks_for_another_credential_a_key_is_refused(
    service: Service, document: JsonObject, scheme: str
) -> None:
    org = await service.organization()
    found = [
        one
        for one in operations(document)
        if [[*needed] for needed in one[2]["security"]] == [[scheme]]
    ]
    answers = {
        f"{method} {path}": (
            await org.owner.call(method.upper(), re.sub(r"{\w+}", "x", path))
        ).status_code
        for method, path, _ in found
    }
    assert answers
    assert set(answers.values()) <= {401, 403}


async def test_only_documented_public_routes_need_no_credential(
    service: Service, document: JsonObject
) -> None:
    statuses = {}
    for method, path, operation in operations(document):
        answer = await service.anonymous.call(method.upper(), filled_in(path, operation))
        statuses[f"{method} {path}"] = (answer.status_code == 401, bool(operation["security"]))
    assert [name for name, (refused, secured) in statuses.items() if refused != secured] == []


def filled_in(path: str, operation: JsonObject) -> str:
    """Return ``path`` with a value for each parameter: the first one allowed, else any."""
    schemas = {one["name"]: one["schema"] for one in operation.get("parameters", [])}
    return re.sub(r"{(\w+)}", lambda found: schemas.get(found[1], {}).get("enum", ["x:y"])[0], path)


def test_bodies_refuse_unknown_fields_as_it_says(document: JsonObject) -> None:
    names = {body_schema(one) for _, _, one in operations(document)} - {None}
    schemas: dict[str, JsonObject] = document["components"]["schemas"]
    assert [name for name in names if schemas[str(name)]["additionalProperties"] is not False] == []


def body_schema(operation: JsonObject) -> str | None:
    content: Any = (
        operation.get("requestBody", {})
        .get("content", {})
        .get("application/json", {})
        .get("schema", {})
    )
    found = re.findall(r"#/components/schemas/(\w+)", str(content))
    return found[0] if found else None


async def test_a_real_answer_fits_the_schema(service: Service, document: JsonObject) -> None:
    caller: Caller = (await service.organization()).owner
    await caller.post("/api/v1/projects", {"name": "Storefront"})
    faults = {}
    for path in (
        "/api/v1/projects",
        "/api/v1/api-keys",
        "/api/v1/tenants",
        "/api/v1/plans",
        "/api/v1/auth/whoami",
    ):
        answer = await caller.get(path)
        schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"][
            "schema"
        ]
        validator = jsonschema_rs.Draft202012Validator(
            {**schema, "components": document["components"]}, validate_formats=True
        )
        faults[path] = [str(error.message) for error in validator.iter_errors(answer.json())]
        assert urlsplit(str(answer.url)).path == path
    assert {path: found for path, found in faults.items() if found} == {}
