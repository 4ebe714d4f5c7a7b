"""The development inbox: mail goes in by SMTP and is read over HTTP, whatever it holds."""

import shutil
import smtplib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final

import aiosmtplib
import httpx2
import pytest
from joserfc.jwk import ECKey

from tenantry_devkit.demo.companion import Companion, signing_key_path
from tenantry_devkit.inbox import MAX_MESSAGES, Inbox

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCRIPT: Final = "<script>alert(1)</script>"


def make(
    subject: str = "Payment failed",
    *,
    to: str = "ada@demo.example",
    text: str = "Hello",
    html: str | None = None,
) -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Billing <billing@demo.example>"
    message["To"] = to
    message["Subject"] = subject
    message.set_content(text)
    if html is not None:
        message.add_alternative(html, subtype="html")
    return message


def companion_in(folder: Path, inbox: Inbox | None = None) -> Companion:
    """A companion that keeps its files in a folder."""
    # Such a key is made in no time; the one that the companion would make itself takes longer.
    signing_key_path(folder).write_bytes(ECKey.generate_key("P-256").as_pem(private=True))
    return Companion(
        folder, users=[], audience="api", client_id="dashboard", inbox=inbox, clock=lambda: NOW
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("companion")


@pytest.fixture(scope="module")
def shared_companion(folder: Path) -> Iterator[Companion]:
    with companion_in(folder) as running:
        yield running


@pytest.fixture
def companion(shared_companion: Companion, folder: Path) -> Companion:
    """A companion whose inbox is empty; the tests of this file share it."""
    for message in (folder / "inbox").glob("*.eml"):
        message.unlink()
    return shared_companion


@pytest.fixture(scope="module")
def client(shared_companion: Companion) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=shared_companion.http_url, verify=False) as client:
        yield client


@pytest.fixture
def http(client: httpx2.Client, companion: Companion) -> httpx2.Client:
    """An HTTP client of `companion`."""
    assert companion.http_url == client.base_url
    return client


def send(companion: Companion, *messages: EmailMessage) -> None:
    with smtplib.SMTP("127.0.0.1", companion.smtp_port) as smtp:
        for message in messages:
            smtp.send_message(message)


def send_raw(companion: Companion, content: bytes) -> None:
    with smtplib.SMTP("127.0.0.1", companion.smtp_port) as smtp:
        smtp.sendmail("a@demo.example", ["b@demo.example"], content)


def listed(http: httpx2.Client) -> list[dict[str, Any]]:
    response = http.get("/inbox/messages.json")
    assert response.status_code == 200
    found: list[dict[str, Any]] = response.json()
    return found


def test_sent_mail_is_read_as_json(companion: Companion, http: httpx2.Client) -> None:
    send(companion, make(text="Grüße, see http://127.0.0.1:3001/in"))
    (mail,) = listed(http)
    assert mail.pop("id").isdigit()
    # and the microseconds that tell mails apart
    assert mail.pop("date").startswith("2026-01-01T12:00:00")
    assert mail == {
        "to": "ada@demo.example",
        "from": "Billing <billing@demo.example>",
        "subject": "Payment failed",
        "text": "Grüße, see http://127.0.0.1:3001/in\n",
    }


def test_mails_are_for_their_owner_alone(companion: Companion, folder: Path) -> None:
    send(companion, make())
    [mail] = (folder / "inbox").glob("*.eml")
    assert mail.stat().st_mode & 0o777 == 0o600


async def test_mail_of_the_services_own_library_arrives(companion: Companion) -> None:
    await aiosmtplib.send(make("By aiosmtplib"), hostname="127.0.0.1", port=companion.smtp_port)
    async with httpx2.AsyncClient(base_url=companion.http_url, verify=False) as http:
        (mail,) = (await http.get("/inbox/messages.json")).json()
    assert mail["subject"] == "By aiosmtplib"


