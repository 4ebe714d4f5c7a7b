"""Reading one raw body without the privilege to read all of them.

Revision ID: 0007
"""

from alembic import op

revision = "0007"
down_revision = "0006"

STATEMENTS = """
-- Bodies name no tenant: the ledger's entries do. These look it up, for roles that may not read the bodies themselves.
CREATE FUNCTION tenant_event_body(event text) RETURNS bytea LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT b.body FROM billing_events e JOIN billing_bodies b USING (arrival)
     WHERE e.id = event AND e.tenant_id = nullif(current_setting('tenantry.tenant_id', true), '')
$$;
CREATE FUNCTION event_body(event text) RETURNS bytea LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT b.body FROM billing_events e JOIN billing_bodies b USING (arrival) WHERE e.id = event
$$;
REVOKE ALL ON FUNCTION tenant_event_body, event_body FROM PUBLIC;
-- They mean these tables, whatever a session's search path or temporary tables say. And who may read the bodies
-- already, as a role that an earlier release's --grant-to has made, may read them so too.
DO $$
DECLARE
    function text;
    reader oid;
BEGIN
    FOREACH function IN ARRAY ARRAY['tenant_event_body(text)', 'event_body(text)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', function, current_schema());
        FOR reader IN SELECT DISTINCT acl.grantee FROM pg_class, aclexplode(relacl) acl
                       WHERE pg_class.oid = 'billing_bodies'::regclass AND acl.privilege_type = 'SELECT'
                         AND acl.grantee NOT IN (0, relowner) LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', function, reader::regrole);
        END LOOP;
    END LOOP;
END $$;
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
