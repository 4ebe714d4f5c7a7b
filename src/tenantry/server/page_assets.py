"""Templates and static files of HTML pages."""

import hashlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.resources.abc import Traversable
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from typing import Any, Final

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from tenantry.server.compression import PublicBody
from tenantry.server.security_headers import ASSET_HEADERS
from tenantry.server.service_app import state_of

ASSETS: Final = "/assets"
_DIGEST_LENGTH: Final = 12
_ONE_YEAR: Final = 365 * 24 * 3600
_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


class _CompiledTemplates(FileSystemBytecodeCache):
    """Keeps compiled templates for all environments of this process, and for later processes where
    Python keeps compiled modules, if it may write there.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory))
        self._in_process: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._in_process.get((bucket.key, bucket.checksum))
        if bucket.code is None:
            super().load_bytecode(bucket)
            self._keep(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._keep(bucket)
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                super().dump_bytecode(bucket)

    def _keep(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._in_process[bucket.key, bucket.checksum] = bucket.code


@cache
def _compiled_templates(folder: Path) -> _CompiledTemplates:
    return _CompiledTemplates(Path(cache_from_source(folder)).parent)


def page_templates(*folders: Path) -> Environment:
    """Make an environment of the templates in these folders that escapes all values and raises for
    undefined ones.
    """
    return Environment(
        loader=FileSystemLoader(folders),
        bytecode_cache=_compiled_templates(folders[0]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def load_templates(environment: Environment) -> None:
    """Load all templates, which compiles those that are not compiled yet. Other environments of
    this process then find them compiled.
    """
    for name in environment.list_templates():
        environment.get_template(name)


class PageAssets:
    """The files of one folder, served at ``address``, which changes with their content: ``assets``
    in the application's state.

    ``more`` are further files, by name.
    """

    def __init__(self, folder: Traversable, more: Mapping[str, bytes] | None = None) -> None:
        files = {
            file.name: file.read_bytes()
            for file in sorted(folder.iterdir(), key=lambda file: file.name)
        }
        files.update(more or {})
        digest = hashlib.sha256(b"".join(files.values())).hexdigest()[:_DIGEST_LENGTH]
        self._bodies = {name: PublicBody.kept(content) for name, content in files.items()}
        self.address = f"{ASSETS}/{digest}"

    def response(self, request: Request[Any, Any, Any], digest: str, name: str) -> Response[bytes]:
        """Return the answer with a file. An outdated address answers with the current file, not to
        be cached. Raises `NotFoundException`.
        """
        body = self._bodies.get(name)
        if body is None:
            raise NotFoundException
        is_current = self.address == f"{ASSETS}/{digest}"
        caching = f"public, max-age={_ONE_YEAR}, immutable" if is_current else "no-store"
        media_type = _MEDIA_TYPES[name[name.rindex(".") :]]
        headers = {**ASSET_HEADERS, "Cache-Control": caching, "Content-Type": media_type}
        return body.response(request, headers)


@get(f"{ASSETS}/{{digest:str}}/{{name:str}}", include_in_schema=False, opt={"public": True})
async def show_asset(
    request: Request[Any, Any, Any], digest: FromPath[str], name: FromPath[str]
) -> Response[bytes]:
    assets: PageAssets = state_of(request.scope)["assets"]
    return assets.response(request, digest, name)
