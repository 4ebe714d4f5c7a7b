"""What the hot paths read and write, in the form that costs least.

Revision ID: 0004
"""

from alembic import op

revision = "0004"
down_revision = "0003"

STATEMENTS = """
-- Kept to be read whole, and never searched: as text it need not be taken apart.
ALTER TABLE tenants ALTER COLUMN tip_state TYPE json;
ALTER TABLE billing_events
    ALTER COLUMN previous TYPE json, ALTER COLUMN before TYPE json, ALTER COLUMN after TYPE json;

-- A body of a few KiB stays in its row as it is: to compress it, or to move it elsewhere, costs more than all else
-- that is written with it. Bodies go with age.
ALTER TABLE billing_bodies SET (toast_tuple_target = 8160);

-- Room in each page for the last uses of its keys, which change no index then.
ALTER TABLE api_keys SET (fillfactor = 80);

-- A project as the API shows it, made once, when it is written, instead of at every look at it.
CREATE FUNCTION api_time(moment timestamptz) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '[.]000000$', '') || 'Z'
$$;
CREATE FUNCTION project_document(id text, org_id text, name text, description text, mode text, created_at timestamptz,
                                 updated_at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT format('{"id":%s,"orgId":%s,"name":%s,"description":%s,"mode":%s,"createdAt":"%s","updatedAt":"%s"}',
                  to_json(id), to_json(org_id), to_json(name), coalesce(to_json(description), 'null'), to_json(mode),
                  api_time(created_at), api_time(updated_at))
$$;
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['api_time(timestamptz)',
                                'project_document(text, text, text, text, text, timestamptz, timestamptz)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name, current_schema());
    END LOOP;
END $$;
ALTER TABLE projects ADD COLUMN document text NOT NULL
    GENERATED ALWAYS AS (project_document(id, org_id, name, description, mode, created_at, updated_at)) STORED;
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
