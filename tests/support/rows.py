"""Two tenants with a row in every tenant table, for tests of isolation."""

from typing import Final

import psycopg
from psycopg import sql

ONE: Final = "one"
TWO: Final = "two"
BODY_OF: Final = {ONE: b"what one paid", TWO: b"what two paid"}

_STATEMENTS: Final = """
INSERT INTO tenants (id, name, owner_id, owner_email)
VALUES ({id}, {id}, 'user', 'owner@' || {id} || '.example');
INSERT INTO customers (id, tenant_id, linked_by) VALUES ('cus_' || {id}, {id}, 'operator');
INSERT INTO subscription_tenants (subscription_id, tenant_id) VALUES ('sub_' || {id}, {id});
INSERT INTO memberships (id, issuer, subject, tenant_id, role)
VALUES ('mbr_' || {id}, 'https://id.example', 'user', {id}, 'owner');
INSERT INTO invitations (id, org_id, email, address, role, binds_owner, invited_by, sends, created_at, expires_at)
VALUES ('inv_' || {id}, {id}, 'a@x.example', 'a@x.example', 'member', false, 'user', 1, now(), now());
INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at, created_by)
VALUES ('key_' || {id}, {id}, convert_to({id}, 'UTF8'), {id}, '{{}}', 'SCOPED', 'live', '', '', now(), 'user');
INSERT INTO projects (id, org_id, mode, name, created_at, updated_at)
VALUES ('proj_' || {id}, {id}, 'live', {id}, now(), now());
INSERT INTO billing_events (id, arrival, type, created, received_at, org_id, tenant_id, outcome)
VALUES ('evt_' || {id}, ascii({id}), 'invoice.payment_failed', 1, now(), {id}, {id}, 'applied');
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT arrival, now(), {body} FROM billing_events WHERE tenant_id = {id};
INSERT INTO mails (id, type, tenant_id, cause, recipient_id, recipient, data, status, created_at, due_at)
VALUES (gen_random_uuid(), 'billing.payment_failed', {id}, 'evt_' || {id}, 'user', 'a@x.example', '{{}}', 'queued',
        now(), now());
INSERT INTO audit_events (id, org_id, at, action, actor_kind, target_id)
VALUES ('aud_' || {id}, {id}, now(), 'tenant.created', 'operator', {id});
INSERT INTO operator_acts (id, at, action, org_id, target_id, issuer, subject)
VALUES ('act_' || {id}, now(), 'tenant.suspended', {id}, {id}, 'issuer', 'olga');
INSERT INTO ledger_runs (tenant_id, id, kind, repairs, author, requested_at)
VALUES ({id}, 'run_' || {id}, 'replay', false, '{{}}', now());
INSERT INTO outbound_events (epoch, type, org_id, at, recorded_at, data)
VALUES (1, 'tenant.updated', {id}, now(), now(), '{{}}');
INSERT INTO idempotency_keys (principal, route, key, body_digest, answer, created_at)
VALUES ('api_key:' || {id} || ':key_' || {id}, 'POST /api/v1/projects', '1', '', '{{}}', now());
INSERT INTO request_counts (subject, second, number) VALUES ('tenant ' || {id}, 1, 1);
INSERT INTO usage_counters (org_id, feature, mode, period_start, period_end, used)
VALUES ({id}, 'exports', 'live', 1, 2, 1);
INSERT INTO usage_hours (org_id, key_id, hour, outcome, number)
VALUES ({id}, 'key_' || {id}, '2026-11-27 18:00Z', 'accepted', 1);
INSERT INTO usage_days (org_id, key_id, day, outcome, number)
VALUES ({id}, 'key_' || {id}, '2026-11-27 00:00Z', 'accepted', 1);
INSERT INTO rejections
       (id, org_id, kind, principal, mode, minute, code, needed, route, status, at, request_id, counted)
VALUES ('rejection_' || {id}, {id}, 'api_key', 'key_' || {id}, 'live', '2026-11-27 18:00Z', 'rate_limited', '', '', 429,
        '2026-11-27 18:00Z', '1', 1);
INSERT INTO consumption_keys (org_id, feature, mode, key, body_digest, answer, created_at, taken, period_start)
VALUES ({id}, 'exports', 'live', '1', '', '{{}}', now(), 1, 0);
INSERT INTO user_profiles (org_id, issuer, subject, name, seen_at)
VALUES ({id}, 'https://id.example', 'user', 'Una User', now());
INSERT INTO dashboard_sessions (digest, issuer, subject, claims, tenant_id, proved_at, started_at, used_at)
VALUES (sha256(convert_to({id}, 'UTF8')), 'https://id.example', 'user', '{{}}', {id}, now(), now(), now());
"""

OWNER_OF: Final = {
    "tenants": "id",
    "customers": "tenant_id",
    "subscription_tenants": "tenant_id",
    "memberships": "tenant_id",
    "invitations": "org_id",
    "api_keys": "org_id",
    "projects": "org_id",
    "billing_events": "tenant_id",
    "mails": "tenant_id",
    "audit_events": "org_id",
    "operator_acts": "org_id",
    "ledger_runs": "tenant_id",
    "outbound_events": "org_id",
    "idempotency_keys": "split_part(principal, ':', 2)",
    "request_counts": "substr(subject, 8)",
    "usage_counters": "org_id",
    "usage_hours": "org_id",
    "usage_days": "org_id",
    "rejections": "org_id",
    "consumption_keys": "org_id",
    "user_profiles": "org_id",
    "dashboard_sessions": "tenant_id",
}
"""What says, in each table, whose a row is."""


def add_rows(conninfo: str) -> None:
    """Make both tenants, as the owner of the tables."""
    with psycopg.connect(conninfo) as connection:
        for tenant_id, body in BODY_OF.items():
            statements = sql.SQL(_STATEMENTS).format(
                id=sql.Literal(tenant_id), body=sql.Literal(body)
            )
            connection.execute(statements)
