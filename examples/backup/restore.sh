#!/bin/sh
# Restore a copy that backup.sh made into an empty database: restore.sh FILE
#
# The database is named as for psql, by PGDATABASE at least. The role that restores owns the tables: use the role that
# runs `tenantry migrate`. The restore is one transaction.
set -eu
file=${1:?usage: restore.sh FILE}
: "${PGDATABASE:?the database to restore into}"

tables=$(psql --no-psqlrc --no-password --tuples-only --no-align --command "SELECT count(*) FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p')
  AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'")
if [ "$tables" -ne 0 ]; then
  echo "$PGDATABASE holds $tables tables: restore into an empty database." >&2
  exit 1
fi

# What keeps tenants apart (docs/how-to/database-roles.md) is left out: it names roles, which another server may not have.
# `tenantry migrate` puts it up again where they are.
contents=$(mktemp)
trap 'rm -f "$contents"' EXIT
pg_restore --list --file="$contents" "$file"
sed -E -i '/^[0-9]+; [0-9]+ [0-9]+ (POLICY|ROW SECURITY|COMMENT [^ ]+ POLICY) /d' "$contents"

pg_restore --no-password --exit-on-error --single-transaction --no-owner --no-privileges --use-list="$contents" \
  --dbname="$PGDATABASE" "$file"
psql --no-psqlrc --no-password --quiet --set ON_ERROR_STOP=1 <<'SQL'
-- The dump has no privileges: until they are granted, no other role may call a function that acts for its owner.
DO $$
DECLARE
  name regprocedure;
BEGIN
  FOR name IN SELECT oid FROM pg_proc WHERE prosecdef AND pronamespace = current_schema()::regnamespace LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', name);
  END LOOP;
END $$;
SELECT format('ANALYZE %s', oid::regclass) FROM pg_class
 WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace \gexec
SQL
echo "Restored. Before the service starts: tenantry migrate, then tenantry admin after-restore (docs/how-to/backup.md)." >&2
