"""What the comparison needs from each contestant, and the data that each contestant gets."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psycopg


class Job(StrEnum):
    """The kinds of request that are measured."""

    WEBHOOK = "webhook"
    """Process distinct signed ``customer.subscription.updated`` events: verify, deduplicate, update
    the tenant.
    """
    LIST = "list"
    """Authenticate a credential and list the tenant's 20 projects."""
    VERIFY = "verify"
    """Authenticate a credential and return its principal, as for a gateway."""
    CONSUME = "consume"
    """Authenticate a credential and consume one unit of a metered feature."""


@dataclass(frozen=True)
class Dataset:
    """An empty database for one contestant.

    The contestant loads into it `bench.support.TENANTS`, `bench.support.KEYS` and
    `bench.support.PROJECTS` of each tenant. Tenant n, from 0, is ``t<n>``, with customer
    ``cus_<n>``, subscription ``sub_<n>`` and user ``user<n>``. Its plan is ``free`` until an event
    with the price ``price_pro`` changes it to ``pro``.
    """

    conninfo: str
    """``postgresql://...`` of a superuser of that database."""
    folder: Path
    """A temporary folder for the contestant's files."""
    processes: int = 1
    """Server processes to run."""


@dataclass(frozen=True)
class Server:
    """A contestant's running server."""

    port: int
    pid: int
    """The first process; its children are measured with it."""
    path: str
    """The path of the job's requests."""
    header: str = "Authorization"
    """The header for the credential, or for the signature of an event."""
    credentials: Sequence[str] = field(default=(), repr=False)
    """Complete header values, one for each key (for each tenant with access tokens)."""
    more_headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of every request."""

    @property
    def url(self) -> str:
        """The address of the job's requests."""
        return f"http://127.0.0.1:{self.port}{self.path}"


class Contestant(ABC):
    """An implementation of one or more of the jobs."""

    name: str
    """A short name for tables: ``fastapi-orm``."""
    title: str
    """One line: the software and its configuration."""
    jobs: Sequence[Job]
    processes: Sequence[int] = (1, 2)
    """The numbers of server processes to measure."""
    is_peer: bool = True
    """Whether it does the same work as the service, which others wrote."""
    does_work: bool = True
    """Whether a request does its work; a bound answers without it."""
    keeps_events: bool = True
    """Whether it stores every event, or only the result of the newest."""

    @abstractmethod
    def install(self) -> str:
        """Install what the contestant needs if it is missing; return the versions in one line."""

    @abstractmethod
    def running(self, job: Job, data: Dataset) -> AbstractContextManager[Server]:
        """Load the data, start the server, and stop it at the end."""

    def requests(self, job: Job, server: Server) -> list[str]:
        """Compose a request for each credential but the last one, which is revoked."""
        del job
        return [request(server, "GET", server.path, value) for value in server.credentials[:-1]]

    def events_stored(self, data: Dataset) -> int:
        """Count the events in the database (webhook)."""
        raise NotImplementedError

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read a tenant's plan, or the price that represents it, from the database (webhook)."""
        raise NotImplementedError

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke one of the server's credentials (list, verify)."""
        raise NotImplementedError


def request(server: Server, method: str, path: str, value: str, body: str = "") -> str:
    """Compose a request with this value of the server's header, as it is sent."""
    headers = {
        "Host": f"127.0.0.1:{server.port}",
        **server.more_headers,
        server.header: value,
        **({"Content-Type": "application/json", "Content-Length": str(len(body))} if body else {}),
    }
    fields = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n{body}"


def read_value(data: Dataset, query: str, *parameters: object) -> str:
    """Run a query on a contestant's database and return its only value as text."""
    with psycopg.connect(data.conninfo) as connection:
        row = connection.execute(query.encode(), parameters).fetchone()
    if row is None:
        raise LookupError(f"{query} found nothing in {data.conninfo}")
    return str(row[0])


def execute(data: Dataset, statement: str, *parameters: object) -> None:
    """Run a statement in a contestant's database."""
    with psycopg.connect(data.conninfo) as connection:
        connection.execute(statement.encode(), parameters)
