#!/bin/sh
# Run by the image of PostgreSQL when it makes the database: the login of the service and the worker, which owns nothing.
# What it may is given to it by `tenantry migrate --grant-to` (docs/how-to/database-roles.md).
set -eu

psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'END'
\set password `cat "${SERVICE_PASSWORD_FILE:-/run/secrets/service_password}"`
CREATE ROLE tenantry_service LOGIN PASSWORD :'password';
END
