"""Rendering pages from the templates, and the context that handlers of pages get."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import quote

from jinja2 import PackageLoader
from litestar import MediaType, Response
from litestar.response import Stream
from markupsafe import Markup

from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.guards import DashboardUser
from tenantry.dashboard.labels import scope_label, shown_name
from tenantry.domain.names import display_text
from tenantry.server.page_assets import PageAssets, page_templates
from tenantry.server.problems import RETRY_AFTER


class Renderer:
    """Renders templates as pages. Jinja escapes all values.

    ``command`` is how users run ``tenantry``; ``demo_pages`` are names and addresses for the demo's menu.
    """

    def __init__(
        self,
        cookies: Cookies,
        *,
        secure: bool = False,
        command: str = "tenantry",
        demo_pages: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.assets = PageAssets(resources.files(__package__) / "assets", secure=secure)
        self.headers = self.assets.headers
        self._cookies = cookies
        self._templates = page_templates(PackageLoader(str(__package__)))
        self._templates.filters.update(
            time=_time,
            day=_day,
            segment=partial(quote, safe=""),
            value=_value,
            called=lambda thing: shown_name(thing.name, thing.id),
            display_text=display_text,
            scope_label=scope_label,
        )
        self._templates.globals.update(assets=self.assets.address, command=command, demo_pages=demo_pages)

    def page(
        self, template: str, status_code: int = 200, *, user: DashboardUser | None = None, **context: object
    ) -> Response[str]:
        """Render a page. It shows the user's flash message once."""
        content = self._templates.get_template(template).render(context, user=user)
        headers = {**self.headers, **({"Retry-After": RETRY_AFTER} if status_code == 503 else {})}  # noqa: PLR2004
        response = Response(content, status_code=status_code, media_type=MediaType.HTML, headers=headers)
        if user is not None and user.flash is not None:
            response.set_cookie(self._cookies.without_flash())
        return response

    def file(self, content: bytes | AsyncIterator[bytes], name: str, media_type: str) -> Response[Any]:
        """Return a download. ``name`` must consist of ASCII letters, digits, dots, dashes and underscores."""
        headers = {**self.headers, "Content-Disposition": f'attachment; filename="{name}"'}
        if isinstance(content, bytes):
            return Response(content, media_type=media_type, headers=headers)
        return Stream(content, media_type=media_type, headers=headers)

    def redirect(self, location: str) -> Response[str]:
        return Response("", status_code=303, media_type=MediaType.TEXT, headers={**self.headers, "Location": location})


def _time(moment: datetime) -> Markup:
    """Format a moment to the minute; the script replaces it by the reader's local time, and its title is exact."""
    return _format(moment, '<time datetime="{}" title="{}">{}</time>', "%b %Y, %H:%M UTC")


def _second(moment: datetime) -> Markup:
    return _format(moment, '<time datetime="{}" data-seconds title="{}">{}</time>', "%b %Y, %H:%M:%S UTC")


def _day(moment: datetime) -> Markup:
    return _format(moment, '<time datetime="{}" data-day title="{}">{}</time>', "%b %Y")


def _format(moment: datetime, element: str, text: str) -> Markup:
    moment = moment.astimezone(UTC)
    return Markup(element).format(  # noqa: S704  # one of the three above
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        f"{moment.day} {moment.strftime(text)}",
    )


def _value(value: str | datetime, seconds: bool = False) -> str:  # noqa: FBT001, FBT002  # a filter's argument
    """Format a moment; return text as it is."""
    if not isinstance(value, datetime):
        return value
    return _second(value) if seconds else _time(value)
