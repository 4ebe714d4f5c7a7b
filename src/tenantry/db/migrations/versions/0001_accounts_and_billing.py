"""Tenants, members, keys, projects, the billing ledger and notifications.

Revision ID: 0001
"""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = """
CREATE TABLE tenants (
    id                   text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[A-Za-z0-9_-]{1,64}$'),
    name                 text NOT NULL,
    owner_id             text NOT NULL,
    owner_email          text NOT NULL,
    stripe_customer_id   text,
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),
    suspended_at         timestamptz,
    deleted_at           timestamptz,
    -- the billing state: what the tenant began with, what the events so far have made of it,
    -- and the checkpoint before the second of the newest event
    base_plan            text NOT NULL DEFAULT 'free',
    plan                 text NOT NULL DEFAULT 'free',
    subscription_status  text NOT NULL DEFAULT 'none',
    current_period_end   bigint,
    cancel_at_period_end boolean NOT NULL DEFAULT false,
    provider_status      text,
    subscription_id      text,
    subscription_created bigint,
    tip_created          bigint,
    tip_state            jsonb
) WITH (fillfactor = 70);
CREATE INDEX tenants_deleted ON tenants (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE customers (
    id        text COLLATE "C" PRIMARY KEY,
    tenant_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    linked_by text NOT NULL,
    linked_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX customers_of_tenant ON customers (tenant_id);

CREATE TABLE memberships (
    issuer     text NOT NULL,
    subject    text NOT NULL,
    tenant_id  text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    role       text NOT NULL CHECK (role IN ('owner', 'admin', 'member')),
    created_at timestamptz NOT NULL DEFAULT now(),
    removed_at timestamptz,
    PRIMARY KEY (issuer, subject, tenant_id)
);
CREATE INDEX memberships_of_tenant ON memberships (tenant_id);

CREATE TABLE api_keys (
    id            text COLLATE "C" PRIMARY KEY,
    org_id        text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    digest        bytea NOT NULL UNIQUE,
    name          text NOT NULL,
    scopes        text[] NOT NULL,
    access_level  text NOT NULL CHECK (access_level IN ('SCOPED', 'OWNER')),
    mode          text NOT NULL CHECK (mode IN ('live', 'test')),
    expires_at    timestamptz,
    start         text NOT NULL,
    last4         text NOT NULL,
    created_at    timestamptz NOT NULL,
    created_by    text NOT NULL,
    last_used_at  timestamptz,
    revoked_at    timestamptz,
    rotated_from  text,
    superseded_by text
);
CREATE INDEX api_keys_of_tenant ON api_keys (org_id, created_at DESC, id DESC);

CREATE TABLE projects (
    id          text COLLATE "C" PRIMARY KEY,
    org_id      text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    mode        text NOT NULL CHECK (mode IN ('live', 'test')),
    name        text NOT NULL,
    description text,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);
CREATE INDEX projects_of_tenant ON projects (org_id, mode, created_at DESC, id DESC);

-- Arrival numbers are taken 1024 at a time: a batch numbers its events itself.
CREATE SEQUENCE billing_arrivals INCREMENT BY 1024;

CREATE TABLE billing_events (
    id                   text COLLATE "C" PRIMARY KEY,
    arrival              bigint NOT NULL,
    type                 text NOT NULL,
    created              bigint NOT NULL,
    received_at          timestamptz NOT NULL,
    livemode             boolean,
    api_version          text,
    org_id               text COLLATE "C",
    customer_id          text COLLATE "C",
    subscription_id      text,
    subscription_created bigint,
    status               text,
    price_id             text,
    current_period_end   bigint,
    cancel_at_period_end boolean,
    previous             jsonb,
    invoice_id           text,
    invoice_url          text,
    amount_due           bigint,
    currency             text,
    checkout_mode        text,
    problem              text,
    tenant_id            text COLLATE "C",
    outcome              text NOT NULL,
    reason               text NOT NULL,
    before               jsonb,
    after                jsonb,
    body                 bytea
);
CREATE INDEX billing_events_of_tenant ON billing_events (tenant_id, created, arrival) WHERE tenant_id IS NOT NULL;
CREATE INDEX billing_events_parked_by_org ON billing_events (org_id) WHERE outcome = 'parked';
CREATE INDEX billing_events_parked_by_customer ON billing_events (customer_id) WHERE outcome = 'parked';

CREATE TABLE notifications (
    id           uuid PRIMARY KEY,
    type         text NOT NULL,
    recipient_id text NOT NULL,
    tenant_id    text COLLATE "C" NOT NULL,
    channels     text[] NOT NULL,
    data         jsonb NOT NULL,
    -- its delivery
    event_id     text COLLATE "C" NOT NULL UNIQUE,
    status       text NOT NULL DEFAULT 'queued' CHECK (status IN ('queued', 'sent', 'failed')),
    attempts     integer NOT NULL DEFAULT 0,
    last_error   text,
    created_at   timestamptz NOT NULL,
    sent_at      timestamptz
);
CREATE INDEX notifications_unsent ON notifications (created_at) WHERE status <> 'sent';
CREATE INDEX notifications_of_tenant ON notifications (tenant_id);

CREATE TABLE idempotency_keys (
    principal   text NOT NULL,
    route       text NOT NULL,
    key         text NOT NULL,
    body_digest bytea NOT NULL,
    answer      jsonb NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (principal, route, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

CREATE TABLE queue_migrations (
    name       text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
