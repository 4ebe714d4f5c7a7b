"""``tenantry demo``: everything on one machine, from nothing."""

import asyncio
import json
import os
import re
import shlex
import signal
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil
import psycopg
import pytest
from anyio.from_thread import start_blocking_portal

from tenantry.api.webhooks import PATH as WEBHOOK_PATH
from tenantry.integrations.stripe.signature import sign
from tenantry_devkit.embedded_postgres import EmbeddedServer
from tests.cli.command_support import Home, create_demo
from tests.support import other_program
from tests.support.command_runner import invoke, invoke_async
from tests.support.commands import Running, run, running, still_running
from tests.support.ports import free_port

PATIENCE = 20.0
SNAPSHOT = "tenantry.subscription.snapshot"
COMMAND = f"{shlex.quote(sys.executable)} -m tenantry"
"""How the tests run it."""


class Shared(NamedTuple):
    """A running demo, its folder and port."""

    command: Running
    folder: Path
    port: int

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"


KEY = re.compile(r"\b(live|test) key +(svc_\w{54})\n")


@asynccontextmanager
async def demo(folder: Path, port: int, **values: str) -> AsyncIterator[Running]:
    """The demo, once it says that it is ready."""
    # What goes to loopback goes past whatever proxy the environment names.
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    async with running("demo", folder=folder, PORT=str(port), **proxies, **values) as command:
        await command.until("demo reset", "out")
        yield command


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Shared]:
    """A demo for several tests, of which one uses its billing."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        async with demo(Path(folder), port) as command:
            yield Shared(command, Path(folder), port)


async def get(url: str, credential: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        answer = await client.get(url, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def token(folder: Path, *arguments: str) -> str:
    minted = invoke("demo", "token", *arguments, folder=folder)
    assert (minted.code, minted.err) == (0, "")
    return minted.out.strip()


def keys_in(banner: str) -> dict[str, str]:
    return dict(KEY.findall(banner))


def servers_of(folder: Path) -> list[psutil.Process]:
    """The PostgreSQL processes whose data is below this folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder.resolve()) in argument for argument in process.info["cmdline"] or ())
        and "postgres" in " ".join(process.info["cmdline"])
    ]


@pytest.mark.thorough
async def test_its_dashboard_is_a_click_away(shared: Shared) -> None:
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=True) as browser:
        printed = re.search(r"^ *dashboard +(\S+)", shared.command.text["out"], re.MULTILINE)
        assert printed
        choices = await browser.get(printed[1])
        olivia = re.search(r'href="([^"]+)"><bdi>Olivia Owner', choices.text)
        assert olivia
        page = await browser.get(printed[1].rstrip("/") + unescape(olivia[1]))
        assert (page.status_code, page.url.path) == (200, "/orgs/demo/")
        assert "<h1><bdi>Demo Company</bdi></h1>" in page.text


def test_demo_works_from_nothing_keeps_its_data_and_is_reset_once_it_has_ended(place: Path) -> None:
    """The demo has an event loop in a thread: `trigger` handles signals, so it needs the main
    thread.
    """
    folder = place / "it's a 'demo' für müß"
    folder.mkdir()
    with (
        start_blocking_portal() as portal,
        httpx2.Client(trust_env=False, timeout=30, verify=False) as client,  # plain HTTP
    ):
        port = free_port()
        with portal.wrap_async_context_manager(demo(folder, port)) as first:
            client.base_url = f"http://127.0.0.1:{port}"
            banner = first.text["out"]
            check_clock_of_the_provider(client, banner)
            keys = keys_in(banner)
            check_banner(banner, port)
            projects = answer_of(client, "/api/v1/projects", keys["live"])
            check_credentials(client, keys, folder)
            trouble = trouble_of(client, folder)
            check_database(folder)
            check_running_demo_is_not_reset(folder, port)
            buy_business(client, keys["live"])
            portal.call(end_without_a_trace, first, folder, signal.SIGINT)
        data = folder / ".tenantry"
        assert (data / ".gitignore").read_text() == "*\n"
        (data / "own.txt").touch()
        assert [each.name for each in folder.iterdir()] == [".tenantry"]

        port = free_port()  # another one: what the provider has made goes with it
        with portal.wrap_async_context_manager(demo(folder, port)) as second:
            client.base_url = f"http://127.0.0.1:{port}"
            assert keys_in(second.text["out"]) == keys
            assert answer_of(client, "/api/v1/projects", keys["live"]) == projects
            assert answer_of(client, "/api/v1/tenants/demo", keys["live"])["plan"] == "business"
            agrees = invoke("reconcile", folder=folder)
            compared = "2 tenants compared: 0 drifted, 0 repaired\n"
            assert (agrees.code, agrees.err, agrees.out) == (0, "", compared)
            checked = invoke("doctor", folder=folder)
            assert (checked.code, "warning" in checked.out) == (0, False), checked.out
            assert trouble_of(client, folder) == trouble
            check_events(folder, port)
            portal.call(end_without_a_trace, second, folder, signal.SIGHUP)  # handled as SIGTERM

    unconfirmed = invoke("demo", "reset", folder=folder)
    assert (unconfirmed.code, unconfirmed.out) == (2, "")
    assert (data / "demo.env").exists()
    done = invoke("demo", "reset", "--yes", folder=folder)
    assert (done.code, done.out) == (0, ""), done
    assert sorted(left.name for left in data.iterdir()) == [".gitignore", "own.txt"]
    assert "There is no demo" in invoke("demo", "reset", "--yes", folder=folder).err


