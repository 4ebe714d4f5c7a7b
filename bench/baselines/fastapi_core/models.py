"""The tables."""

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
)

metadata = MetaData()

tenants = Table(
    "tenants",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("plan", String, nullable=False, server_default="free"),
    Column("subscription_status", String, nullable=False, server_default="none"),
    Column("current_period_end", DateTime(timezone=True)),
    Column("stripe_customer_id", String, nullable=False, unique=True),
)

stripe_events = Table(
    "stripe_events",
    metadata,
    Column("id", String, primary_key=True),
    Column("type", String, nullable=False),
    Column("payload", Text, nullable=False),
    Column("received_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column("digest", String, nullable=False, unique=True),
    Column("expires_at", DateTime(timezone=True)),
    Column("revoked_at", DateTime(timezone=True)),
)

projects = Table(
    "projects",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column("name", String, nullable=False),
    Column("description", String),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False),
    Index("ix_projects_tenant_id_created_at", "tenant_id", "created_at"),
)
