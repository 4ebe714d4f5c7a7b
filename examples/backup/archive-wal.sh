#!/bin/sh
# PostgreSQL's archive_command: archive-wal.sh PATH NAME ARCHIVE, as in
#   archive_command = '/usr/local/lib/tenantry/archive-wal.sh %p %f /srv/backup/wal'
# A file is there whole or not at all, and none is overwritten.
set -eu
umask 077
path=$1 name=$2 archive=$3

if [ -e "$archive/$name" ]; then
  cmp -s "$path" "$archive/$name" && exit 0 # archived before, and PostgreSQL was not told in time
  echo "$archive/$name is there with another content" >&2
  exit 1
fi
cp "$path" "$archive/.$name.part"
sync "$archive/.$name.part"
mv "$archive/.$name.part" "$archive/$name"
sync "$archive"
