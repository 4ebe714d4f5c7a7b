"""Raw bodies apart from the ledger, anomalies as a column, and when a tenant was last compared with
the provider.

Revision ID: 0002
"""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = """
-- Raw bodies are big, seldom read and dropped with age; the facts beside them are small, often read and kept.
-- Arrival numbers grow, so the oldest bodies are at one end of the index, and new ones go to the other.
CREATE TABLE billing_bodies (
    arrival     bigint PRIMARY KEY,
    received_at timestamptz NOT NULL,
    body        bytea NOT NULL
);
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT arrival, received_at, body FROM billing_events WHERE body IS NOT NULL;
ALTER TABLE billing_events DROP COLUMN body;

ALTER TABLE billing_events ADD COLUMN anomalies text[];
CREATE INDEX billing_events_with_anomalies ON billing_events (received_at) WHERE anomalies IS NOT NULL;

ALTER TABLE tenants ADD COLUMN reconciled_at timestamptz;

-- What checks found that read too much to be asked for at every look at the metrics.
CREATE TABLE billing_findings (
    name     text PRIMARY KEY,
    number   bigint NOT NULL,
    found_at timestamptz NOT NULL
);
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
