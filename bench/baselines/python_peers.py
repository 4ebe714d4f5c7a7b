"""The Python peers of the comparison: installation, data and servers."""

import contextlib
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from bench.baselines.serving import run, serving
from bench.contestant import Contestant, Dataset, Job, Server, read_value, vacuum
from bench.support import free_port

_HERE: Final = Path(__file__).parent
_RECOMMENDED_WORKERS: Final = 2 * (os.cpu_count() or 1) + 1
"""From gunicorn's documentation."""
_SECRET_KEY: Final = "bench-" + "0123456789" * 5
_REQUIREMENT: Final = re.compile(r"^[A-Za-z0-9._-]+", re.MULTILINE)
_PRINT_VERSIONS: Final = """
import sys
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in sys.argv[1:]))
"""


def contestants() -> list[Contestant]:
    """Return all of them."""
    return [
        FastApi(
            "fastapi-orm",
            "the usual endpoint: FastAPI, SQLAlchemy's asynchronous ORM, asyncpg, uvicorn",
        ),
        FastApi(
            "fastapi-core",
            "the same lean: SQLAlchemy Core, one query for a list, plain JSON of the events",
        ),
        DjStripe(),
        DrfApiKey(),
    ]


class _PythonPeer(Contestant):
    """An app in a folder beside this file, with a virtual environment from its lock file."""

    @property
    def _package(self) -> str:
        return self.name.replace("-", "_")

    @property
    def _python(self) -> str:
        return str(_HERE / self._package / ".venv" / "bin" / "python")

    def install(self) -> str:
        """Create the environment unless it is up to date; return the versions of the direct
        requirements.
        """
        app = _HERE / self._package
        lock_file, done = app / "requirements.txt", app / ".venv" / ".installed"
        wanted = hashlib.sha256(lock_file.read_bytes() + sys.version.encode()).hexdigest()
        if not done.exists() or done.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", app / ".venv"], check=True)
            pip = [self._python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
            subprocess.run([*pip, "install", "--require-hashes", "-r", lock_file], check=True)
            done.write_text(wanted)
        names = _REQUIREMENT.findall((app / "requirements.in").read_text())
        command = [self._python, "-c", _PRINT_VERSIONS, *names]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def _seed(self, data: Dataset, variables: Mapping[str, str], *command: str) -> str:
        """Run a module that creates and fills the tables; return its output."""
        printed = run([self._python, "-m", *command], _HERE, variables)
        vacuum(data)
        return printed

    def _serving(
        self, data: Dataset, variables: Mapping[str, str], port: int, *command: str
    ) -> contextlib.AbstractContextManager[int]:
        """Run a server; yield its process id."""
        url, log = f"http://127.0.0.1:{port}/projects", data.folder / "server.log"
        return serving([self._python, "-m", *command], _HERE, variables, url=url, log=log)

    def _gunicorn(
        self, data: Dataset, variables: Mapping[str, str], port: int
    ) -> contextlib.AbstractContextManager[int]:
        """Run a Django app; yield its process id."""
        return self._serving(
            data,
            variables,
            port,
            "gunicorn",
            "django.core.wsgi:get_wsgi_application()",
            "--bind",
            f"127.0.0.1:{port}",
            "--workers",
            str(data.processes),
            "--worker-class",
            "gthread",
            "--threads",
            "4",
            "--log-level",
            "warning",
            "--no-control-socket",
        )


@dataclass
class FastApi(_PythonPeer):
    """One of the two FastAPI apps, which have the same tables and routes."""

    name: str
    title: str
    jobs: Sequence[Job] = (Job.WEBHOOK, Job.LIST)
    processes: Sequence[int] = (1, 2)

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Run the app under uvicorn."""
        variables = {"DATABASE_URL": data.conninfo, "STRIPE_WEBHOOK_SECRET": data.secret}
        keys = self._seed(data, variables, "fastapi_seed", self._package, *_sizes(data)).split()
        port = free_port()
        options = ("--workers", str(data.processes), "--loop", "uvloop", "--http", "httptools")
        quiet = ("--log-level", "warning", "--no-access-log")
        command = ("uvicorn", f"{self._package}.app:app", "--port", str(port), *options, *quiet)
        with self._serving(data, variables, port, *command) as pid:
            if job is Job.WEBHOOK:
                yield Server(port, pid, "/webhooks/stripe", "Stripe-Signature")
            else:
                yield Server(port, pid, "/projects", credentials=[f"Bearer {key}" for key in keys])

    def events_stored(self, data: Dataset) -> int:
        """Count the stored events."""
        return int(read_value(data, "SELECT count(*) FROM stripe_events"))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read the tenant's plan."""
        return read_value(data, "SELECT plan FROM tenants WHERE id = %s", f"t{tenant}")

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke a key, which each request looks up."""
        del server
        _execute(data, "UPDATE api_keys SET revoked_at = now() WHERE id = %s", number)


@dataclass
class DjStripe(_PythonPeer):
    """dj-stripe's own webhook view."""

    name: str = "dj-stripe"
    title: str = "Django, dj-stripe, gunicorn (threads); it asks the provider's API about each event: a local stub"
    jobs: Sequence[Job] = (Job.WEBHOOK,)
    processes: Sequence[int] = (_RECOMMENDED_WORKERS,)

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Run the app and a stub of the provider's API."""
        del job
        api_port = free_port()
        stub = [sys.executable, "-m", "bench.baselines.provider_stub", str(api_port)]
        api = f"http://127.0.0.1:{api_port}"
        with serving(stub, _HERE.parent.parent, {}, url=api, log=data.folder / "provider.log"):
            variables = _django_variables(self._package, data) | {
                "STRIPE_LIVE_SECRET_KEY": "sk_live_" + "0123456789" * 3,
                "STRIPE_API_HOST": api,
            }
            path = self._seed(
                data, variables, "dj_stripe.seed", str(data.tenants), data.secret
            ).strip()
            port = free_port()
            with self._gunicorn(data, variables, port) as pid:
                yield Server(port, pid, path, "Stripe-Signature")

    def events_stored(self, data: Dataset) -> int:
        """Count the stored events."""
        return int(read_value(data, "SELECT count(*) FROM djstripe_event"))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read the price that the provider's API returned, because dj-stripe has no plans."""
        query = "SELECT stripe_data #>> '{items,data,0,price,id}' FROM djstripe_subscription WHERE id = %s"
        return read_value(data, query, f"sub_{tenant}")


@dataclass
class DrfApiKey(_PythonPeer):
    """Django REST framework behind API keys."""

    name: str = "drf-api-key"
    title: str = "Django REST framework, djangorestframework-api-key, gunicorn (threads)"
    jobs: Sequence[Job] = (Job.LIST,)
    processes: Sequence[int] = (_RECOMMENDED_WORKERS,)

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Run the app."""
        del job
        variables = _django_variables(self._package, data)
        keys = self._seed(data, variables, "drf_api_key.seed", *_sizes(data)).split()
        port = free_port()
        with self._gunicorn(data, variables, port) as pid:
            yield Server(port, pid, "/projects", credentials=[f"Api-Key {key}" for key in keys])

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke a key, which each request looks up."""
        prefix = server.credentials[number].removeprefix("Api-Key ").partition(".")[0]
        _execute(
            data, "UPDATE drf_api_key_tenantapikey SET revoked = true WHERE prefix = %s", prefix
        )


def _django_variables(package: str, data: Dataset) -> dict[str, str]:
    return {
        "DATABASE_URL": data.conninfo,
        "DJANGO_SETTINGS_MODULE": f"{package}.settings",
        "SECRET_KEY": _SECRET_KEY,
    }


def _sizes(data: Dataset) -> list[str]:
    return [str(data.tenants), str(data.keys), str(data.projects)]


def _execute(data: Dataset, statement: str, *parameters: object) -> None:
    with psycopg.connect(data.conninfo) as connection:
        connection.execute(statement.encode(), parameters)
