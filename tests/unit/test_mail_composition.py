"""The contents of the mails to a tenant's owner."""

from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tenantry.domain.owner_mails import (
    MAIL_KINDS,
    OWNER_ADDRESS_CONFIRMATION,
    PAYMENT_FAILED,
    AccessEndedData,
    AddressChangedData,
    Confirmation,
    DigestData,
    ExpiringKey,
    KeyLeakedData,
    KeyReminderData,
    PaymentFailure,
    PaymentRecoveredData,
    PendingMail,
    QuotaUsedData,
    SubscriptionEndedData,
    TrialEndingData,
    UnusedKey,
)
from tenantry.integrations.smtp import PermanentMailError
from tenantry.notifications.mail_composition import compose
from tests.support.cases import cases

SENDER = "Example Billing <billing@example.com>"
MAIL = PendingMail(
    id=UUID("7a6ee0e6-30c5-4a4b-a3c9-4b0f4a0f9a57"),
    type=PAYMENT_FAILED,
    created_at=datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
    tenant_name="Acme",
    recipient="owner@acme.example",
    tenant_id="acme",
    about=PaymentFailure(
        invoice_url="https://pay.example/i/1?a=1&b=2",
        amount_due=123450,
        amount_remaining=None,
        currency="usd",
    ),
)


TYPES = {kind.data: name for name, kind in MAIL_KINDS.items()} | {
    PaymentFailure: PAYMENT_FAILED,
    Confirmation: OWNER_ADDRESS_CONFIRMATION,
}


def mail(**changes: Any) -> PendingMail:
    """The mail with these changes."""
    if "about" in changes:
        changes["type"] = TYPES[type(changes["about"])]
    about = {
        name: changes.pop(name) for name in PaymentFailure.__struct_fields__ if name in changes
    }
    changed = msgspec.structs.replace(MAIL, **changes)
    return (
        msgspec.structs.replace(changed, about=msgspec.structs.replace(changed.about, **about))
        if about
        else changed
    )


def on_arrival(pending: PendingMail) -> EmailMessage:
    """The mail as a recipient's program reads it."""
    message = message_from_bytes(
        compose(pending, SENDER).as_bytes(policy=policy.SMTP), policy=policy.default
    )
    assert isinstance(message, EmailMessage)
    return message


def body(message: EmailMessage, subtype: str) -> str:
    part = message.get_body(preferencelist=(subtype,))
    assert part is not None
    text = part.get_content()
    assert isinstance(text, str)
    return text


def test_headers() -> None:
    headers = dict(on_arrival(MAIL).items())
    assert headers.pop("Content-Type").startswith("multipart/alternative;")
    assert headers == {
        "From": SENDER,
        "To": "owner@acme.example",
        "Subject": "Payment failed",
        "Date": "Sun, 01 Mar 2026 12:30:00 +0000",
        "Message-ID": "<7a6ee0e6-30c5-4a4b-a3c9-4b0f4a0f9a57@example.com>",
        "Auto-Submitted": "auto-generated",
        "MIME-Version": "1.0",
    }


@pytest.mark.parametrize("subtype", ["plain", "html"])
def test_both_parts_name_tenant_and_amount(subtype: str) -> None:
    text = body(on_arrival(MAIL), subtype)
    assert "Acme" in text
    assert "1,234.50 USD" in text


def test_both_parts_have_the_link() -> None:
    message = on_arrival(MAIL)
    assert "https://pay.example/i/1?a=1&b=2" in body(message, "plain").splitlines()
    assert 'href="https://pay.example/i/1?a=1&amp;b=2"' in body(message, "html")


@pytest.mark.parametrize("subtype", ["plain", "html"])
def test_without_an_address_there_is_no_link(subtype: str) -> None:
    text = body(on_arrival(mail(invoice_url=None)), subtype)
    assert "http" not in text
    assert "None" not in text


@cases("subtype", ["plain", "html"])
@cases("missing", [{"amount_due": None}, {"currency": None}])
def test_mail_without_an_amount(subtype: str, missing: dict[str, None]) -> None:
    text = body(on_arrival(mail(**missing)), subtype)
    assert "Remaining" not in text
    assert "None" not in text