def test_list_shows_the_newest_first(companion: Companion, http: httpx2.Client) -> None:
    send(companion, make("First"), make("Second"))
    send(companion, make("Third", to="Bob <bob@demo.example>"))

    page = http.get("/inbox").text

    assert [mail["subject"] for mail in listed(http)] == ["Third", "Second", "First"]
    assert 0 < page.index("Third") < page.index("Second") < page.index("First")
    assert "Bob &lt;bob@demo.example&gt;" in page
    assert "2026-01-01 12:00:00 UTC" in page


def test_start_page_leads_to_the_inbox(http: httpx2.Client) -> None:
    assert http.get("/").headers["location"] == "/inbox"
    assert "No mail yet" in http.get("/inbox").text


def test_message_shows_its_headers_and_text_with_links(
    companion: Companion, http: httpx2.Client
) -> None:
    send(companion, make(text="Pay at https://pay.demo.example/i?a=1&b=2 today"))
    page = http.get(f"/inbox/{listed(http)[0]['id']}").text
    assert "<dt>Delivered-To</dt>" in page
    assert "<dd>ada@demo.example</dd>" in page
    assert 'href="https://pay.demo.example/i?a=1&amp;b=2"' in page
    assert "<iframe" not in page


def test_markup_in_a_message_comes_out_as_text(companion: Companion, http: httpx2.Client) -> None:
    message = make(
        SCRIPT,
        to=f'"{SCRIPT}" <a@demo.example>',
        text=f'{SCRIPT} http://x.example/"onclick="alert(1)',
    )
    message["X-Note"] = SCRIPT
    send(companion, message)
    (mail,) = listed(http)

    for page in (http.get("/inbox").text, http.get(f"/inbox/{mail['id']}").text):
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert '"onclick' not in page
    assert mail["subject"] == SCRIPT


@pytest.mark.parametrize("path", ["/inbox", "/inbox/{id}", "/inbox/unknown"])
def test_pages_load_their_style_sheet_and_nothing_else(
    companion: Companion, http: httpx2.Client, path: str
) -> None:
    send(companion, make())
    response = http.get(path.format(id=listed(http)[0]["id"]))
    policy = response.headers["content-security-policy"].split("; ")
    assert policy[:2] == ["default-src 'none'", "style-src 'self'"]
    assert "form-action 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_html_part_is_framed_in_a_sandbox(companion: Companion, http: httpx2.Client) -> None:
    send(companion, make(html=f"<h1 style='color:red'>Invoice</h1>{SCRIPT}"))
    mail_id = listed(http)[0]["id"]

    page = http.get(f"/inbox/{mail_id}").text
    part = http.get(f"/inbox/{mail_id}/html")

    assert f'<iframe sandbox src="/inbox/{mail_id}/html"' in page
    assert "<script" not in page
    assert "<h1 style='color:red'>Invoice</h1>" in part.text
    policy = part.headers["content-security-policy"].split("; ")
    assert policy[0] == "sandbox"
    assert "default-src 'none'" in policy
    assert not any(rule.startswith("script-src") for rule in policy)


@pytest.mark.parametrize(
    "mail_id",
    [
        "0000000000000000",
        "1",
        "%2e%2e%2fidentity-provider.pem",
        "..%2f..%2fetc%2fpasswd",
        "%00",
        "x" * 300,
    ],
)
def test_unknown_message_is_not_found(http: httpx2.Client, mail_id: str) -> None:
    for path in (f"/inbox/{mail_id}", f"/inbox/{mail_id}/html"):
        assert http.get(path).status_code == 404


