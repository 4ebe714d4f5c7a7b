"""The pages of the identity provider and the inbox."""

from pathlib import Path
from typing import Final

from litestar import MediaType, Response

from tenantry_devkit.html import HEADERS, Pages, page_headers

STYLE_SHEET: Final = "companion.css"


class CompanionPages:
    """Renders the templates beside this file."""

    def __init__(self) -> None:
        self._pages = Pages(Path(__file__).with_name("pages"), STYLE_SHEET)

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
