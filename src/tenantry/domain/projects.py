"""Projects: the resource that shows how tenants' objects are kept apart."""

from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec

from tenantry.common.openapi import doc
from tenantry.domain.access import Mode


class Project(msgspec.Struct, frozen=True, rename="camel"):
    """A project of a tenant, in live or test mode."""

    id: Annotated[str, doc("The project's id.", "proj_01975c3a4f10b7e2d4a6c8f01e3b5d7f")]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    name: Annotated[str, doc("The display name.", "Storefront")]
    description: Annotated[str | None, doc("What it is for.", "The public shop")]
    mode: Annotated[Mode, doc("Live or test. Objects of one mode are invisible to the other.", "live")]
    created_at: Annotated[datetime, doc("When it was created.", "2026-11-02T09:30:00Z")]
    updated_at: Annotated[datetime, doc("When it was last changed.", "2026-11-02T09:30:00Z")]


class Window(NamedTuple):
    """Which page of a tenant's projects: up to ``limit`` after a position, newest first."""

    limit: int
    after_at: datetime | None = None
    after_id: str | None = None
