"""Starting, stopping and restarting the development companion."""

import smtplib
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2
import pytest
from joserfc.jwk import ECKey

from tenantry_devkit.demo.companion import Companion, signing_key_path
from tenantry_devkit.identity_tokens import DemoUser
from tenantry_devkit.simulator import Simulator

ADA: Final = DemoUser("user_ada", "Ada Example", "ada@demo.example", "org_demo", "owner")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    signing_key_path(tmp_path).write_bytes(ECKey.generate_key("P-256").as_pem(private=True))
    return tmp_path


def make(directory: Path, http_port: int = 0, smtp_port: int = 0) -> Companion:
    return Companion(
        directory,
        users=[ADA],
        audience="api",
        client_id="dashboard",
        ports=(http_port, smtp_port, 0),
    )


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def listening_socket() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def test_both_servers_answer_once_started(directory: Path) -> None:
    with make(directory) as companion:
        assert httpx2.get(f"{companion.http_url}/jwks", verify=False).status_code == 200
        with smtplib.SMTP("127.0.0.1", companion.smtp_port) as smtp:
            assert smtp.noop()[0] == 250


def test_payment_provider_has_its_own_port(directory: Path) -> None:
    provider = Simulator(running=True)
    with Companion(
        directory, users=[ADA], audience="api", client_id="dashboard", provider=provider
    ) as companion:
        port = urlsplit(provider.url).port or 0
        assert port not in {0, companion.http_port, companion.smtp_port}
        answer = httpx2.get(
            f"{provider.url}/v1/prices",
            headers={"Authorization": f"Bearer {provider.secret_key}"},
            trust_env=False,
            verify=False,
        )
        assert answer.status_code == 200
        assert len(answer.headers.get_list("date")) == 1
    assert not is_listening(port)


def test_end_leaves_neither_thread_nor_listener(directory: Path) -> None:
    before = set(threading.enumerate())
    with make(directory) as companion:
        assert len(set(threading.enumerate()) - before) == 1
    assert set(threading.enumerate()) <= before
    assert not is_listening(companion.http_port)
    assert not is_listening(companion.smtp_port)


def test_end_does_not_wait_for_idle_connections(directory: Path) -> None:
    with ExitStack() as clients:
        with make(directory) as companion:
            http = clients.enter_context(httpx2.Client(base_url=companion.http_url, verify=False))
            smtp = clients.enter_context(smtplib.SMTP("127.0.0.1", companion.smtp_port))
            http.get("/inbox")
            smtp.ehlo()

        with pytest.raises(smtplib.SMTPServerDisconnected):
            smtp.noop()


def test_ports_asked_for_are_used(directory: Path) -> None:
    with make(directory) as first:
        pass
    with make(directory, first.http_port, first.smtp_port) as second:
        assert (second.http_port, second.smtp_port) == (first.http_port, first.smtp_port)
        assert second.issuer == first.issuer


def test_ports_that_are_taken_are_replaced(directory: Path) -> None:
    with listening_socket() as http, listening_socket() as smtp:
        taken = (http.getsockname()[1], smtp.getsockname()[1])
        with make(directory, *taken) as companion:
            assert companion.http_port not in {0, *taken}
            assert companion.smtp_port not in {0, *taken}
            metadata = httpx2.get(
                f"{companion.http_url}/.well-known/openid-configuration", verify=False
            ).json()
    assert metadata["issuer"] == f"http://127.0.0.1:{companion.http_port}"


def test_invalid_port_is_replaced(directory: Path) -> None:
    with make(directory, http_port=65536) as companion:
        assert 0 < companion.http_port < 65536


def test_two_companions_run_side_by_side(directory: Path, people: Path) -> None:
    with make(directory) as one, make(people, one.http_port, one.smtp_port) as other:
        assert (
            httpx2.get(f"{one.http_url}/jwks", verify=False).json()
            != httpx2.get(f"{other.http_url}/jwks", verify=False).json()
        )


def test_restart_keeps_mails_and_key(directory: Path) -> None:
    with make(directory) as first, smtplib.SMTP("127.0.0.1", first.smtp_port) as smtp:
        smtp.sendmail("a@demo.example", ["b@demo.example"], b"Subject: Kept\r\n\r\n")
        token = first.tokens.access_token(ADA)

    with (
        make(directory, first.http_port) as second,
        httpx2.Client(base_url=second.http_url, verify=False) as http,
    ):
        (mail,) = http.get("/inbox/messages.json").json()
        answer = http.get("/userinfo", headers={"Authorization": f"Bearer {token}"})

    assert mail["subject"] == "Kept"
    assert answer.json()["sub"] == ADA.sub


def test_failed_start_raises_and_leaves_nothing(directory: Path) -> None:
    before = set(threading.enumerate())
    signing_key_path(directory).write_bytes(b"broken")
    companion = make(directory)

    with pytest.raises(ValueError, match="private key"), companion:
        pass

    assert set(threading.enumerate()) <= before
    assert not is_listening(companion.http_port)