def answer_of(client: httpx2.Client, path: str, credential: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check_banner(banner: str, port: int) -> None:
    for promised in (
        f"http://127.0.0.1:{port}",
        "tenant           demo",
        "cus_demo",
        "webhook secret   whsec_",
        "operator token   operator.",
        f"operator pages   http://127.0.0.1:{port}/operator   (as Otto Operator; Harbor Analytics needs help)\n",
        f"start again: end the demo (Ctrl-C), then {COMMAND} demo reset\n",
        f"$({COMMAND} demo token --user olivia)",
    ):
        assert promised in banner


def check_clock_of_the_provider(client: httpx2.Client, banner: str) -> None:
    """Assert that the provider's time has reached the present: a checkout session made earlier
    would expire at once.
    """
    [provider] = re.findall(r"^  payment provider (\S+)", banner, re.MULTILINE)
    date = parsedate_to_datetime(client.get(f"{provider}/").headers["date"])
    assert abs(date - datetime.now(UTC)) < timedelta(minutes=1)


def check_credentials(client: httpx2.Client, keys: dict[str, str], folder: Path) -> None:
    """Assert that the keys and tokens of a new demo work."""
    assert keys["live"].startswith("svc_live_")
    assert keys["test"].startswith("svc_test_")
    projects = answer_of(client, "/api/v1/projects", keys["live"])["data"]
    assert [project["name"] for project in projects] == ["First project"]
    assert answer_of(client, "/api/v1/projects", keys["test"])["data"][0]["mode"] == "test"
    assert answer_of(client, "/readyz")["status"] == "ok"
    who = answer_of(client, "/api/v1/auth/whoami", token(folder))
    assert (who["id"], who["orgId"], who["accessLevel"]) == ("olivia", "demo", "OWNER")
    member = answer_of(client, "/api/v1/auth/whoami", token(folder, "--user", "mia"))
    assert member["scopes"] == ["projects:*", "tenants:read", "billing:read"]


def trouble_of(client: httpx2.Client, folder: Path) -> list[str]:
    """Return the ids of what makes the trouble of the second tenant; assert what the operator can
    repair.
    """
    settings = (folder / ".tenantry" / "demo.env").read_text()
    [operator] = re.findall(r"^OPERATOR_TOKEN=(.+)$", settings, re.MULTILINE)
    headers = {"Authorization": f"Bearer {operator}", "X-Act-As-Organization": "harbor"}

    def read(path: str) -> Any:
        answer = client.get(f"/api/v1/{path}", headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    tenant = read("tenants/harbor")
    assert (tenant["plan"], tenant["subscriptionStatus"]) == ("pro", "past_due")
    assert tenant["access"]["plan"] == "business"
    events, keys = read("billing/events?limit=100")["data"], read("api-keys")["data"]
    assert [key["status"] for key in keys] == ["active", "revoked"]
    assert [bool(key["leakReportedAt"]) for key in keys] == [False, True]
    made = ("checkout.session.completed", "invoice.payment_failed", "tenantry.grant.set")
    return [each["id"] for each in (*keys, *(one for one in events if one["type"] in made))]


def check_database(folder: Path) -> None:
    """Assert that an application finds the demo's database in its file."""
    settings = (folder / ".tenantry" / "demo.env").read_text()
    [url] = re.findall(r"^TENANTRY_DEMO_DATABASE_URL=(.+)$", settings, re.MULTILINE)
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT id FROM tenants WHERE id = 'demo'").fetchall()
    assert found == [("demo",)]


def check_running_demo_is_not_reset(folder: Path, port: int) -> None:
    done = invoke("demo", "reset", "--yes", folder=folder)
    assert (done.code, done.out) == (1, "")
    assert f"runs already, at port {port}. Stop it first" in done.err


def buy_business(client: httpx2.Client, key: str) -> None:
    asked = client.post(
        "/api/v1/billing/checkout-sessions",
        json={"plan": "business"},
        headers={"Authorization": f"Bearer {key}"},
    )
    client.post(asked.json()["url"], data={"card": "works"})
    end = time.monotonic() + PATIENCE
    while answer_of(client, "/api/v1/tenants/demo", key)["plan"] != "business":
        assert time.monotonic() < end


def check_events(folder: Path, port: int) -> None:
    """Assert that signed events of `trigger` change a tenant of the demo.

    The tenant has bought nothing: of a tenant that has, the service asks the simulated provider
    about the other subscription of these events, and what that answers ends their effect.
    """
    acme = ("--id", "acme", "--name", "Acme", "--owner-email", "owner@acme.example")
    assert invoke("admin", "create-tenant", *acme, folder=folder).code == 0
    updated = ("customer.subscription.updated", "--org", "acme")
    sent = invoke("trigger", *updated, folder=folder, PORT=str(port))
    assert (sent.code, sent.err) == (0, "")
    assert re.search(r"plan +free +-> pro\n", sent.out)
    failed = invoke(
        "trigger", "invoice.payment_failed", "--org", "acme", folder=folder, PORT=str(port)
    )
    assert (failed.code, failed.err) == (0, "")
    assert re.search(r"subscriptionStatus +active -> past_due\n", failed.out)
    # what `tenantry listen` signs is taken too
    secret = invoke("listen", "--print-secret", folder=folder, PORT=str(port)).out.strip()
    body, at = b'{"id": "evt_of_the_relay", "type": "t", "data": {"object": {}}}', int(time.time())
    taken = httpx2.post(
        f"http://127.0.0.1:{port}{WEBHOOK_PATH}",
        content=body,
        headers={"Provider-Signature": sign(body, secret, at)},
    )
    assert (taken.status_code, taken.text) == (200, "OK")


@pytest.mark.thorough
async def test_a_checkout_of_the_demo_is_paid_at_the_simulated_provider(shared: Shared) -> None:
    key = keys_in(shared.command.text["out"])["live"]
    tenant_url, events_url = (
        f"{shared.base}/api/v1/tenants/demo",
        f"{shared.base}/api/v1/billing/events?limit=100",
    )
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as client:
        asked = await client.post(
            f"{shared.base}/api/v1/billing/checkout-sessions",
            json={"plan": "business"},
            headers={"Authorization": f"Bearer {key}"},
        )
        assert asked.status_code == 201, asked.text
        page = asked.json()["url"]
        assert "price_business" in (await client.get(page)).text
        assert (await client.post(page, data={"card": "works"})).status_code == 303
        async with asyncio.timeout(PATIENCE):
            while (tenant := await get(tenant_url, key))["plan"] != "business":
                pass
            while SNAPSHOT not in {event["type"] for event in (await get(events_url, key))["data"]}:
                pass  # two seconds after a checkout, the service asks the provider
        assert tenant["subscriptionStatus"] == "active"
        agrees = await invoke_async("reconcile", folder=shared.folder, PORT=str(shared.port))
        assert (agrees.code, agrees.err) == (0, "")

        # an event by hand comes after those of a provider whose clock is ahead
        origin = page.split("/c/pay/")[0]
        moved = await client.post(f"{origin}/_simulator/clock/advance", json={"days": 40})
        assert moved.status_code == 200
        async with asyncio.timeout(PATIENCE):
            while (await get(tenant_url, key))["currentPeriodEnd"] == tenant["currentPeriodEnd"]:
                pass
    ended = await run(
        "trigger", "customer.subscription.deleted", folder=shared.folder, PORT=str(shared.port)
    )
    assert (ended.code, ended.err) == (0, "")
    # the record of the event: the provider, asked two seconds later, says that it is active
    events = (await get(events_url, key))["data"]
    [end] = [each for each in events if each["type"] == "customer.subscription.deleted"]
    assert (end["outcome"], end["after"]["subscriptionStatus"]) == ("applied", "canceled")


async def end_without_a_trace(command: Running, folder: Path, how: signal.Signals) -> None:
    family, servers = command.family(), servers_of(folder)
    assert servers
    assert await command.end(how) == 0
    assert await still_running([*family, *servers]) == []
    assert servers_of(folder) == []
    assert "Traceback" not in command.text["err"]


@pytest.mark.thorough
async def test_commands_find_the_demo_and_its_port_from_a_folder_below(shared: Shared) -> None:
    below = shared.folder / "a folder" / "below"
    below.mkdir(parents=True)
    state = {"XDG_STATE_HOME": str(shared.folder / "state")}
    who = await get(f"{shared.base}/api/v1/auth/whoami", token(below, "--user", "adam"))
    assert who["id"] == "adam"
    sent = await run("trigger", "invoice.payment_failed", folder=below, **state)
    assert (sent.code, "invoice.payment_failed  200" in sent.out) == (0, True), sent
    for arguments, promised in (
        (("keys", "list"), "Demo live key"),
        (("doctor",), f"sends the 5 required event types to {shared.base}/api/v1/"),
    ):
        done = await invoke_async(*arguments, folder=below, **state)
        assert (done.code, promised in done.out) == (0, True), done


async def test_folder_of_another_user_above_is_no_demo(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    below = tmp_path / "below"
    (tmp_path / ".tenantry").mkdir()
    below.mkdir()
    settings = tmp_path / ".tenantry" / "demo.env"
    settings.write_text("TENANTRY_DEMO_ADDRESS=http://127.0.0.1:1\n")
    assert "signing key" not in invoke("demo", "token", folder=below).err
    os.chown(settings, 12345, 12345)
    done = invoke("doctor", folder=below)
    assert (done.code, "DATABASE_URL: is missing" in done.out) == (2, True)


@pytest.mark.thorough
async def test_commands_below_use_the_settings_that_the_demo_runs_with(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / ".env").write_text("TENANTRY_PLANS=plans.toml\nSUBSCRIPTIONS=any\n")
    (tmp_path / "plans.toml").write_text(
        '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\nstripe_price_id = "price_pro"\n'
        '[[plans]]\nid = "business"\nstripe_price_id = "price_of_this_catalog"\n'
    )
    port = free_port()
    async with demo(tmp_path, port, SUBSCRIPTIONS="each", OPERATOR_TOKEN="chosen") as command:
        listed = await get(f"http://127.0.0.1:{port}/api/v1/operator/tenants", "chosen")
        assert [tenant["id"] for tenant in listed["data"]] == ["harbor", "demo"]
        paid = await run("trigger", "invoice.paid", folder=below)
        assert (paid.code, paid.out.startswith("invoice.paid  200")) == (0, True), paid
        explained = await invoke_async("admin", "explain-tenant", "demo", folder=below)
        assert "gives just that" in explained.out, explained
        made = await invoke_async(
            "admin", "create-key", "--org", "demo", "--name", "below", "--owner", folder=below
        )
        assert (made.code, made.err) == (0, "")
        who = await get(f"http://127.0.0.1:{port}/api/v1/auth/whoami", made.out.strip())
        assert who["orgId"] == "demo"
        assert await command.end(signal.SIGINT) == 0
    hint = (await invoke_async("keys", "list", folder=below)).err
    assert f"Start it in {tmp_path}: " in hint


@pytest.mark.thorough
async def test_second_demo_of_a_folder_is_refused_and_leaves_the_first_as_it_is(
    shared: Shared,
) -> None:
    settings = shared.folder / ".tenantry" / "demo.env"
    before = settings.read_text()
    second = await run("demo", folder=shared.folder, PORT=str(free_port()))
    assert (second.code, second.out) == (1, "")
    assert f"runs already, at port {shared.port}." in second.err
    assert settings.read_text() == before
    assert (await get(f"{shared.base}/readyz"))["status"] == "ok"


def test_demo_keeps_out_of_a_database_with_other_tenants(tmp_path: Path, database_url: str) -> None:
    tenant = ("--id", "acme", "--name", "Acme", "--owner-email", "owner@acme.example")
    assert (
        invoke("admin", "create-tenant", *tenant, folder=tmp_path, DATABASE_URL=database_url).code
        == 0
    )
    url = f"{database_url}&password=hunter2hunter2"
    done = invoke("demo", "--database", url, folder=tmp_path, PORT=str(free_port()))
    assert (done.code, done.out) == (1, "")
    assert "--database: that database (user=" in done.err
    assert "hunter2" not in done.err
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT id FROM tenants").fetchall() == [("acme",)]


@pytest.mark.thorough
def test_embedded_database_of_an_older_version_can_be_deleted(tmp_path: Path) -> None:
    folder = tmp_path / ".tenantry"
    server = EmbeddedServer(folder)
    server.start()
    other_program.fill(server.conninfo)
    server.stop()
    (folder / "demo.env").write_text("API_KEY_PEPPER=a-pepper\n")
    done = invoke("demo", folder=tmp_path, PORT=str(free_port()))
    assert (done.code, done.out) == (1, "")
    assert f"{other_program.FOUND}: an older version has made it; delete that demo: " in done.err
    assert invoke("demo", "reset", "--yes", folder=tmp_path).code == 0


@pytest.mark.parametrize("url", ["postgresql+asyncpg://a:hunter2@localhost/shop", "embedded"])
def test_address_that_is_none_is_reported_without_its_password(tmp_path: Path, url: str) -> None:
    done = invoke("demo", "--database", url, folder=tmp_path)
    assert (done.code, "must be an address of PostgreSQL" in done.err, "hunter2" in done.err) == (
        2,
        True,
        False,
    )


@pytest.mark.parametrize(
    "url", ["postgresql:///shop", "service=shop", "postgresql://", "hostaddr=127.0.0.9"]
)
def test_demo_does_not_change_its_database(tmp_path: Path, url: str) -> None:
    create_demo(Home(tmp_path), "http://127.0.0.1:1")
    done = invoke("demo", "--database", url, folder=tmp_path)
    assert (done.code, "has an embedded database" in done.err) == (1, True)


def test_embedded_database_of_the_service_is_not_the_demos(tmp_path: Path) -> None:
    cluster = tmp_path / ".tenantry" / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").touch()
    done = invoke("demo", folder=tmp_path)
    assert (done.code, "is not the demo's: `serve` with DATABASE_URL=embedded" in done.err) == (
        1,
        True,
    )
    assert not (tmp_path / ".tenantry" / "demo.env").exists()


@pytest.mark.parametrize(
    ("file", "values", "source"),
    [
        ("DATABASE_URL=postgresql://a:hunter2@127.0.0.1:1/shop", {}, ".env"),
        ("", {"DATABASE_URL": "postgresql://a:hunter2@127.0.0.1:1/shop"}, "the environment"),
    ],
)
def test_operator_commands_say_that_they_do_not_use_the_demo(
    tmp_path: Path, file: str, values: dict[str, str], source: str
) -> None:
    create_demo(Home(tmp_path), "http://127.0.0.1:1")
    (tmp_path / ".env").write_text(file)
    done = invoke("admin", "rebuild-tenants", "acme", folder=tmp_path, **values)
    remedy = "unset DATABASE_URL" if values else "DATABASE_URL= tenantry admin rebuild-tenants"
    note = f"Using DATABASE_URL of {source} (user=a host=127.0.0.1 port=1 dbname=shop), not the demo in {tmp_path}"
    assert done.err.startswith(f"{note}/.tenantry. For the demo: {remedy}\n")
    assert (done.code, "hunter2" in done.err) == (6, False)


def test_operator_commands_use_the_demo_if_the_database_is_set_to_nothing(tmp_path: Path) -> None:
    create_demo(
        Home(tmp_path), "http://127.0.0.1:1", DATABASE_URL="postgresql://127.0.0.1:1/of_the_demo"
    )
    (tmp_path / ".env").write_text("DATABASE_URL=postgresql://127.0.0.1:1/shop\n")
    done = invoke("doctor", folder=tmp_path, DATABASE_URL="")
    assert (done.err, "settings: those of the demo" in done.out) == ("", True)


def test_without_a_demo_there_is_no_demo_token(tmp_path: Path) -> None:
    done = invoke("demo", "token", folder=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "There is no demo" in done.err


@pytest.mark.thorough
async def test_requests_of_the_demo_can_be_followed(shared: Shared) -> None:
    known, log = "asked-by-the-test", shared.folder / ".tenantry" / "requests.log"
    tail = Running(
        await asyncio.create_subprocess_exec("tail", "-F", log, stdout=asyncio.subprocess.PIPE)
    )
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            await client.get(f"{shared.base}/api/v1/plans", headers={"X-Request-Id": known})
        await tail.until(known, "out")
    finally:
        tail.kill()
        await tail.wait()
    [line] = [
        line
        for line in map(json.loads, log.read_text().splitlines())
        if line["request_id"] == known
    ]
    assert (line["route"], line["status"]) == ("/api/v1/plans", 401)
    assert known not in shared.command.text["err"]  # the demo's terminal stays quiet
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
