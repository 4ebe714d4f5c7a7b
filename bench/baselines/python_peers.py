"""The Python peers of the comparison: what they are given, and how their servers are run."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from bench.baselines import environment
from bench.baselines.serving import run, serving
from bench.contestant import Contestant, Dataset, Job, Server
from bench.support import free_port

_HERE: Final = Path(__file__).parent
_RECOMMENDED_WORKERS: Final = 2 * (os.cpu_count() or 1) + 1
"""By gunicorn's documentation."""
_SIGNATURE: Final = "Stripe-Signature"


def contestants() -> list[Contestant]:
    """All of them."""
    return [
        FastApi("fastapi-orm", "the usual endpoint: FastAPI, SQLAlchemy's asynchronous ORM, asyncpg, uvicorn"),
        FastApi("fastapi-core", "the same lean: SQLAlchemy Core, one query for a list, plain JSON of the events"),
        DjStripe(),
        DrfApiKey(),
    ]


@dataclass
class FastApi:
    """One of the two FastAPI apps, which have the same tables and routes."""

    name: str
    title: str
    jobs: Sequence[Job] = (Job.WEBHOOK, Job.LIST)
    processes: Sequence[int] = (1, 2)

    @property
    def _package(self) -> str:
        return self.name.replace("-", "_")

    def install(self) -> str:
        """See `Contestant`."""
        return environment.install(_HERE / self._package)

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """See `Contestant`."""
        variables = {"DATABASE_URL": data.conninfo, "STRIPE_WEBHOOK_SECRET": data.secret}
        python = environment.python_of(_HERE / self._package)
        printed = run([python, "-m", f"{self._package}.seed", *_sizes(data)], _HERE, variables)
        _vacuum(data)
        port = free_port()
        command = [
            python, "-m", "uvicorn", f"{self._package}.app:app", "--port", str(port),
            "--workers", str(data.processes), "--loop", "uvloop", "--http", "httptools",
            "--log-level", "warning", "--no-access-log",
        ]  # fmt: skip
        with _serving(command, variables, port, data) as pid:
            if job is Job.WEBHOOK:
                yield Server(port, pid, "/webhooks/stripe", _SIGNATURE)
            else:
                yield Server(port, pid, "/projects", credentials=[f"Bearer {key}" for key in printed.split()])

    def events_stored(self, data: Dataset) -> int:
        """See `Contestant`."""
        return int(_value(data, "SELECT count(*)::text FROM stripe_events"))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """See `Contestant`."""
        return _value(data, "SELECT plan FROM tenants WHERE id = %s", f"t{tenant}")

    def revoke(self, data: Dataset, server: Server, number: int) -> None:  # noqa: ARG002
        """See `Contestant`. Each request looks its key up, so it counts at once."""
        _execute(data, "UPDATE api_keys SET revoked_at = now() WHERE id = %s", number)


@dataclass
class DjStripe:
    """dj-stripe's own webhook view."""

    name: str = "dj-stripe"
    title: str = "Django, dj-stripe, gunicorn (threads); it asks the provider's API about each event: a local stub"
    jobs: Sequence[Job] = (Job.WEBHOOK,)
    processes: Sequence[int] = (_RECOMMENDED_WORKERS,)

    def install(self) -> str:
        """See `Contestant`."""
        return environment.install(_HERE / "dj_stripe")

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:  # noqa: ARG002
        """See `Contestant`."""
        api_port = free_port()
        stub = [sys.executable, "-m", "bench.baselines.provider_stub", str(api_port)]
        api = f"http://127.0.0.1:{api_port}"
        with serving(stub, _HERE.parent.parent, {}, url=api, log=data.folder / "provider.log"):
            variables = {
                "DATABASE_URL": data.conninfo,
                "SECRET_KEY": "bench-" + "0123456789" * 5,
                "STRIPE_LIVE_SECRET_KEY": "sk_live_" + "0123456789" * 3,
                "STRIPE_API_HOST": api,
            }
            python = environment.python_of(_HERE / "dj_stripe")
            seed = [python, "-m", "dj_stripe.seed", str(data.tenants), data.secret]
            path = run(seed, _HERE, variables).strip()
            _vacuum(data)
            port = free_port()
            with _serving(_gunicorn("dj_stripe", port, data), variables, port, data) as pid:
                yield Server(port, pid, path, _SIGNATURE)

    def events_stored(self, data: Dataset) -> int:
        """See `Contestant`."""
        return int(_value(data, "SELECT count(*)::text FROM djstripe_event"))

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """See `Contestant`. dj-stripe knows no plans: this is the price that the provider's API gave."""
        query = "SELECT stripe_data #>> '{items,data,0,price,id}' FROM djstripe_subscription WHERE id = %s"
        return _value(data, query, f"sub_{tenant}")

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """It has no credentials."""
        raise NotImplementedError


@dataclass
class DrfApiKey:
    """Django REST framework behind API keys."""

    name: str = "drf-api-key"
    title: str = "Django REST framework, djangorestframework-api-key, gunicorn (threads)"
    jobs: Sequence[Job] = (Job.LIST,)
    processes: Sequence[int] = (_RECOMMENDED_WORKERS,)

    def install(self) -> str:
        """See `Contestant`."""
        return environment.install(_HERE / "drf_api_key")

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:  # noqa: ARG002
        """See `Contestant`."""
        variables = {"DATABASE_URL": data.conninfo, "SECRET_KEY": "bench-" + "0123456789" * 5}
        python = environment.python_of(_HERE / "drf_api_key")
        keys = run([python, "-m", "drf_api_key.seed", *_sizes(data)], _HERE, variables).split()
        _vacuum(data)
        port = free_port()
        with _serving(_gunicorn("drf_api_key", port, data), variables, port, data) as pid:
            yield Server(port, pid, "/projects", credentials=[f"Api-Key {key}" for key in keys])

    def events_stored(self, data: Dataset) -> int:
        """It takes in no events."""
        raise NotImplementedError

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """It takes in no events."""
        raise NotImplementedError

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """See `Contestant`. Each request looks its key up, so it counts at once."""
        prefix = server.credentials[number].removeprefix("Api-Key ").partition(".")[0]
        _execute(data, "UPDATE drf_api_key_tenantapikey SET revoked = true WHERE prefix = %s", prefix)


def _gunicorn(package: str, port: int, data: Dataset) -> list[str]:
    return [
        environment.python_of(_HERE / package), "-m", "gunicorn", f"{package}.wsgi", "--bind", f"127.0.0.1:{port}",
        "--workers", str(data.processes), "--worker-class", "gthread", "--threads", "4",
        "--log-level", "warning", "--no-control-socket",
    ]  # fmt: skip


def _sizes(data: Dataset) -> list[str]:
    return [str(data.tenants), str(data.keys), str(data.projects)]


def _serving(
    command: Sequence[str], variables: Mapping[str, str], port: int, data: Dataset
) -> contextlib.AbstractContextManager[int]:
    return serving(command, _HERE, variables, url=f"http://127.0.0.1:{port}/projects", log=data.folder / "server.log")


def _vacuum(data: Dataset) -> None:
    with psycopg.connect(data.conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def _value(data: Dataset, query: str, *parameters: object) -> str:
    with psycopg.connect(data.conninfo) as connection:
        row = connection.execute(query, parameters).fetchone()
        assert row is not None
        return str(row[0])


def _execute(data: Dataset, statement: str, *parameters: object) -> None:
    with psycopg.connect(data.conninfo) as connection:
        connection.execute(statement, parameters)