def test_markup_in_a_name_is_text() -> None:
    message = on_arrival(mail(tenant_name="<img src=x onerror=alert(1)>"))
    assert "<img" not in body(message, "html")
    assert "<img src=x onerror=alert(1)>" in body(message, "plain")


@cases(
    "name",
    [
        "Acme\r\nBcc: evil@example.com",
        "Acme\nBcc: evil@example.com",
        "Acme\rBcc: evil@example.com",
        "Acme\u2028Bcc: evil@example.com",
        "Acme\x85Bcc: evil@example.com",
        "Acme\x0bBcc: evil@example.com\x00",
    ],
)
def test_a_name_cannot_add_headers(name: str) -> None:
    message = on_arrival(mail(tenant_name=name))
    assert message["Bcc"] is None
    assert message["Subject"] == "Payment failed"
    assert 'Organization: "Acme Bcc: evil[at]example[.]com"' in body(message, "plain").splitlines()


@cases("name", ["Jörg & Söhne", "日本 商事 " * 6 + "X", "\U0001f600 " * 20 + "X", "a" * 60])
def test_names_arrive_as_they_are(name: str) -> None:
    assert (
        f'Organization: "{name}"' in body(on_arrival(mail(tenant_name=name)), "plain").splitlines()
    )


@pytest.mark.parametrize("name", ["x" * 5000, "ü " * 5000])
def test_a_very_long_name_is_cut(name: str) -> None:
    wire = compose(mail(tenant_name=name), SENDER).as_bytes(policy=policy.SMTP)
    assert '…"' in body(on_arrival(mail(tenant_name=name)), "plain")
    assert max(len(line) for line in wire.split(b"\r\n")) < 998


def test_empty_name_is_replaced() -> None:
    text = body(on_arrival(mail(tenant_name=" \x00\n\u200b")), "plain")
    assert 'Organization: "your organization"' in text


ABOUT = {
    "payment failed": MAIL.about,
    "key leaked": KeyLeakedData(
        "key_1", "EVIL", "svc_live_4fGh", "x9Qz", MAIL.created_at, "192.0.2.7"
    ),
    "address changed": AddressChangedData("new@x.example", MAIL.created_at),
    "confirmation": Confirmation("https://accounts.acme.example/confirm-address?token=t", 24),
    "trial ending": TrialEndingData("Pro", datetime(2026, 3, 4, 9, 30, tzinfo=UTC)),
    "payment recovered": PaymentRecoveredData("https://pay.example/i/1"),
    "subscription ended": SubscriptionEndedData("Pro"),
    "access ended": AccessEndedData("The subscription is past due. The grace period has ended."),
    "quota used": QuotaUsedData("exports", 80, 8, 10, datetime(2026, 4, 1, tzinfo=UTC)),
    "quota used up": QuotaUsedData("exports", 100, 10, 10, datetime(2026, 4, 1, tzinfo=UTC)),
    "digest": DigestData(
        [KeyLeakedData("key_1", "EVIL", "svc_live_4fGh", "x9Qz", MAIL.created_at, None)],
        [AddressChangedData("new@x.example", MAIL.created_at)],
        1,
    ),
}


@cases("about", ABOUT)
def test_subject_has_no_text_of_the_tenant(about: str) -> None:
    subjects = {
        on_arrival(mail(tenant_name=name, about=ABOUT[about]))["Subject"]
        for name in ("Acme", "ACTION REQUIRED")
    }
    assert len(subjects) == 1
    assert not any(
        word in subject for subject in subjects for word in ("EVIL", "ACTION", "x.example")
    )


