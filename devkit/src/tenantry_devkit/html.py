"""Pages without script: templates, style sheets, and their security headers."""

from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from litestar import MediaType, Response

from tenantry.server.page_assets import page_templates

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
COMPANION_PAGES: Final = Path(__file__).parent / "demo" / "pages"
"""The pages of the identity provider and the inbox."""
_SHARED_PAGES: Final = Path(__file__).parent / "shared_pages"
_DASHBOARD_STYLES: Final = ("base.css", "components.css", "dashboard.css")


class Pages:
    """Renders the templates in a folder, with escaping, as responses."""

    def __init__(self, folder: Path) -> None:
        self.templates = page_templates(folder, _SHARED_PAGES)
        self._folder = folder

    def page(
        self,
        template: str,
        *,
        status_code: int = 200,
        form_action: str = "'none'",
        **context: object,
    ) -> Response[str]:
        """Render a page; ``form_action`` is the Content-Security-Policy's source list for its
        forms.
        """
        policy = (
            "default-src 'none'; style-src 'self'; frame-src 'self'; "
            f"base-uri 'none'; form-action {form_action}; frame-ancestors 'none'"
        )
        return Response(
            self.templates.get_template(template).render(context),
            status_code=status_code,
            media_type=MediaType.HTML,
            headers={**HEADERS, "Content-Security-Policy": policy},
        )

    def message(self, title: str, message: str, status_code: int = 200) -> Response[str]:
        return self.page(
            "message.html",
            status_code=status_code,
            title=title,
            message=message,
        )

    def style_sheet(self) -> Response[str]:
        """Return the dashboard's styles and those of the folder."""
        assets = resources.files("tenantry") / "dashboard" / "assets"
        sheets = [*(assets / name for name in _DASHBOARD_STYLES), *self._folder.glob("*.css")]
        content = "\n".join(sheet.read_text("utf-8") for sheet in sheets)
        headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'"}
        return Response(content, media_type=MediaType.CSS, headers=headers)


def redirect(location: str) -> Response[str]:
    return Response("", status_code=303, headers={**HEADERS, "Location": location})


def form_action_to(url: str | None) -> str:
    """Return the policy's ``form-action`` for forms whose response redirects to ``url``: browsers
    check that too.
    """
    if not url:
        return "'self'"
    address = urlsplit(url)
    # a policy cannot contain an IPv6 address
    origin = (
        f"{address.scheme}:" if "[" in address.netloc else f"{address.scheme}://{address.netloc}"
    )
    return f"'self' {origin}"
