"""Projects: the resource that shows how tenants' objects are kept apart."""

from datetime import datetime
from typing import NamedTuple

import msgspec

from tenantry.domain.access import Mode


class Project(msgspec.Struct, frozen=True, rename="camel"):
    """A project of a tenant, in live or test mode."""

    id: str
    org_id: str
    name: str
    description: str | None
    mode: Mode
    created_at: datetime
    updated_at: datetime


class Window(NamedTuple):
    """Which page of a tenant's projects: up to ``limit`` after a position, newest first."""

    limit: int
    after_at: datetime | None = None
    after_id: str | None = None
