"""``tenantry listen`` as people run it: its end, its exit codes, and what it prints."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import Simulator
from tests.cli.command_support import Home, create_demo
from tests.support.commands import Running, run, running, running_into
from tests.support.deployment import deployed
from tests.support.local import Receiver

UPDATED = "customer.subscription.updated"


def provider(simulator: Simulator) -> dict[str, str]:
    return {"PROVIDER_SECRET_KEY": simulator.secret_key, "PROVIDER_API_BASE": simulator.url}


async def listening(command: Running) -> None:
    """Wait until what happens from now on is relayed."""
    await command.until("\n\n", "err")


@pytest.fixture
def as_by_nohup() -> Iterator[None]:
    """Let commands start with SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("as_by_nohup")
async def test_ctrl_c_ends_the_relay_with_a_summary(tmp_path: Path) -> None:
    """A closed terminal does not, where the relay was started to ignore that."""
    simulator, receiver = Simulator(), AcceptingReceiver()
    async with simulator.serving(), serving(receiver):
        address = receiver.url.removeprefix("http://")
        async with running(
            "listen", "--forward-to", address, folder=tmp_path, **provider(simulator)
        ) as command:
            await listening(command)
            command.signal(signal.SIGHUP)
            simulator.subscribe(
                simulator.customer("cus_1"), "price_pro", metadata={"orgId": "acme"}
            )
            await command.until(UPDATED, "out")
            assert await command.end(signal.SIGINT) == 0
    lines = command.text["out"].splitlines()
    types = ["customer.subscription.created", "invoice.paid", "invoice.payment_succeeded", UPDATED]
    assert [line.split()[4] for line in lines] == types
    assert lines[3].endswith("  acme  cus_1")
    assert command.text["err"].endswith("\n\n4 events: 4 delivered\n")
    assert receiver.paths == ["/api/v1/webhooks/payment-provider"] * 4
    secret = tmp_path / "state" / "tenantry" / "listen.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert f"signing with   {secret.read_text().strip()}\n" in command.text["err"]
    assert simulator.secret_key not in command.text["out"] + command.text["err"]
    assert "\x1b" not in command.text["out"] + command.text["err"]


class AcceptingReceiver(Receiver):
    """Takes whatever comes, however it is signed, with ``statuses`` for answers; keeps the
    paths.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        self.paths.append(scope["path"])
        status = self.statuses.popleft() if self.statuses else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send(
            {"type": "http.response.body", "body": b"price is unknown" if status != 200 else b"OK"}
        )


async def test_rejection_in_json_lines_and_exit_code(tmp_path: Path) -> None:
    simulator, receiver = Simulator(), AcceptingReceiver()
    receiver.statuses.append(422)
    async with simulator.serving(), serving(receiver):
        options = ("--json", "--forward-to", receiver.url)
        async with running("listen", *options, folder=tmp_path, **provider(simulator)) as command:
            await listening(command)
            simulator.delete_customer(simulator.customer("cus_1"))
            simulator.delete_customer(simulator.customer("cus_2"))
            await command.until('"outcome":"delivered"', "out")
            assert await command.end(signal.SIGTERM) == 1
    refused, delivered = map(json.loads, command.text["out"].splitlines())
    assert (refused["outcome"], refused["status"], refused["answer"]) == (
        "refused",
        422,
        "price is unknown",
    )
    assert (delivered["outcome"], delivered["type"], delivered["attempt"]) == (
        "delivered",
        "customer.deleted",
        1,
    )
    assert command.text["err"].endswith("2 events: 1 delivered, 1 refused\n")


async def test_wrong_secret_is_reported_once_with_a_remedy(
    database_url: str, tmp_path: Path
) -> None:
    simulator = Simulator()
    async with simulator.serving(), deployed(database_url, tmp_path, WORKERS="1") as service:
        options = ("--forward-to", service.base_url)
        async with running("listen", *options, folder=tmp_path, **provider(simulator)) as command:
            await listening(command)
            simulator.subscribe(simulator.customer("cus_1"), "price_pro")
            await command.until("another secret. Start it with", "err")
            await command.until(simulator.events()[-1].id, "out")
            assert await command.end(signal.SIGINT) == 1
    lines = command.text["out"].splitlines()
    assert [line.split()[1] for line in lines] == ["400"] * 4
    assert all(line.endswith("Invalid signature") for line in lines)
    assert command.text["err"].count("The service checks signatures with another secret.") == 1


async def test_key_of_the_environment_goes_before_that_of_a_demo(tmp_path: Path) -> None:
    simulator = Simulator()
    async with simulator.serving():
        ended = "http://127.0.0.1:1"
        create_demo(
            Home(tmp_path),
            ended,
            PROVIDER_SECRET_KEY="sk_test_of_the_demo",
            PROVIDER_API_BASE=ended,
        )
        (tmp_path / ".env").write_text(
            "PORT=4321\nPROVIDER_SECRET_KEY=sk_live_of_another_program\n"
        )
        async with running("listen", folder=tmp_path, **provider(simulator)) as relay:
            await listening(relay)
            await relay.end(signal.SIGINT)
        assert f"listening to   {simulator.url} (test mode)\n" in relay.text["err"]
        assert f"forwarding to  {ended}/api/v1/" in relay.text["err"]
    without = await run("listen", folder=tmp_path)
    assert (without.code, without.out) == (6, ""), without


async def test_provider_error_at_the_start_decides_the_exit_code(tmp_path: Path) -> None:
    simulator = Simulator()
    async with simulator.serving():
        base = simulator.url
        refused = await run(
            "listen",
            folder=tmp_path,
            PROVIDER_SECRET_KEY="sk_test_of_somebody_else",
            PROVIDER_API_BASE=base,
        )
    assert (refused.code, refused.out) == (4, "")
    assert (
        refused.err
        == "The payment provider does not accept this service's API key (PROVIDER_SECRET_KEY).\n"
    )
    away = await run(
        "listen", folder=tmp_path, PROVIDER_SECRET_KEY="sk_test_1", PROVIDER_API_BASE=base
    )
    assert (away.code, away.out) == (6, "")
    assert away.err == "The payment provider is out of reach. Try again shortly.\n"


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_closed_stdout_ends_the_relay(tmp_path: Path, options: tuple[str, ...]) -> None:
    simulator, receiver = Simulator(), AcceptingReceiver()
    read_end, write_end = os.pipe()
    os.close(read_end)
    async with simulator.serving(), serving(receiver):
        arguments = ("listen", "--forward-to", receiver.url, *options)
        async with running_into(
            write_end, *arguments, folder=tmp_path, **provider(simulator)
        ) as command:
            os.close(write_end)
            await listening(command)
            simulator.subscribe(
                simulator.customer("cus_1"), "price_pro", metadata={"orgId": "acme"}
            )
            code = await command.wait()
    assert code in {0, 1}
    assert "Traceback" not in command.text["err"]
    assert "Exception ignored" not in command.text["err"]
