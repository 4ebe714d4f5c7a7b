#!/bin/sh
# One consistent copy of tenantry's database, made while it is in use: backup.sh FOLDER
#
# The database is named as for psql: PGHOST, PGDATABASE, PGUSER, PGPASSFILE or PGSERVICE. The role is the owner of
# the tables, or one with BYPASSRLS that may read them. Prints the file's path.
set -eu
umask 077
folder=${1:?usage: backup.sh FOLDER}
file=$folder/tenantry-$(date -u +%Y%m%dT%H%M%SZ).dump

trap 'rm -f "$file.part"' EXIT
trap 'exit 1' HUP INT TERM
pg_dump --no-password --format=custom --no-owner --no-privileges --file="$file.part"
# Read to its end, so that a file that was cut off is not taken for a backup.
pg_restore --file=/dev/null "$file.part"
sync "$file.part"
mv "$file.part" "$file"
echo "$file"
