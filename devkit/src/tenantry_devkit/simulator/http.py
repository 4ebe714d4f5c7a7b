"""Requests and answers over ASGI, and pages without script."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from jinja2 import FileSystemLoader

from tenantry.common.templates import page_templates

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 1_048_576


class TooLargeError(Exception):
    """The body is larger than 1 MiB."""


class GoneError(Exception):
    """The client hung up before it had sent its request."""


@dataclass(frozen=True)
class Request:
    """An HTTP request; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes
    content_type: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: object, status: int = 200) -> "Answer":
        """A JSON answer, indented as the provider's."""
        return cls(status, msgspec.json.format(msgspec.json.encode(value), indent=2), "application/json")


async def read(scope: Scope, receive: Receive) -> Request:
    """The request of an ASGI scope; raises `TooLargeError` and `GoneError`."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise TooLargeError
    return Request(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body=body,
    )


async def write(send: Send, answer: Answer) -> None:
    """Send an answer."""
    headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body)), **answer.headers}
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})


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
