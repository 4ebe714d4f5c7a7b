"""Pages without script: templates, one style sheet, and the headers that keep them so."""

from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from jinja2 import FileSystemLoader

from tenantry.common.templates import page_templates
from tenantry_devkit.simulator.asgi import Answer

_PAGES: Final = Path(__file__).with_name("pages")
_STYLE_SHEET: Final = "simulator.css"
_LOOK: Final = ("base.css", "dashboard.css")
_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


class Html:
    """Renders the templates beside this file; everything put into them is escaped."""

    def __init__(self) -> None:
        self._templates = page_templates(FileSystemLoader(_PAGES))
        self._templates.filters["money"] = _money
        self._templates.filters["time"] = _time

    def page(self, template: str, *, status: int = 200, leads_to: str | None = None, **context: object) -> Answer:
        """A page that loads its style sheet and nothing else; its forms lead to this server and to ``leads_to``."""
        target = f"'self' {_origin(leads_to)}" if leads_to else "'self'"
        policy = f"default-src 'none'; style-src 'self'; base-uri 'none'; form-action {target}; frame-ancestors 'none'"
        content = self._templates.get_template(template).render(context).encode()
        return Answer(status, content, "text/html; charset=utf-8", {**_HEADERS, "Content-Security-Policy": policy})

    def message(self, title: str, message: str, status: int = 200) -> Answer:
        """A page that only says something."""
        return self.page("message.html", status=status, title=title, message=message)

    def style_sheet(self) -> Answer:
        """The style sheet of all pages."""
        return Answer(200, dressed(_PAGES / _STYLE_SHEET), "text/css; charset=utf-8", dict(_HEADERS))


def dressed(style_sheet: Path) -> bytes:
    """A style sheet that adds to the dashboard's, with that before it."""
    look = resources.files("tenantry") / "dashboard" / "assets"
    return b"\n".join([*((look / name).read_bytes() for name in _LOOK), style_sheet.read_bytes()])


def redirect(location: str) -> Answer:
    """Go on with a GET of another address."""
    return Answer(303, b"", "text/plain", {**_HEADERS, "Location": location})


def _origin(url: str) -> str:
    address = urlsplit(url)
    # A Content-Security-Policy has no way to write an IPv6 address.
    return f"{address.scheme}:" if "[" in address.netloc else f"{address.scheme}://{address.netloc}"


def _money(amount: int, currency: str) -> str:
    return f"{amount / 100:.2f} {currency.upper()}"


def _time(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