@cases("subtype", ["plain", "html"])
@cases("about", ABOUT)
def test_no_mail_shows_a_link_that_a_tenant_chose(subtype: str, about: str) -> None:
    evil = "https://evil.example www.evil.example me@evil.example +1 800 555 0199 \u202e\u200b"
    data: Any = ABOUT[about]
    if isinstance(data, KeyLeakedData):
        data = msgspec.structs.replace(data, key_name=evil)
    if isinstance(data, AddressChangedData):
        data = msgspec.structs.replace(data, email="me@evil.example")
    if isinstance(data, DigestData):
        data = DigestData(
            [msgspec.structs.replace(data.leaked[0], key_name=evil)],
            [msgspec.structs.replace(data.changed[0], email="me@evil.example")],
            1,
        )
    text = body(on_arrival(mail(tenant_name=evil, about=data)), subtype)
    assert not [
        part
        for part in ("evil.example", "://evil", "@evil", "555 0199", "\u202e", "\u200b")
        if part in text
    ]


@cases("subtype", ["plain", "html"])
@cases(
    ("about", "subject", "shown"),
    [
        ("trial ending", "Your trial ends soon", ["Pro", "Trial ends: 2026-03-04 09:30:00 UTC"]),
        ("payment recovered", "Payment received", ["https://pay.example/i/1"]),
        ("subscription ended", "Your subscription has ended", ["Pro", "limits of the free plan"]),
        (
            "access ended",
            "Your access to your plan has ended",
            ["Reason: The subscription is past due. The grace period has ended."],
        ),
    ],
)
def test_billing_notice(subtype: str, about: str, subject: str, shown: list[str]) -> None:
    message = on_arrival(mail(about=ABOUT[about]))
    assert message["Subject"] == subject
    text = body(message, subtype)
    assert [part for part in ("Acme", *shown) if part not in text] == []


@cases("subtype", ["plain", "html"])
@cases(
    "about",
    [
        ABOUT["trial ending"],
        PaymentRecoveredData(None),
        SubscriptionEndedData(None),
        ABOUT["access ended"],
    ],
)
def test_billing_notice_links_the_billing_page_where_there_is_one(subtype: str, about: Any) -> None:
    pending = mail(about=about)
    assert "http" not in body(on_arrival(pending), subtype)
    assert "None" not in body(on_arrival(pending), subtype)
    part = compose(pending, SENDER, "https://tenantry.example").get_body(preferencelist=(subtype,))
    assert part is not None
    assert "https://tenantry.example/orgs/acme/billing" in part.get_content()


@pytest.mark.parametrize(
    "about", [TrialEndingData("<b>x", MAIL.created_at), AccessEndedData("<b>x")]
)
def test_markup_in_a_billing_notice_is_text(about: Any) -> None:
    assert "<b>x" not in body(on_arrival(mail(about=about)), "html")


def test_confirmation_has_no_text_of_the_tenant() -> None:
    mails = {
        body(on_arrival(mail(tenant_name=name, about=ABOUT["confirmation"])), "plain")
        for name in ("Acme", "Other")
    }
    assert len(mails) == 1


@cases("subtype", ["plain", "html"])
@cases(
    ("due", "remaining", "shown"),
    [
        (10_000, 10_000, "100.00 USD"),
        (10_000, 7000, "70.00 USD of 100.00 USD"),
        (10_000, None, "100.00 USD"),
        (None, 7000, "70.00 USD"),
        (10_000, 0, "0.00 USD of 100.00 USD"),
    ],
)
def test_payment_mail_shows_what_remains_to_be_paid(
    subtype: str, due: int | None, remaining: int | None, shown: str
) -> None:
    text = body(on_arrival(mail(amount_due=due, amount_remaining=remaining)), subtype)
    text = text.replace("<strong>", "").replace("</strong>", "").replace("</p>", "")
    assert f"Remaining to be paid: {shown}" in [line.strip() for line in text.splitlines()]


def test_a_domain_that_is_not_ascii_is_encoded() -> None:
    assert on_arrival(mail(recipient="owner@bücher.example"))["To"] == "owner@xn--bcher-kva.example"


def test_a_local_part_that_is_not_ascii_is_kept() -> None:
    assert compose(mail(recipient="jörg@acme.example"), SENDER)["To"] == "jörg@acme.example"


