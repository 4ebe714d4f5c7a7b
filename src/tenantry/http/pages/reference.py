"""The API reference."""

from collections.abc import Sequence

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from tenantry.http.openapi import OpenApiDocument


def reference_routes(document: OpenApiDocument) -> Sequence[HTTPRouteHandler]:
    """The routes of the reference page."""

    @get("/docs", include_in_schema=False, opt={"public": True}, media_type="text/html")
    async def show_reference() -> Response[bytes]:
        return Response(document.encoded, media_type="text/plain")

    return [show_reference]
