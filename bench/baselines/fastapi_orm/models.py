"""The tables, which ``python -m fastapi_orm.models`` creates."""

import asyncio
from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, Index, Text, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .database import engine


class Base(DeclarativeBase):
    """What the models have in common."""

    type_annotation_map = {datetime: DateTime(timezone=True)}  # noqa: RUF012


class Tenant(Base):
    """A customer of the product."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    plan: Mapped[str] = mapped_column(default="free")
    subscription_status: Mapped[str] = mapped_column(default="none")
    current_period_end: Mapped[datetime | None]
    stripe_customer_id: Mapped[str] = mapped_column(unique=True)


class StripeEvent(Base):
    """An event of the provider, stored once."""

    __tablename__ = "stripe_events"

    id: Mapped[str] = mapped_column(primary_key=True)
    type: Mapped[str]
    payload: Mapped[str] = mapped_column(Text)
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ApiKey(Base):
    """A credential of a tenant; only the digest of its secret is kept."""

    __tablename__ = "api_keys"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    digest: Mapped[str] = mapped_column(unique=True)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Project(Base):
    """A project of a tenant."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    description: Mapped[str | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    __table_args__ = (Index("ix_projects_tenant_id_created_at", "tenant_id", "created_at"),)


async def create_tables() -> None:
    """Create all tables."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


if __name__ == "__main__":
    asyncio.run(create_tables())
