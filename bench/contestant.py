"""What the comparison needs from each contestant, and the data that each contestant gets."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psycopg

from bench.support import KEYS, PROJECTS, SECRET, TENANTS


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


@dataclass(frozen=True)
class Dataset:
    """An empty database for one contestant, and the data to load into it.

    Tenant n, from 0, is ``t<n>``, with customer ``cus_<n>``, subscription ``sub_<n>`` and user
    ``user<n>``. Its plan is ``free`` until an event with the price ``price_pro`` changes it to
    ``pro``.
    """

    conninfo: str
    """``postgresql://...`` of a superuser of that database."""
    folder: Path
    """A temporary folder for the contestant's files."""
    tenants: int = TENANTS
    keys: int = KEYS
    """Key n belongs to tenant n modulo ``tenants``."""
    projects: int = PROJECTS
    """Projects of each tenant."""
    secret: str = SECRET
    """Signs the events."""
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


class Contestant(ABC):
    """An implementation of one or more of the jobs."""

    name: str
    """A short name for tables: ``fastapi-orm``."""
    title: str
    """One line: the software and its configuration."""
    jobs: Sequence[Job]
    processes: Sequence[int]
    """The numbers of server processes to measure."""

    @abstractmethod
    def install(self) -> str:
        """Install the contestant's own environment if it is missing; return the versions in one
        line.
        """

    @abstractmethod
    def running(self, job: Job, data: Dataset) -> AbstractContextManager[Server]:
        """Load the data, start the server, and stop it at the end."""

    def events_stored(self, data: Dataset) -> int:
        """Count the events in the database (webhook)."""
        raise NotImplementedError

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read a tenant's plan, or the price that represents it, from the database (webhook)."""
        raise NotImplementedError

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke one of the server's credentials (list, verify)."""
        raise NotImplementedError


def read_value(data: Dataset, query: str, *parameters: object) -> str:
    """Run a query on a contestant's database and return its only value as text."""
    with psycopg.connect(data.conninfo) as connection:
        row = connection.execute(query.encode(), parameters).fetchone()
    if row is None:
        raise LookupError(f"{query} found nothing in {data.conninfo}")
    return str(row[0])


def vacuum(data: Dataset) -> None:
    """Vacuum and analyze a contestant's database."""
    with psycopg.connect(data.conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
