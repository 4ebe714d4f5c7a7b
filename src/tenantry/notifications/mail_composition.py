"""Compose the mails to owners and invited users: subject, texts and address."""

import hashlib
from datetime import UTC, datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from tenantry.domain import owner_mails as rules
from tenantry.domain.branding import DEFAULT_BRANDING, Branding
from tenantry.domain.mail_addresses import ascii_domain
from tenantry.domain.names import display_text
from tenantry.domain.plan_words import format_amount
from tenantry.integrations.smtp import PermanentMailError, parse_sender

_INVALID_ADDRESS: Final = "the owner's mail address cannot be used"
_FORBIDDEN: Final = frozenset(' "<>()[],;:@\\')


def compose(
    mail: rules.PendingMail,
    sender: str,
    base_url: str = "",
    product: Branding = DEFAULT_BRANDING,
) -> EmailMessage:
    """Compose the mail to a tenant's owner, always the same. Raises `PermanentMailError` for an
    invalid address.

    With ``base_url`` billing notices link the dashboard's billing page. The operator's ``product``,
    if it has a name, is in the subject and in the last line.
    """
    kind = rules.MAIL_KINDS[mail.type]
    page = base_url and base_url + rules.BILLING_PATH.format(mail.tenant_id)
    values = {
        "about": mail.about,
        "tenant": mail.tenant_name,
        "billing_page": page,
        "settings": base_url and base_url + rules.SETTINGS_PATH.format(mail.tenant_id),
        "product": product,
    }
    message = EmailMessage()
    message["From"] = sender
    message["To"] = _recipient(mail.recipient)
    message["Subject"] = f"[{product.name}] {kind.subject}" if product.is_own else kind.subject
    message["Date"] = mail.created_at
    name = str(mail.id)
    # distinguishes it from earlier ones: only the newest link is valid
    if isinstance(mail.about, rules.Confirmation):
        name += f".{hashlib.sha256(mail.about.link.encode()).hexdigest()[:16]}"
    message["Message-ID"] = f"<{name}@{parse_sender(sender).domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_templates().get_template(f"{kind.template}.txt.j2").render(values))
    message.add_alternative(
        _templates().get_template(f"{kind.template}.html.j2").render(values), subtype="html"
    )
    return message


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _recipient(text: str) -> Address:
    username, _, domain = text.strip().rpartition("@")
    if not username or not domain or not username.isprintable() or _FORBIDDEN & set(username):
        raise PermanentMailError(_INVALID_ADDRESS)
    encoded = ascii_domain(domain)
    if encoded is None:
        raise PermanentMailError(_INVALID_ADDRESS)
    try:
        domain = encoded.encode("idna").decode()  # raises for an empty or too long label
        if username.isascii():
            return Address(addr_spec=f"{username}@{domain}")
        return Address(username=username, domain=domain)
    except (ValueError, IndexError, MessageError):  # IndexError: a bug of the parser
        raise PermanentMailError(_INVALID_ADDRESS) from None


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("tenantry.notifications", "templates"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "amount": format_amount,
        "display_text": display_text,
        "time": _format_time,
    }
    return environment
