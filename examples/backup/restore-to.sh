#!/bin/sh
# Lay out a cluster that recovers to a moment when it is started: restore-to.sh BASE ARCHIVE DATA [TIME]
#
# DATA is the new data directory; TIME is RFC 3339, such as 2026-11-22T14:05:00Z: the last change that counts is the one
# before it. Without it, everything that was archived counts. Run it as the user that PostgreSQL runs as.
set -eu
umask 077
base=${1:?usage: restore-to.sh BASE ARCHIVE DATA [TIME]} archive=$2 data=$3 moment=${4:-}

case $archive$moment in
*[\'\"\\%]*)
  echo "ARCHIVE and TIME must be free of quotes, backslashes and percent signs." >&2
  exit 1
  ;;
esac
case $moment in
*[zZ]) moment=${moment%?}+00:00 ;; # PostgreSQL does not know "Z" yet when it reads its configuration
esac
if [ -d "$data" ] && [ -n "$(ls -A "$data")" ]; then
  echo "$data is not empty." >&2
  exit 1
fi

mkdir -p "$data"
cp -a "$base/." "$data/"
chmod 700 "$data"
{
  # Its own WAL in the archive would lead the next restore astray.
  echo "archive_mode = off"
  echo "restore_command = 'cp \"$archive/%f\" \"%p\"'"
  if [ -n "$moment" ]; then
    echo "recovery_target_time = '$moment'"
    echo "recovery_target_action = 'promote'"
  fi
} >>"$data/postgresql.auto.conf"
: >"$data/recovery.signal"
echo "Start PostgreSQL on $data. Before the service starts: tenantry admin after-restore (docs/how-to/backup.md)." >&2
