#!/bin/sh
# Patroni runs this once, when it has made the database cluster. It creates the database, its owner, the service's login,
# and the roles of docs/how-to/database-roles.md. Then run `tenantry migrate --grant-to tenantry_service` as the owner.
set -eu

psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 "$1" <<'END'
\set owner_password `printf %s "$TENANTRY_OWNER_PASSWORD"`
\set service_password `printf %s "$TENANTRY_SERVICE_PASSWORD"`
CREATE ROLE tenantry LOGIN PASSWORD :'owner_password';
CREATE ROLE tenantry_service LOGIN NOINHERIT PASSWORD :'service_password';
CREATE ROLE tenantry_api NOLOGIN;
CREATE ROLE tenantry_people NOLOGIN;
CREATE ROLE tenantry_batch NOLOGIN;
CREATE ROLE tenantry_read NOLOGIN;
GRANT tenantry_api, tenantry_people, tenantry_batch TO tenantry_service;
CREATE DATABASE tenantry OWNER tenantry;
END
