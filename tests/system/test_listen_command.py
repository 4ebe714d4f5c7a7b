"""``tenantry listen`` as people run it: its end, its exit codes, its child, and what it prints."""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.serving import serving
from tenantry_devkit.simulator import Simulator
from tests.cli.command_support import Home, create_demo
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import SECRETS, Running, run, running, running_into, still_running
from tests.support.deployment import deployed
from tests.support.local import Receiver
from tests.support.ports import free_port

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
        options = ("--json", "--forward-to", receiver.url, "--events", "price.*")
        async with running("listen", *options, folder=tmp_path, **provider(simulator)) as command:
            await listening(command)
            simulator.price("price_1")
            simulator.price("price_2")
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
        "price.created",
        1,
    )
    assert command.text["err"].endswith("2 events: 1 delivered, 1 refused\n")


async def test_undelivered_events_are_counted(tmp_path: Path) -> None:
    simulator = Simulator()
    async with simulator.serving():
        options = ("--forward-to", str(free_port()), "--events", "*", "--since", "1h")
        async with running("listen", *options, folder=tmp_path, **provider(simulator)) as command:
            await command.until("does not accept connections", "err")
            assert await command.end(signal.SIGINT) == 1
    assert (command.text["out"], command.text["err"].count("does not accept connections")) == (
        "",
        1,
    )
    assert command.text["err"].endswith("3 events: 0 delivered, 3 not delivered yet\n")


async def test_exec_starts_the_service_with_the_secret_and_ends_with_it(
    database_url: str, tmp_path: Path
) -> None:
    simulator, port = Simulator(), str(free_port())
    values = {
        **SECRETS,
        "DATABASE_URL": database_url,
        "PORT": port,
        "OPERATOR_TOKEN": OPERATOR_TOKEN,
    }
    async with simulator.serving():
        options = ("--exec", "tenantry serve --no-jobs")
        async with running(
            "listen", *options, folder=tmp_path, **values, **provider(simulator)
        ) as command:
            await command.until("tenantry is ready", "err")
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", trust_env=False
            ) as client:
                made = await client.put(
                    "/api/v1/tenants/acme",
                    json={"name": "Acme", "ownerEmail": "owner@acme.example"},
                    headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"},
                )
            assert made.status_code == 201
            simulator.subscribe(
                simulator.customer("cus_1"), "price_pro", metadata={"orgId": "acme"}
            )
            await command.until(UPDATED, "out")
            # the environment's own secret is good too
            signed = await run("trigger", UPDATED, "--tenant", "acme", folder=tmp_path, **values)
            assert signed.code == 0, signed
            family = command.family()
            assert await command.end(signal.SIGINT) == 0
            assert await still_running(family) == []
    assert "200" in command.text["out"]
    assert command.text["err"].endswith("4 events: 4 delivered\n")
    assert "signing with" not in command.text["err"]


async def test_wrong_secret_is_reported_once_with_a_remedy(
    database_url: str, tmp_path: Path
) -> None:
    simulator = Simulator()
    async with simulator.serving(), deployed(database_url, tmp_path, WORKERS="1") as service:
        options = ("--forward-to", service.base_url, "--since", "1h", "--events", "price.created")
        async with running("listen", *options, folder=tmp_path, **provider(simulator)) as command:
            await command.until("or let the relay start it", "err")
            simulator.price("price_last")
            await command.until(simulator.events()[-1].id, "out")
            assert await command.end(signal.SIGINT) == 1
    lines = command.text["out"].splitlines()
    assert [line.split()[1] for line in lines] == ["400"] * 4
    assert all(line.endswith("Invalid signature") for line in lines)
    assert command.text["err"].count("The service checks signatures with another secret.") == 1


