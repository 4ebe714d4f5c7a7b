"""Who is signed in to the dashboard, and what people are called who look at a tenant with it.

Revision ID: 0005
"""

from alembic import op

revision = "0005"
down_revision = "0004"

STATEMENTS = """
CREATE TABLE dashboard_sessions (
    digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    issuer text NOT NULL,
    subject text NOT NULL,
    claims text NOT NULL,
    name text,
    tenant_id text,
    address text,
    agent text,
    proved_at timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    used_at timestamptz NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX dashboard_sessions_by_user ON dashboard_sessions (issuer, subject);
CREATE INDEX dashboard_sessions_by_start ON dashboard_sessions (started_at);
COMMENT ON COLUMN dashboard_sessions.digest IS 'HMAC of what the cookie holds; the cookie itself is nowhere';
COMMENT ON COLUMN dashboard_sessions.proved_at IS 'when the identity provider last vouched for the claims';

CREATE TABLE dashboard_names (
    org_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    issuer text NOT NULL,
    subject text NOT NULL,
    name text NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (org_id, issuer, subject)
);
CREATE INDEX dashboard_names_by_age ON dashboard_names (seen_at);
COMMENT ON TABLE dashboard_names IS 'names as the identity provider gives them; a tenant learns those of its visitors';
COMMENT ON COLUMN dashboard_names.seen_at IS 'when its bearer was seen there, to the day';
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
