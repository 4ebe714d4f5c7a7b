"""What the comparison needs from each contestant, and the data that each contestant gets."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from bench.support import KEYS, PROJECTS, SECRET, TENANTS


class Job(StrEnum):
    """The kinds of request that are measured."""

    WEBHOOK = "webhook"
    """Process distinct signed ``customer.subscription.updated`` events: verify, deduplicate, update the tenant."""
    LIST = "list"
    """Authenticate a credential and list the tenant's 20 projects."""
    VERIFY = "verify"
    """Authenticate a credential and return its principal, as for a gateway."""


@dataclass(frozen=True)
class Dataset:
    """An empty database for one contestant, and the data to load into it.

    Tenant n, from 0, is ``t<n>``, with customer ``cus_<n>``, subscription ``sub_<n>`` and user ``user<n>``. Its plan is
    ``free`` until an event with the price ``price_pro`` changes it to ``pro``.
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


class Contestant(Protocol):
    """An implementation of one or more of the jobs."""

    name: str
    """A short name for tables: ``fastapi-orm``."""
    title: str
    """One line: the software and its configuration."""
    jobs: Sequence[Job]
    processes: Sequence[int]
    """The numbers of server processes to measure."""

    def install(self) -> str:
        """Install the contestant's own environment if it is missing; return the versions in one line."""
        ...

    def running(self, job: Job, data: Dataset) -> AbstractContextManager[Server]:
        """Load the data, start the server, and stop it at the end."""
        ...

    def events_stored(self, data: Dataset) -> int:
        """Count the events in the database (webhook)."""
        ...

    def plan_of(self, data: Dataset, tenant: int) -> str:
        """Read a tenant's plan, or the price that represents it, from the database (webhook)."""
        ...

    def revoke(self, data: Dataset, server: Server, number: int) -> None:
        """Revoke one of the server's credentials (list, verify)."""
        ...
