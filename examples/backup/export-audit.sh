#!/bin/sh
# The audit trail of the last two hours into a folder that the database's fate does not reach: export-audit.sh FOLDER
# To be run every hour or more often; files overlap, which does not matter. DATABASE_URL as for the service.
set -eu
umask 077
folder=${1:?usage: export-audit.sh FOLDER}
file=$folder/audit-$(date -u +%Y%m%dT%H%M%SZ).ndjson

trap 'rm -f "$file.part"' EXIT
trap 'exit 1' HUP INT TERM
tenantry admin export-audit --since 2h >"$file.part"
sync "$file.part"
mv "$file.part" "$file"