@cases(
    "recipient",
    [
        "",
        "owner",
        "@acme.example",
        "owner@",
        "a b@acme.example",
        "a@b@acme.example",
        "a,b@acme.example",
        "owner@acme..example",
        "owner@" + "a" * 64 + ".example",
        "owner@acme.example\r\nBcc: evil@example.com",
        "owner\r\n@acme.example",
        "<owner@acme.example>",
    ],
)
def test_invalid_address_is_a_permanent_error(recipient: str) -> None:
    with pytest.raises(PermanentMailError, match="address"):
        compose(mail(recipient=recipient), SENDER)


LEAK = KeyLeakedData(
    key_id="key_1",
    key_name="CI deploys",
    start="svc_live_4fGh",
    last4="x9Qz",
    reported_at=datetime(2026, 3, 1, 12, 29, 30, tzinfo=UTC),
    reported_from="192.0.2.7",
)


def leak_mail(**changes: Any) -> EmailMessage:
    return on_arrival(mail(about=msgspec.structs.replace(LEAK, **changes)))


@pytest.mark.parametrize(
    "message", [on_arrival(MAIL), leak_mail()], ids=["payment failed", "key leaked"]
)
def test_sentence_after_the_greeting_begins_with_a_capital(message: EmailMessage) -> None:
    assert body(message, "plain").splitlines()[2][0].isupper()
    assert body(message, "html").split("<p>")[2][0].isupper()


def test_headers_of_a_leak() -> None:
    headers = dict(leak_mail().items())
    assert headers["Subject"] == "A leaked API key was revoked"
    assert headers["Message-ID"] == "<7a6ee0e6-30c5-4a4b-a3c9-4b0f4a0f9a57@example.com>"
    assert headers["Auto-Submitted"] == "auto-generated"


@cases("subtype", ["plain", "html"])
@cases(
    "said",
    [
        "Acme",
        "CI deploys",
        "svc_live_4fGh...x9Qz",
        "key_1",
        "2026-03-01 12:29:30 UTC, from 192.0.2.7",
        "Create a new key",
        "Only this key was revoked",
    ],
)
def test_both_parts_name_the_key_and_the_next_step(subtype: str, said: str) -> None:
    assert said in body(leak_mail(), subtype)


@pytest.mark.parametrize("subtype", ["plain", "html"])
def test_reporter_of_no_address_is_called_that(subtype: str) -> None:
    assert "from an unknown address" in body(leak_mail(reported_from=None), subtype)


def test_markup_in_the_name_of_a_key_is_text() -> None:
    message = leak_mail(key_name="<img src=x>\u2028forged: line")
    assert "<img" not in body(message, "html")
    assert (
        'Key: "<img src=x> forged: line" (svc_live_4fGh...x9Qz)'
        in body(message, "plain").splitlines()
    )


REMINDER = KeyReminderData(
    [ExpiringKey("key_1", "CI", "svc_live_4fGh", "x9Qz", "live", MAIL.created_at, 14)],
    [UnusedKey("key_2", "Old", "", "", "test", None)],
)


def test_reminder_of_keys_has_links_only_with_an_address_of_the_service() -> None:
    lines = body(on_arrival(mail(about=REMINDER)), "plain").splitlines()
    assert '- "CI" (svc_live_4fGh...x9Qz, live), expires 2026-03-01 12:30:00 UTC' in lines
    assert '- "Old" (test), never used' in lines
    assert not [line for line in lines if "http" in line]
    linked = compose(mail(about=REMINDER), SENDER, "https://accounts.example")
    part = linked.get_body(preferencelist=("html",))
    assert part is not None
    html = part.get_content()
    assert 'href="https://accounts.example/orgs/acme/settings/api-keys/key_1"' in html
    assert 'href="https://accounts.example/orgs/acme/settings/general"' in html


def test_reminder_of_keys_begins_as_every_mail() -> None:
    assert body(on_arrival(mail(about=REMINDER)), "plain").splitlines()[0] == "Hello,"


@pytest.mark.parametrize("list_of", ["expiring", "unused"])
def test_reminder_of_keys_leaves_out_an_empty_list(list_of: str) -> None:
    said = body(on_arrival(mail(about=msgspec.structs.replace(REMINDER, **{list_of: []}))), "plain")
    assert ("expire soon" in said) is (list_of == "unused")
    assert ("not been used" in said) is (list_of == "expiring")
