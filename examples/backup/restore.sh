#!/bin/sh
# Restore a copy that backup.sh made into an empty database: restore.sh FILE
#
# The database is named as for psql, by PGDATABASE at least. All of it is restored, or nothing.
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

pg_restore --no-password --exit-on-error --single-transaction --no-owner --no-privileges --dbname="$PGDATABASE" "$file"
psql --no-psqlrc --no-password --quiet --command ANALYZE
echo "Restored. Before the service starts: tenantry migrate, then tenantry admin after-restore (docs/backup.md)." >&2
