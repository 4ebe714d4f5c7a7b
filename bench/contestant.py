"""What takes part in the comparison, and what each of them is given."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Job(StrEnum):
    """What is measured."""

    WEBHOOK = "webhook"
    """Take in distinct signed ``customer.subscription.updated`` events: verified, deduplicated, state changed."""
    LIST = "list"
    """Authenticate by a credential and list the tenant's 20 projects."""
    VERIFY = "verify"
    """Authenticate by a credential and say who it is, for a gateway."""


@dataclass(frozen=True)
class World:
    """What a contestant is given: an empty database of its own on the common PostgreSQL, and who is to be in it.

    Tenant n, from 0, is ``t<n>``, with customer ``cus_<n>``, subscription ``sub_<n>`` and user ``user<n>``. It is on
    the plan ``free`` until an event with the price ``price_pro`` takes it to ``pro``.
    """

    conninfo: str
    """``postgresql://...`` of a superuser of that database."""
    folder: Path
    """For the contestant's own files; removed afterwards."""
    tenants: int = 1000
    keys: int = 2000
    """Key n belongs to tenant n modulo ``tenants``."""
    projects: int = 20
    """Projects of each tenant."""
    secret: str = "whsec_bench_0123456789abcdef"  # noqa: S105  # of the run's own database
    """Signs the events."""
    processes: int = 1
    """Server processes to run."""


@dataclass(frozen=True)
class Server:
    """A contestant's running server."""

    port: int
    pid: int
    """Of the process that was started; its children count with it."""
    path: str
    """Where the job's requests go."""
    header: str = "Authorization"
    """Which header carries the credential, or the events' signature."""
    credentials: Sequence[str] = field(default=(), repr=False)
    """Whole values of that header for the jobs that authenticate, one for each key (for each tenant with tokens)."""


class Contestant(Protocol):
    """One way to do one or more of the jobs."""

    name: str
    """Short, for tables: ``fastapi-orm``."""
    title: str
    """One line: what it is and how it is set up."""
    jobs: Sequence[Job]
    processes: Sequence[int]
    """The numbers of server processes to measure it with."""

    def install(self) -> str:
        """Install what it needs in its own environment, if that is not done yet; returns the versions in one line."""
        ...

    def running(self, job: Job, world: World) -> AbstractContextManager[Server]:
        """Load the world into its database and start its server; stopped and waited for at the end."""
        ...

    def events_stored(self, world: World) -> int:
        """How many events its database holds (webhook)."""
        ...

    def plan_of(self, world: World, tenant: int) -> str:
        """A tenant's plan, or whatever the last event's price has become, as its database has it now (webhook)."""
        ...

    def revoke(self, world: World, server: Server, number: int) -> None:
        """Revoke one of the server's credentials, in the contestant's own way (list, verify)."""
        ...
