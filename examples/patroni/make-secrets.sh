#!/bin/sh
# Makes passwords, a certificate authority, and a certificate for each machine, in the folder secrets:
#   ./make-secrets.sh db-1.example=192.0.2.11 db-2.example=192.0.2.12 ...
# What exists is kept, so a machine can be added later. Each certificate holds the machine's name, its address, and
# postgres.example, the name under which HAProxy offers the primary. Needs openssl.
set -eu
umask 077
mkdir -p secrets
cd secrets

if [ ! -e secrets.env ]; then
  for name in PATRONI_SUPERUSER PATRONI_REPLICATION PATRONI_REWIND PATRONI_RESTAPI TENANTRY_OWNER TENANTRY_SERVICE; do
    echo "${name}_PASSWORD=$(openssl rand -hex 24)"
  done >secrets.env.new
  mv secrets.env.new secrets.env
fi

if [ ! -e ca.crt ]; then
  openssl ecparam -genkey -name prime256v1 -noout -out ca.key
  openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=tenantry database" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.crt
fi

for machine in "$@"; do
  name=${machine%%=*}
  [ ! -e "$name.crt" ] || continue
  openssl ecparam -genkey -name prime256v1 -noout -out "$name.key"
  # Patroni and etcd use it in both directions.
  printf '%s\n' "subjectAltName=DNS:$name,IP:${machine#*=},DNS:postgres.example" "keyUsage=critical,digitalSignature" \
    "extendedKeyUsage=serverAuth,clientAuth" >"$name.ext"
  openssl req -new -key "$name.key" -subj "/CN=$name" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -extfile "$name.ext" -out "$name.crt"
  rm "$name.ext"
done
chmod a+r ./*.crt
