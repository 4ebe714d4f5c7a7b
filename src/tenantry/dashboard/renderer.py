"""Rendering: the templates beside this file, the assets of all pages, and the headers that every page has."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final, Protocol
from urllib.parse import quote

from jinja2 import PackageLoader
from litestar import MediaType, Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Stream
from markupsafe import Markup

from tenantry.common.templates import page_templates
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.flash_messages import Notice, Notices
from tenantry.dashboard.guards import Visitor
from tenantry.dashboard.labels import shown_name
from tenantry.domain.names import display_text

ASSETS: Final = "/assets"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES: Final = ("base.css", "dashboard.css", "dashboard.js", "icon.svg", "reference.css")
_DIGEST_LENGTH: Final = 12
_YEAR: Final = 365 * 24 * 3600
# Nothing of another origin, nothing inline; no address of a page is told to another site, and nobody frames one.
POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ASSET_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class _Named(Protocol):
    """What has a name that somebody chose."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


class Renderer:
    """Renders pages; everything put into them is escaped."""

    def __init__(
        self,
        cookies: Cookies,
        notices: Notices,
        *,
        secure: bool,
        version: str,
        command: str = "tenantry",
        demo_pages: Sequence[tuple[str, str]] = (),
    ) -> None:
        """``secure`` says that browsers come by https, and are to stay there; ``command`` runs ``tenantry``."""
        self.command = command
        self._cookies = cookies
        self._notices = notices
        self.headers = {**_HEADERS, **({"Strict-Transport-Security": f"max-age={_YEAR}"} if secure else {})}
        self._files = {name: _read(name) for name in _FILES}
        digest = hashlib.sha256(b"".join(self._files.values())).hexdigest()[:_DIGEST_LENGTH]
        self.assets = f"{ASSETS}/{digest}"
        """Where the assets are: an address of this service that changes with what they hold."""
        environment = page_templates(PackageLoader(str(__package__)))
        environment.filters.update(time=_time, day=_day, segment=_segment, shown=_shown, called=_called)
        environment.filters["display_text"] = display_text
        environment.globals.update(assets=self.assets, version=version, command=command, demo_pages=demo_pages)
        self._environment = environment

    def page(
        self,
        template: str,
        *,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        visitor: Visitor | None = None,
        **context: object,
    ) -> Response[str]:
        """A page; what it says once is not said again."""
        content = self._environment.get_template(template).render(context, visitor=visitor)
        response = Response(
            content, status_code=status_code, media_type=MediaType.HTML, headers={**self.headers, **(headers or {})}
        )
        if visitor is not None and visitor.notice is not None:
            response.set_cookie(self._cookies.without_notice())
        return response

    def file(self, content: bytes | AsyncIterator[bytes], name: str, media_type: str) -> Response[Any]:
        """A file to be kept, not shown, maybe sent while it is made.

        Its name is of plain letters, digits, dots, dashes and underscores.
        """
        headers = {**self.headers, "Content-Disposition": f'attachment; filename="{name}"'}
        if isinstance(content, bytes):
            return Response(content, media_type=media_type, headers=headers)
        return Stream(content, media_type=media_type, headers=headers)

    def redirect(self, location: str) -> Response[str]:
        """Go on with a GET of another address."""
        return Response("", status_code=303, media_type=MediaType.TEXT, headers={**self.headers, "Location": location})

    def tell(self, visitor: Visitor, notice: Notice, path: str, query: str = "") -> Response[str]:
        """The same, where the page at that path is to say something once."""
        response = self.redirect(path + query)
        response.set_cookie(self._cookies.with_notice(self._notices.prove(visitor.session, path, notice)))
        return response

    def routes(self) -> list[HTTPRouteHandler]:
        """The routes of the assets, whose address changes with what they hold."""

        @get(f"{ASSETS}/{{digest:str}}/{{name:str}}", include_in_schema=False, opt={"public": True})
        async def show_asset(digest: FromPath[str], name: FromPath[str]) -> Response[bytes]:
            content = self._files.get(name)
            if content is None:
                raise NotFoundException
            kept = f"public, max-age={_YEAR}, immutable" if self.assets == f"{ASSETS}/{digest}" else "no-store"
            media_type = _TYPES[name[name.rindex(".") :]]
            return Response(content, media_type=media_type, headers={**_ASSET_HEADERS, "Cache-Control": kept})

        return [show_asset]


def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath("assets", name).read_bytes()


def _time(moment: datetime) -> Markup:
    """A moment, by the minute; the script shows it as the reader's own time, and the exact one is its title."""
    return _moment(moment, '<time datetime="{}" title="{}">{}</time>', "%b %Y, %H:%M UTC")


def _second(moment: datetime) -> Markup:
    """A moment, by the second."""
    return _moment(moment, '<time datetime="{}" data-seconds title="{}">{}</time>', "%b %Y, %H:%M:%S UTC")


def _day(moment: datetime) -> Markup:
    """A day."""
    return _moment(moment, '<time datetime="{}" data-day title="{}">{}</time>', "%b %Y")


def _moment(moment: datetime, element: str, shown: str) -> Markup:
    moment = moment.astimezone(UTC)
    return Markup(element).format(  # noqa: S704  # one of the two above
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        f"{moment.day} {moment.strftime(shown)}",
    )


def _called(thing: _Named) -> str:
    """What to call something."""
    return shown_name(thing.name, thing.id)


def _segment(text: str) -> str:
    """A text as one segment of a path."""
    return quote(text, safe="")


def _shown(value: str | datetime, by_the_second: bool = False) -> str:  # noqa: FBT001, FBT002  # a filter's argument
    """A moment, or words as they are."""
    if not isinstance(value, datetime):
        return value
    return _second(value) if by_the_second else _time(value)
