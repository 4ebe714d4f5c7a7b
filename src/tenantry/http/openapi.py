"""The OpenAPI document: Litestar's, with the hot routes and the error answers that every route shares."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from litestar import Litestar, Response, get
from litestar.handlers import HTTPRouteHandler

from tenantry.domain.pages import Page
from tenantry.domain.projects import Project
from tenantry.http import auth, projects, webhooks
from tenantry.http.problems import MEDIA_TYPE, Problem

PATH: Final = "/api/v1/openapi.json"
_REF: Final = "#/components/schemas/{name}"
_METHODS: Final = ("get", "head", "post", "put", "patch", "delete", "options")
_SECURITY: Final[list[dict[str, list[str]]]] = [{"bearer": []}]
_PROBLEMS: Final = {
    "400": "The request cannot be read: the body is not JSON, or the cursor is not one of ours.",
    "401": "No credential, or one that does not count.",
    "403": "The caller may not do this.",
    "404": "There is no such object in the caller's tenant.",
    "409": "The state of things does not allow it.",
    "413": "The body is larger than 1 MiB.",
    "422": "The request is not valid; `errors` says where and why.",
    "429": "Too many requests; `Retry-After` says when to come again.",
    "501": "The payment provider's API is not set up.",
    "502": "The payment provider refused.",
    "503": "The database, the identity provider or the payment provider is out of reach.",
}


class OpenApiDocument:
    """The document, made once from the finished application."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.encoded = b"{}"

    def build(self, app: Litestar) -> None:
        """Describe the routes of ``app`` and the hot ones."""
        document = app.openapi_schema.to_schema()
        schemas = document["components"].setdefault("schemas", {})
        _, components = msgspec.json.schema_components((Problem, Page[Project]), ref_template=_REF)
        schemas.update({name: schema for name, schema in components.items() if name not in schemas})
        paths = document["paths"]
        paths.setdefault(projects.PATH, {})["get"] = _list_projects(components)
        paths[auth.VERIFY_TEMPLATE] = {"get": _verify()}
        paths[webhooks.PATH] = {"post": _webhook()}
        for path, operations in paths.items():
            for method, operation in operations.items():
                if method in _METHODS:
                    _complete(path, operation)
        document["paths"] = dict(sorted(paths.items()))
        self.document = document
        self.encoded = msgspec.json.encode(document)

    def route(self) -> HTTPRouteHandler:
        """The route that serves the document."""

        @get(PATH, include_in_schema=False, opt={"public": True})
        async def show_openapi() -> Response[bytes]:
            return Response(self.encoded, headers={"content-type": "application/json"})

        return show_openapi


def _complete(path: str, operation: dict[str, Any]) -> None:
    """Add the caller's credential and the error answers, which go for whole groups of routes."""
    responses = operation["responses"]
    responses.pop("400", None)
    if path == webhooks.PATH:
        return
    public = not path.startswith("/api/")
    codes: list[str] = ["503"] if public else ["401", "403", "429", "503"]
    if "requestBody" in operation:
        codes += ["400", "409", "413", "422"]
    if operation.get("parameters"):
        codes += ["400", "404", "409", "422"]
    if "/billing/" in path and "requestBody" in operation:
        codes += ["501", "502"]
    if not public:
        operation["security"] = _SECURITY
    for code in sorted(set(codes)):
        if public and code == "503":
            continue
        responses[code] = _problem(_PROBLEMS[code])


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}}}


def _list_projects(components: Iterable[str]) -> dict[str, Any]:
    page = next(name for name in components if name.startswith("Page"))
    content = {"application/json": {"schema": {"$ref": _REF.format(name=page)}}}
    return {**projects.OPERATION, "responses": {"200": {"description": "A page.", "content": content}}}


def _verify() -> dict[str, Any]:
    header = {"schema": {"type": "string", "maxLength": 256}}
    names = ("X-Tenant-Id", "X-Principal-Id", "X-Principal-Kind", "X-Plan", "X-Subscription-Status")
    answer = {"description": "The credential is good and covers the scope.", "headers": dict.fromkeys(names, header)}
    return {**auth.VERIFY_OPERATION, "responses": {"200": answer}}


def _webhook() -> dict[str, Any]:
    def text(description: str) -> dict[str, Any]:
        return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}

    return {
        "summary": "Receive a payment-provider event",
        "operationId": "ReceiveProviderEvent",
        "description": (
            "For the payment provider alone: authenticated by the signature over the raw body. "
            "`Stripe-Signature` is read where `Provider-Signature` is missing."
        ),
        "parameters": [
            {
                "name": "Provider-Signature",
                "in": "header",
                "required": False,
                "schema": {"type": "string"},
                "description": "`t=<unix seconds>,v1=<hex HMAC-SHA256 of t.body>`",
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {
            "200": text("`OK`: committed, or handled before."),
            "400": text("The signature is missing or invalid, or the body is not an event. Nothing was processed."),
            "413": text("The body is larger than 1 MiB."),
            "500": text("Handling failed and was rolled back; send it again."),
            "503": text("The database is out of reach; send it again."),
        },
    }
