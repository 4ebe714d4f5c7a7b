"""Pages without script: templates, one style sheet, and the headers that keep them so."""

from pathlib import Path
from typing import Final

from jinja2 import FileSystemLoader
from litestar import MediaType, Response

from tenantry.common.templates import page_templates
from tenantry_devkit.simulator.http import dressed

PAGES: Final = Path(__file__).with_name("pages")
STYLE_SHEET: Final = "companion.css"
# No response is kept by a cache, and no address (which may hold a code or a state) is told to another site.
_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


def html_response(
    content: str, policy: str, *, status_code: int = 200, media_type: str = MediaType.HTML
) -> Response[str]:
    """A response under this Content-Security-Policy."""
    headers = {**_HEADERS, "Content-Security-Policy": policy}
    return Response(content, status_code=status_code, media_type=media_type, headers=headers)


class Pages:
    """Renders the templates beside this file; everything put into them is escaped."""

    def __init__(self) -> None:
        self._templates = page_templates(FileSystemLoader(PAGES))

    def page(
        self, template: str, *, status_code: int = 200, form_action: str = "'none'", **context: object
    ) -> Response[str]:
        """A page that loads its style sheet, may frame pages of this server, and nothing else.

        ``form_action`` is what its forms may be sent to, as a Content-Security-Policy has it.
        """
        policy = (
            "default-src 'none'; style-src 'self'; frame-src 'self'; "
            f"base-uri 'none'; form-action {form_action}; frame-ancestors 'none'"
        )
        content = self._templates.get_template(template).render(context)
        return html_response(content, policy, status_code=status_code)

    def style_sheet(self) -> Response[str]:
        """The style sheet of all pages."""
        content = dressed(PAGES / STYLE_SHEET).decode()
        return html_response(content, "default-src 'none'", media_type=MediaType.CSS)
