"""Pages without script: templates, one style sheet, and their security headers."""

from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from jinja2 import FileSystemLoader
from litestar import MediaType, Response

from tenantry.server.page_assets import page_templates

HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
STYLE_SHEET: Final = "companion.css"
_DASHBOARD_STYLES: Final = ("base.css", "dashboard.css")


class Pages:
    """Renders the templates in a folder, with escaping."""

    def __init__(self, folder: Path, style_sheet: str) -> None:
        self.templates = page_templates(FileSystemLoader(folder))
        self._style_sheet = folder / style_sheet

    def render(self, template: str, **context: object) -> str:
        return self.templates.get_template(template).render(context)

    def style_sheet(self) -> str:
        """Return the dashboard's styles and the folder's style sheet."""
        assets = resources.files("tenantry") / "dashboard" / "assets"
        dashboard = [(assets / name).read_text("utf-8") for name in _DASHBOARD_STYLES]
        return "\n".join([*dashboard, self._style_sheet.read_text("utf-8")])


def page_headers(form_action: str, *, frames: bool = False) -> dict[str, str]:
    """Return headers that allow the style sheet, forms to ``form_action``, and own frames if wanted."""
    frame_source = "frame-src 'self'; " if frames else ""
    policy = (
        f"default-src 'none'; style-src 'self'; {frame_source}"
        f"base-uri 'none'; form-action {form_action}; frame-ancestors 'none'"
    )
    return {**HEADERS, "Content-Security-Policy": policy}


def form_action_to(url: str | None) -> str:
    """Return the policy's ``form-action`` for forms whose response redirects to ``url``: browsers check that too."""
    if not url:
        return "'self'"
    address = urlsplit(url)
    # a policy cannot contain an IPv6 address
    origin = f"{address.scheme}:" if "[" in address.netloc else f"{address.scheme}://{address.netloc}"
    return f"'self' {origin}"


class CompanionPages:
    """The pages of the identity provider and the inbox, as Litestar responses."""

    def __init__(self) -> None:
        self._pages = Pages(Path(__file__).parent / "demo" / "pages", STYLE_SHEET)

    def page(
        self, template: str, *, status_code: int = 200, form_action: str = "'none'", **context: object
    ) -> Response[str]:
        """Render a page; ``form_action`` is the Content-Security-Policy's source list for its forms."""
        content, headers = self._pages.render(template, **context), page_headers(form_action, frames=True)
        return Response(content, status_code=status_code, media_type=MediaType.HTML, headers=headers)

    def message(self, title: str, message: str, status_code: int = 200) -> Response[str]:
        return self.page("message.html", status_code=status_code, title=title, message=message)

    def style_sheet(self) -> Response[str]:
        headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'"}
        return Response(self._pages.style_sheet(), media_type=MediaType.CSS, headers=headers)
