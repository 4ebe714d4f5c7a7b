"""The OpenAPI document, compared with the agreed one: a difference changes the interface.

To agree to a change: ``.venv/bin/python -m tests.contract.test_openapi`` writes the document anew;
read the difference before you commit it.
"""

import difflib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from tenantry.api.openapi import describe
from tenantry.app import litestar_routes
from tenantry.auth.credentials import CredentialFinder
from tenantry.domain.api_keys import KeyFormat

AGREED: Final = Path(__file__).with_name("openapi.json")
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
LEAK_REPORT: Final = "/api/v1/api-keys/report-leak"
"""These two ask for no credential."""
REFRESH: Final = ".venv/bin/python -m tests.contract.test_openapi"


@cache
def document() -> dict[str, Any]:
    """The document of this release."""
    described = describe(litestar_routes(), "https://tenantry.example")
    return msgspec.json.decode(msgspec.json.encode(described), type=dict[str, Any])


def as_text(described: dict[str, Any]) -> str:
    return json.dumps(described, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def test_document_is_the_agreed_one() -> None:
    agreed, now = AGREED.read_text("utf-8"), as_text(document())
    difference = "".join(
        difflib.unified_diff(
            agreed.splitlines(keepends=True), now.splitlines(keepends=True), "agreed", "now", n=2
        )
    )
    assert not difference, (
        f"The interface has changed:\n{difference}\nIf that is meant to be: {REFRESH}"
    )


def test_document_of_a_deployment_has_its_prefix_and_its_header_for_keys() -> None:
    finder = CredentialFinder(KeyFormat("acme"), "X-API-Key")
    described = describe(litestar_routes(), "https://tenantry.example", finder)
    assert "svc_" not in json.dumps(described)
    schemes = described["components"]["securitySchemes"]
    assert schemes["apiKeyHeader"] == {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": schemes["apiKeyHeader"]["description"],
    }
    for path, method, agreed in operations():
        keys = [{"apiKeyHeader": each["bearer"]} for each in agreed["security"] if "bearer" in each]
        assert described["paths"][path][method]["security"] == [*agreed["security"], *keys]


def test_document_of_a_deployment_without_such_settings_is_the_agreed_one() -> None:
    described = describe(litestar_routes(), "https://tenantry.example", CredentialFinder())
    assert described == document()


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, described in document()["paths"].items()
        for method, operation in described.items()
    ]


def test_every_reference_leads_to_a_schema() -> None:
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', as_text(document())))
    assert references <= document()["components"]["schemas"].keys()


def test_operation_ids_are_unique() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(ids)) == len(ids)


def test_every_operation_documents_its_requirements_and_errors() -> None:
    for path, method, operation in operations():
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)
        if path.startswith("/api/v1/") and path not in (WEBHOOK, LEAK_REPORT):
            assert operation["security"], (method, path)
            assert {"401", "503"} <= operation["responses"].keys(), (method, path)


def test_no_answer_but_that_to_a_new_key_has_a_secret() -> None:
    schemas = document()["components"]["schemas"]
    assert [
        name for name, schema in schemas.items() if "secret" in schema.get("properties", {})
    ] == [
        "ApiKeyWithSecret",
        "LeakReport",  # what is sent, not answered
    ]


if __name__ == "__main__":
    AGREED.write_text(as_text(document()), "utf-8")
