"""Reading the mail server's address."""

import traceback

import pytest

from tenantry.common.secret import Secret
from tenantry.integrations.smtp import SmtpConfig, parse_smtp_url
from tests.support.cases import cases

SENDER = "Example Billing <billing@example.com>"


def test_all_parts_are_read() -> None:
    assert parse_smtp_url("smtp://user:secret@mail.example.com:2525", SENDER) == SmtpConfig(
        "mail.example.com", 2525, "user", Secret("secret"), implicit_tls=False, sender=SENDER
    )


def test_user_and_password_are_percent_decoded() -> None:
    config = parse_smtp_url("smtp://us%40er:p%2F%3A%C3%A4@h", SENDER)
    assert (config.username, config.password) == ("us@er", Secret("p/:ä"))


def test_a_plus_stays_a_plus() -> None:
    assert parse_smtp_url("smtp://a+b:c+d@h", SENDER).username == "a+b"


@cases(("url", "port"), [("smtp://h", 587), ("smtps://h", 465), ("smtp://h/", 587)])
def test_the_port_defaults_to_the_scheme_s(url: str, port: int) -> None:
    assert parse_smtp_url(url, SENDER).port == port


def test_smtps_means_tls_from_the_start() -> None:
    assert parse_smtp_url("smtps://h", SENDER).implicit_tls


@cases("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_loopback_is_known(host: str) -> None:
    assert parse_smtp_url(f"smtp://{host}:25", SENDER).on_loopback


@cases("host", ["mail.example.com", "10.0.0.1", "localhost.example.com", "127.1", "[2001:db8::1]"])
def test_all_else_is_not_loopback(host: str) -> None:
    assert not parse_smtp_url(f"smtp://{host}:25", SENDER).on_loopback


@cases(
    "url",
    [
        "",
        "mail.example.com:25",
        "http://mail.example.com",
        "http://mail.example:587",
        "smtp://",
        "smtp://:25",
        "smtp://h:port",
        "smtp://h:0",
        "smtp://h:65536",
        "smtp://[::1",
        "smtp://h/path",
        "smtp://h?tls=1",
        "smtp://h#part",
        "smtp://user@h",
        "smtp://user:@h",
        "smtp://:pass@h",
        "smtp://user:%ff@h",
        "smtp://us%0D%0Aer:pass@h",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="mail server's"):
        parse_smtp_url(url, SENDER)


@cases("url", ["smtp://user:hunter2/x@h", "smtp://user:#hunter2@h", "smtp://user:hunter2%ff@h"])
def test_the_refusal_does_not_repeat_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="mail server's") as caught:
        parse_smtp_url(url, SENDER)
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_the_password_is_not_shown() -> None:
    assert "hunter2" not in repr(parse_smtp_url("smtp://user:hunter2@h", SENDER))


@cases(
    "sender",
    [
        "",
        "billing",
        "billing@",
        "@example.com",
        "a@x.example, b@x.example",
        "jörg@example.com",
        "a@b.example\nBcc: c@d.example",
    ],
)
def test_a_faulty_sender_is_refused(sender: str) -> None:
    with pytest.raises(ValueError, match="sender"):
        parse_smtp_url("smtp://h", sender)
