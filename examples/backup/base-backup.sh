#!/bin/sh
# The whole cluster, from which the archived WAL leads to any later moment: base-backup.sh FOLDER
#
# The server is named as for psql; the role needs REPLICATION. Prints the backup's path.
set -eu
umask 077
folder=${1:?usage: base-backup.sh FOLDER}
base=$folder/base-$(date -u +%Y%m%dT%H%M%SZ)

if ! command -v pg_verifybackup >/dev/null; then
  echo "pg_verifybackup is not on the PATH: Debian keeps it in /usr/lib/postgresql/VERSION/bin." >&2
  exit 1
fi
trap 'rm -rf "$base.part"' EXIT
trap 'exit 1' HUP INT TERM
pg_basebackup --no-password --pgdata="$base.part" --checkpoint=fast --wal-method=stream
pg_verifybackup --quiet "$base.part"
mv "$base.part" "$base"
echo "$base"
