#!/bin/sh
# Runs a command of tenantry as the service would: by its user, with its settings and secrets. For root, installed as
# /usr/local/sbin/tenantry: tenantry doctor. Of files it sees those that everybody may read; stdin and stdout go through.
set -eu

secrets=/etc/tenantry/secrets
unit=tenantry-command-$$
set -- /opt/tenantry/bin/tenantry "$@"
for file in "$secrets"/*; do
  name=${file##*/}
  case $name in
  *[!a-z_]* | database_owner_url) continue ;; # the owner of the tables is the migration's alone
  esac
  variable=$(echo "$name" | tr '[:lower:]' '[:upper:]')_FILE
  set -- "--property=LoadCredential=$name:$file" "--setenv=$variable=/run/credentials/$unit.service/$name" "$@"
done

exec systemd-run --quiet --collect --pipe --wait --unit="$unit" --working-directory=/etc/tenantry \
  --property=DynamicUser=yes --property=User=tenantry --property=EnvironmentFile=/etc/tenantry/tenantry.env "$@"
