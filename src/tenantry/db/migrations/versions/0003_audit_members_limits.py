"""The audit trail, members by id, rate limits, and where a key was last used.

Revision ID: 0003
"""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = """
-- Who changed what. No foreign key to what was changed: the trail outlives it, though not its tenant.
CREATE TABLE audit_events (
    id         text COLLATE "C" PRIMARY KEY,
    org_id     text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    at         timestamptz NOT NULL,
    action     text NOT NULL,
    actor_kind text NOT NULL,
    actor_id   text,
    address    text,
    request_id text,
    target_id  text NOT NULL,
    before     jsonb,
    after      jsonb
);
CREATE INDEX audit_events_of_tenant ON audit_events (org_id, at DESC, id DESC);
CREATE INDEX audit_events_of_target ON audit_events (org_id, target_id, at DESC, id DESC);

-- Entries go with their tenant and in no other way; they never change. The rule holds for the table's owner too.
CREATE FUNCTION keep_audit_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT FROM tenants WHERE id = OLD.org_id) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_events_are_kept BEFORE UPDATE OR DELETE ON audit_events
    FOR EACH ROW EXECUTE FUNCTION keep_audit_events();
CREATE TRIGGER audit_events_are_not_emptied BEFORE TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_events();

ALTER TABLE api_keys ADD COLUMN last_used_address text;
-- Which pepper the digest was made under: its id, not the pepper; null for keys of before this column.
ALTER TABLE api_keys ADD COLUMN pepper_id text;
CREATE INDEX api_keys_rotated ON api_keys (rotated_from) WHERE rotated_from IS NOT NULL;

-- The defaults let the release before this one go on adding members.
ALTER TABLE memberships ADD COLUMN id text COLLATE "C" NOT NULL
    DEFAULT 'mbr_' || replace(gen_random_uuid()::text, '-', '');
ALTER TABLE memberships ADD COLUMN updated_at timestamptz;
CREATE UNIQUE INDEX memberships_by_id ON memberships (id);

-- Whether the owner's address is the one that the identity provider vouches for, and follows it.
ALTER TABLE tenants ADD COLUMN owner_email_follows boolean NOT NULL DEFAULT false;

-- Requests let in, by second: read and added to when a process asks for a share. Not logged: a crash of the
-- database forgets at most one minute of counting.
CREATE UNLOGGED TABLE request_counts (
    subject text COLLATE "C" NOT NULL,
    second  bigint NOT NULL,
    number  integer NOT NULL,
    PRIMARY KEY (subject, second)
) WITH (fillfactor = 50);
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
