"""The API reference: one page, made from the OpenAPI document."""

import gzip
import re
from collections.abc import Sequence
from typing import Any, Final

from jinja2 import PackageLoader
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from markupsafe import Markup, escape

from tenantry.api import webhooks
from tenantry.api.guards import AnyRequest
from tenantry.api.openapi import GROUPS, OpenApiDocument
from tenantry.api.openapi import PATH as DOCUMENT_PATH
from tenantry.api.pages.outline import Outline
from tenantry.common.templates import page_templates
from tenantry.server.page_assets import PageAssets
from tenantry.server.problems import all_codes

PATH: Final = "/docs"
_DEFAULT_ADDRESS: Final = "http://127.0.0.1:3001"
_CACHING: Final = {"Cache-Control": "public, max-age=300", "Vary": "Accept-Encoding"}
_CODE_SPAN: Final = re.compile("`([^`]+)`")
_GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:;\s*q=(0(?:\.\d*)?|1(?:\.0*)?)\s*)?(?:,|$)", re.IGNORECASE)
_JSON_TOKEN: Final = re.compile(
    r'(?P<key>"[^"\n]*")(?=:)|(?P<string>"[^"\n]*")|(?P<word>\b(?:true|false|null|-?\d+)\b)'
)


def reference_routes(document: OpenApiDocument, assets: PageAssets) -> Sequence[HTTPRouteHandler]:
    """The route of the reference page; the page is rendered when it is first asked for."""
    made: list[tuple[bytes, bytes]] = []
    headers = {**assets.headers, **_CACHING}

    @get(PATH, include_in_schema=False, opt={"public": True})
    async def show_reference(request: AnyRequest) -> Response[bytes]:
        if not made:
            page = render(document.describe(request.app), document.base_url, assets.address).encode()
            made.append((page, gzip.compress(page)))  # it holds nothing secret that its length could tell
        [(plain, compressed)] = made
        if takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(compressed, media_type=MediaType.HTML, headers={**headers, "Content-Encoding": "gzip"})
        return Response(plain, media_type=MediaType.HTML, headers=headers)

    return [show_reference]


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a header names gzip among the codings that its sender takes (RFC 9110 section 12.5.3)."""
    found = _GZIP.search(accept_encoding)
    return found is not None and float(found[1] or 1) > 0


def render(document: dict[str, Any], base_url: str, assets: str) -> str:
    """The page of this OpenAPI document; ``assets`` is the address of its style sheets and its script."""
    environment = page_templates(PackageLoader(str(__package__)))
    environment.filters.update(prose=prose, json=highlighted, slug=slug, breakable=breakable)
    outline = Outline(document, {group.name: group.objects for group in GROUPS})
    return environment.get_template("reference.html").render(
        info=document["info"],
        outline=outline,
        problem=outline.problem(),
        errors=all_codes().values(),
        address=base_url if base_url.startswith("http") else _DEFAULT_ADDRESS,
        document_path=DOCUMENT_PATH,
        assets=assets,
        webhook_path=webhooks.PATH,
    )


def prose(text: str) -> Markup:
    """Text in which backticks mark code, with typographic apostrophes outside of it."""
    parts = [escape(part) for part in _CODE_SPAN.split(text)]
    parts[1::2] = [Markup("<code>{}</code>").format(part) for part in parts[1::2]]
    parts[::2] = [part.replace("&#39;", "\N{RIGHT SINGLE QUOTATION MARK}") for part in parts[::2]]
    return Markup("").join(parts)


def highlighted(text: str) -> Markup:
    """Pretty-printed JSON with its keys, strings and words marked."""
    parts: list[Markup] = []
    position = 0
    for found in _JSON_TOKEN.finditer(text):
        parts += [
            escape(text[position : found.start()]),
            Markup('<span class="{}">{}</span>').format(found.lastgroup, found[0]),
        ]
        position = found.end()
    return Markup("").join([*parts, escape(text[position:])])


def breakable(name: str) -> Markup:
    """A name that may wrap after an underscore."""
    return Markup("_<wbr>").join(name.split("_"))


def slug(text: str) -> str:
    """A name for an address: lower case, words joined by hyphens."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")
