"""Reading the inbox with a browser, or with curl."""

from typing import Final

import msgspec
from litestar import MediaType, Response, get
from litestar.params import FromPath
from litestar.types import ControllerRouterHandler

from tenantry_devkit.demo.html import Pages, html_response
from tenantry_devkit.inbox.inbox import Inbox, Mail

# A mail's own HTML: no script, no forms, nothing from the network, and an origin of its own.
_MAIL_POLICY: Final = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def inbox_routes(inbox: Inbox, pages: Pages) -> list[ControllerRouterHandler]:
    """The pages under ``/inbox``, and ``/inbox/messages.json``."""

    @get("/inbox")
    async def mails() -> Response[str]:
        return pages.page("inbox.html", mails=inbox.mails())

    @get("/inbox/messages.json")
    async def messages() -> Response[bytes]:
        content = msgspec.json.encode([_summary(mail) for mail in inbox.mails()])
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type=MediaType.JSON, headers=headers)

    @get("/inbox/{mail_id:str}")
    async def mail(mail_id: FromPath[str]) -> Response[str]:
        found = inbox.mail(mail_id)
        return _missing(pages) if found is None else pages.page("mail.html", mail=found)

    @get("/inbox/{mail_id:str}/html")
    async def html_part(mail_id: FromPath[str]) -> Response[str]:
        found = inbox.mail(mail_id)
        if found is None or found.html is None:
            return _missing(pages)
        return html_response(found.html, _MAIL_POLICY)

    return [mails, messages, mail, html_part]


def _summary(mail: Mail) -> dict[str, object]:
    return {
        "id": mail.id,
        "to": mail.to,
        "from": mail.sender,
        "subject": mail.subject,
        "date": mail.date,
        "text": mail.text,
    }


def _missing(pages: Pages) -> Response[str]:
    message = "There is no such message (any more)."
    return pages.page("message.html", status_code=404, title="Not found", message=message)