@pytest.mark.parametrize(
    ("how", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
async def test_exit_code_is_that_of_the_child(tmp_path: Path, how: str, code: int) -> None:
    simulator = Simulator()
    async with simulator.serving():
        command = f"{sys.executable} -c '{how}'"
        done = await run("listen", "--exec", command, folder=tmp_path, **provider(simulator))
    assert done.code == code
    assert done.err.endswith("0 events: 0 delivered\n")


async def test_key_and_service_of_the_environment_go_before_those_of_a_demo(tmp_path: Path) -> None:
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
        named = {(): f"{ended}/api/v1/", ("--exec", "sleep 60"): "http://127.0.0.1:4321/api/v1/"}
        for options, service in named.items():
            async with running("listen", *options, folder=tmp_path, **provider(simulator)) as relay:
                await listening(relay)
                await relay.end(signal.SIGINT)
            assert f"listening to   {simulator.url} (test mode)\n" in relay.text["err"]
            assert f"forwarding to  {service}" in relay.text["err"]
    without = await run("listen", folder=tmp_path)
    assert (without.code, without.out) == (6, ""), without


async def test_child_that_cannot_start_and_child_that_ignores_signals(tmp_path: Path) -> None:
    simulator = Simulator()
    async with simulator.serving():
        done = await run(
            "listen", "--exec", "no-such-program --x", folder=tmp_path, **provider(simulator)
        )
        assert (done.code, done.out) == (1, "")
        assert "--exec: no-such-program cannot be started: No such file" in done.err
        stubborn = (
            "import os, signal, time; signal.signal(2, lambda *_: os.write(1, bytes((33, 10)))); print(1, flush=True);"
            " [time.sleep(60) for _ in range(9)]"
        )
        options = ("--exec", f"{sys.executable} -c '{stubborn}'", "--json")
        async with running("listen", *options, folder=tmp_path, **provider(simulator)) as command:
            family = command.family()
            for heard in range(4):
                # with --json stdout has our lines alone
                await command.until("\n1\n" + "!\n" * heard, "err")
                family = command.family()
                psutil.Process(command.pid).send_signal(signal.SIGINT)
            assert await command.wait() == 137
            assert await still_running(family) == []
    assert command.text["out"] == ""


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
async def test_closed_stdout_ends_relay_and_child(tmp_path: Path, options: tuple[str, ...]) -> None:
    simulator, receiver = Simulator(), AcceptingReceiver()
    read_end, write_end = os.pipe()
    os.close(read_end)
    async with simulator.serving(), serving(receiver):
        child = f"{sys.executable} -c 'import signal; signal.pause()'"
        arguments = ("listen", "--forward-to", receiver.url, "--exec", child, *options)
        async with running_into(
            write_end, *arguments, folder=tmp_path, **provider(simulator)
        ) as command:
            os.close(write_end)
            await listening(command)
            family = command.family()
            simulator.subscribe(
                simulator.customer("cus_1"), "price_pro", metadata={"orgId": "acme"}
            )
            code = await command.wait()
    assert code in {0, 1, 143}
    assert await still_running(family) == []
    assert "Traceback" not in command.text["err"]
    assert "Exception ignored" not in command.text["err"]


async def test_processes_of_the_child_end_with_it(tmp_path: Path) -> None:
    simulator = Simulator()
    async with simulator.serving():
        command_line = "sh -c 'tail -f /dev/null & echo $!; exit 3'"
        options = ("--exec", command_line, "--json")
        async with running("listen", *options, folder=tmp_path, **provider(simulator)) as command:
            assert await command.wait() == 3
        [number] = [int(line) for line in command.text["err"].splitlines() if line.isdigit()]
    assert await still_running([psutil.Process(number)] if psutil.pid_exists(number) else []) == []


async def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('not this one')")
    simulator = Simulator()
    async with simulator.serving():
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("tenantry"),
            "listen",
            "--exec",
            "tenantry --version",
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "XDG_STATE_HOME": str(tmp_path),
                **provider(simulator),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
    assert b"not this one" not in said
    assert b"tenantry, version" in said