def test_message_without_html_has_no_html_part(companion: Companion, http: httpx2.Client) -> None:
    send(companion, make())
    assert http.get(f"/inbox/{listed(http)[0]['id']}/html").status_code == 404


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no header at all",
        b"Subject: \xff\xfe raw bytes\r\n\r\n\xff\xfe",
        b'Subject: =?nope?q?x?= =?utf-8?b?!!!?=\r\nTo: <<<>,;"\r\nFrom: @\r\n\r\nx',
        b"Content-Type: text/plain; charset=no-such\r\n\r\nx",
        b'Content-Type: text/plain; charset="a\x00b"\r\n\r\nx',
        b"Content-Type: ///\r\nContent-Transfer-Encoding: base64\r\n\r\n!!!",
        b"Content-Type: multipart/alternative\r\n\r\nx",
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: message/rfc822\r\n\r\n--b--",
        b"Message-ID: [\r\nDate: never\r\nMIME-Version: one\r\nContent-Disposition: ;\r\n\r\nx",
        b"Content-Type: text/html; charset=utf-7\r\n\r\n+ADw-script+AD4-",
    ],
)
def test_malformed_message_breaks_nothing(
    companion: Companion, http: httpx2.Client, content: bytes
) -> None:
    send_raw(companion, content)
    send(companion, make("Good"))

    good, odd = listed(http)

    assert good["subject"] == "Good"
    assert http.get("/inbox").status_code == 200
    assert http.get(f"/inbox/{odd['id']}").status_code == 200


def test_unparsable_message_is_shown_raw(companion: Companion, http: httpx2.Client) -> None:
    send_raw(
        companion, b"From: \"\r\nContent-Type: ;b.ca*0*=\x00utf-8''%ff\\]\r\n\r\nStill here \xff"
    )
    (mail,) = listed(http)
    assert "Still here" in mail["text"]
    assert "Still here" in http.get(f"/inbox/{mail['id']}").text


def test_message_that_cannot_be_stored_is_rejected_temporarily(tmp_path: Path) -> None:
    with companion_in(tmp_path) as companion:
        shutil.rmtree(tmp_path / "inbox")
        with pytest.raises(smtplib.SMTPDataError) as refusal:
            send(companion, make())
    assert refusal.value.smtp_code == 452


def test_inbox_keeps_the_newest_two_hundred(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, clock=lambda: NOW)
    newest = [
        inbox.store(f"Subject: {number}\r\n\r\n".encode(), sender="", recipients=[])
        for number in range(MAX_MESSAGES + 2)
    ]

    mails = inbox.mails()

    assert [mail.id for mail in mails] == newest[:1:-1]
    assert len(mails) == len(list(tmp_path.iterdir())) == MAX_MESSAGES == 200
    assert inbox.mail(newest[0]) is None


def test_inbox_with_a_higher_limit_keeps_more(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, limit=1000)
    newest = [
        inbox.store(b"Subject: 1\r\n\r\n", sender="", recipients=[])
        for _ in range(MAX_MESSAGES + 2)
    ]
    assert inbox.ids() == newest[::-1]


def test_inbox_opened_again_goes_on_after_the_last_message(tmp_path: Path) -> None:
    first = Inbox(tmp_path, clock=lambda: NOW).store(
        b"Subject: 1\r\n\r\n", sender="", recipients=[]
    )
    (tmp_path / "notes.eml").write_text("not a message of the inbox")

    again = Inbox(tmp_path, clock=lambda: NOW)
    second = again.store(b"Subject: 2\r\n\r\n", sender="", recipients=[])

    assert [mail.id for mail in again.mails()] == [second, first]


def test_wait_ends_when_the_message_arrives(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "mail")
    asked = threading.Event()

    def has_two() -> bool:
        asked.set()
        return len(inbox.ids()) == 2

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(inbox.wait_until, has_two, 60)
        asked.wait(60)
        for number in range(2):
            inbox.store(
                make(str(number)).as_bytes(), sender="a@demo.example", recipients=["b@demo.example"]
            )
        assert waiting.result(60) is True


def test_wait_ends_at_the_timeout(tmp_path: Path) -> None:
    assert Inbox(tmp_path / "mail").wait_until(lambda: False, 0) is False


def test_mail_goes_to_the_given_inbox(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "elsewhere")
    with companion_in(tmp_path, inbox) as companion:
        send(companion, make("To the other"))
    assert [mail.subject for mail in inbox.mails()] == ["To the other"]
