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

CREATE INDEX audit_events_of_actor ON audit_events (org_id, actor_id, at DESC, id DESC) WHERE actor_id IS NOT NULL;

-- Entries never change, and go only after the end of their tenant. The rule holds for the table's owner too.
CREATE FUNCTION keep_audit_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT FROM tenants WHERE id = OLD.org_id AND deleted_at IS NULL) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_events_are_kept BEFORE UPDATE OR DELETE ON audit_events
    FOR EACH ROW EXECUTE FUNCTION keep_audit_events();
CREATE TRIGGER audit_events_are_not_emptied BEFORE TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_events();

-- What a role may that owns nothing: remove a tenant and its trail once it has been over for 30 days by the database's
-- own clock. So that the end is not put into the past for that, such a role ends a tenant now or not at all.
CREATE FUNCTION owns_tenants() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT pg_has_role(session_user, relowner, 'MEMBER') FROM pg_class WHERE oid = 'tenants'::regclass
$$;
CREATE FUNCTION is_over(tenant text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM tenants WHERE id = tenant AND deleted_at IS NOT NULL
                      AND (owns_tenants() OR deleted_at <= clock_timestamp() - interval '30 days'))
$$;
CREATE FUNCTION purge_audit_events(tenant text, most integer) RETURNS SETOF text LANGUAGE sql SECURITY DEFINER AS $$
    DELETE FROM audit_events WHERE is_over(tenant)
       AND id IN (SELECT id FROM audit_events WHERE org_id = tenant LIMIT most) RETURNING id
$$;
CREATE FUNCTION purge_tenant(tenant text) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
    DELETE FROM tenants WHERE id = tenant AND is_over(tenant)
$$;
CREATE FUNCTION keep_ends_of_tenants() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.deleted_at IS NOT NULL AND NOT owns_tenants()
       AND abs(extract(epoch FROM NEW.deleted_at - clock_timestamp())) > 86400 THEN
        RAISE EXCEPTION 'a tenant ends now' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER ends_of_tenants_are_kept BEFORE UPDATE OF deleted_at ON tenants
    FOR EACH ROW WHEN (OLD.deleted_at IS DISTINCT FROM NEW.deleted_at) EXECUTE FUNCTION keep_ends_of_tenants();
REVOKE ALL ON FUNCTION purge_audit_events, purge_tenant FROM PUBLIC;
-- They mean these tables, whatever a session's search path or temporary tables say.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['keep_audit_events()', 'owns_tenants()', 'is_over(text)', 'keep_ends_of_tenants()',
                                'purge_audit_events(text, integer)', 'purge_tenant(text)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name, current_schema());
    END LOOP;
END $$;

ALTER TABLE api_keys ADD COLUMN last_used_address text;
-- Which pepper the digest was made under: its id, not the pepper; null for keys of before this column.
ALTER TABLE api_keys ADD COLUMN pepper_id text;
CREATE INDEX api_keys_rotated ON api_keys (rotated_from) WHERE rotated_from IS NOT NULL;

-- The defaults let the release before this one go on adding members.
ALTER TABLE memberships ADD COLUMN id text COLLATE "C" NOT NULL
    DEFAULT 'mbr_' || replace(gen_random_uuid()::text, '-', '');
ALTER TABLE memberships ADD COLUMN updated_at timestamptz;
CREATE UNIQUE INDEX memberships_by_id ON memberships (id);
DROP INDEX memberships_of_tenant;
CREATE INDEX memberships_of_tenant ON memberships (tenant_id, created_at DESC, id DESC);

-- Whether the owner's address is the one that the identity provider vouches for, and follows it.
ALTER TABLE tenants ADD COLUMN owner_email_follows boolean NOT NULL DEFAULT false;
-- The end of the token that said it: of two tokens that disagree, the one that ends later counts.
ALTER TABLE tenants ADD COLUMN owner_email_token_issued timestamptz;

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
