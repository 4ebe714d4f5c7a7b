"""Templates and static files of HTML pages."""

import hashlib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Final

from jinja2 import BaseLoader, Environment, StrictUndefined
from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from tenantry.server.security_headers import ASSET_HEADERS

ASSETS: Final = "/assets"
_DIGEST_LENGTH: Final = 12
_ONE_YEAR: Final = 365 * 24 * 3600
_MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def page_templates(loader: BaseLoader) -> Environment:
    """Make an environment that escapes all values and raises for undefined ones."""
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


class PageAssets:
    """The files of one folder, served at ``address``, which changes with their content.

    ``more`` are further files, by name.
    """

    def __init__(self, folder: Traversable, more: Mapping[str, bytes] | None = None) -> None:
        self._files = {
            file.name: file.read_bytes()
            for file in sorted(folder.iterdir(), key=lambda file: file.name)
        }
        self._files.update(more or {})
        digest = hashlib.sha256(b"".join(self._files.values())).hexdigest()[:_DIGEST_LENGTH]
        self.address = f"{ASSETS}/{digest}"

    def route(self) -> HTTPRouteHandler:
        """Return the route of the files. An outdated address answers with the current file, not to
        be cached.
        """

        @get(f"{ASSETS}/{{digest:str}}/{{name:str}}", include_in_schema=False, opt={"public": True})
        async def show_asset(digest: FromPath[str], name: FromPath[str]) -> Response[bytes]:
            content = self._files.get(name)
            if content is None:
                raise NotFoundException
            is_current = self.address == f"{ASSETS}/{digest}"
            caching = f"public, max-age={_ONE_YEAR}, immutable" if is_current else "no-store"
            media_type = _MEDIA_TYPES[name[name.rindex(".") :]]
            return Response(
                content, media_type=media_type, headers={**ASSET_HEADERS, "Cache-Control": caching}
            )

        return show_asset
