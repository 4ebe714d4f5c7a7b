"""Where the data of a person lies, and its replacement. The owner of the tables runs this.

A table is read and changed in ranges of its pages, so that a transaction is short whatever the size
of the table, and needs no index.
"""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, LiteralString, NamedTuple

import msgspec
from psycopg.types.json import Json

from tenantry.billing.batch_store import pack
from tenantry.billing.ledger_store import unpack
from tenantry.db.connection import Connection, TransactionScope
from tenantry.domain.api_keys import Pepper
from tenantry.domain.erased_ids import rejected_alias
from tenantry.domain.erasure import Person, Replacements, replacements_of
from tenantry.domain.members import User

AS_OWNER: Final = TransactionScope("none")
"""The scope of transactions that keep the login's own privileges."""
PAGES_AT_ONCE: Final = 64

# The principal of an idempotency key ends with the user's id.
_OF_SUBJECT: Final = "principal LIKE 'user:%%' AND right(principal, length(s) + 1) = ':' || s"
_OWN_KEY: Final = f"EXISTS (SELECT FROM unnest(%(subjects)s::text[]) s WHERE {_OF_SUBJECT})"
_OWN_ALIAS: Final = "FROM unnest(%(subjects)s::text[], %(aliases)s::text[]) own (s, alias)"
_ALIAS_OF_KEY: Final = (
    f"(SELECT left(principal, -length(s)) || alias {_OWN_ALIAS} WHERE {_OF_SUBJECT} LIMIT 1)"
)
_IS_RECIPIENT: Final = "recipient ~ %(any)s"


def _finds(columns: str) -> str:
    """Return the condition that these columns have the person: few rows need the slow patterns."""
    texts = f"concat_ws(chr(10), {columns})"
    return f"CASE WHEN {texts} ~ %(loose)s THEN {texts} ~ %(any)s END"


_IS_WAITING: Final = f"{_IS_RECIPIENT} AND status IN ('collecting', 'queued')"
_NO_NAME: Final = """'"(name|address)" *: *"([^"\\\\]|\\\\.)*"', '"\\1":null', 'g'"""


def _text(value: str) -> str:
    return f"erased_text({value}, %(patterns)s, %(replacements)s)"


def _texts(*columns: str) -> dict[str, str]:
    return {column: _text(column) for column in columns}


def _json(column: str, kind: str = "json") -> dict[str, str]:
    return {column: f"{_text(f'{column}::text')}::{kind}"}


def _ids(*columns: str) -> dict[str, str]:
    """Columns with the id of a user, alone or in a text."""
    return {column: _text(f"erased_id({column}, %(subjects)s, %(aliases)s)") for column in columns}


def _apart(column: str, changes: Mapping[str, str]) -> dict[str, str]:
    """The changes of a unique index's columns, with a ``column`` that keeps changed rows apart: a
    client may have sent the address in capitals too, or the person comes back meanwhile. No request
    looks for such a row.
    """
    changed = " OR ".join(f"{name} <> {becomes}" for name, becomes in changes.items())
    suffix = f"CASE WHEN {changed} THEN ':' || gen_random_uuid() ELSE '' END"
    return {**changes, column: f"{changes[column]} || {suffix}"}


def _alias_in_rejections() -> dict[str, str]:
    """The user of rejected requests, with the row's id where the user was rejected for the same
    within that minute before and after the row of before was changed.
    """
    alias = _ids("principal")["principal"]
    others = ("org_id", "kind", "mode", "minute", "code", "needed", "route")
    same = " AND ".join(f"o.{name} = rejections.{name}" for name in others)
    is_there = f"EXISTS (SELECT FROM rejections o WHERE {same} AND o.principal = own.alias)"
    apart = f"CASE WHEN own.alias <> principal AND {is_there} THEN ':' || id ELSE '' END"
    return {"principal": f"(SELECT own.alias || {apart} FROM (SELECT {alias}) own (alias))"}  # noqa: S608  # ours


class Place(NamedTuple):
    """A table where a person's data lies: what its columns become, which of them hold a user's id
    alone, and the tenant of a row.

    ``found`` finds a row where the columns do not.
    """

    table: str
    columns: Mapping[str, str]
    ids: Sequence[str] = ()
    tenant: str = "NULL"
    found: str = ""
    is_inserted_only: bool = False

    @property
    def condition(self) -> str:
        texts = ", ".join(name for name in self.columns)
        conditions = [f"{name} = ANY (%(subjects)s)" for name in self.ids]
        conditions.append(self.found or _finds(texts))
        return " OR ".join(conditions)

    @property
    def find(self) -> LiteralString:
        return f"SELECT {self.tenant} FROM {self.table} WHERE {self._in_pages}"  # noqa: S608  # ours

    @property
    def replace(self) -> LiteralString:
        if self.table == "audit_events":
            return "SELECT erase_from_audit_events(%(first)s::tid, %(last)s::tid)"
        changed = ", ".join(f"{name} = {becomes}" for name, becomes in self.columns.items())
        what = f"{self.table} SET {changed} WHERE {self._in_pages} RETURNING {self.tenant}"
        return f"UPDATE {what}"

    @property
    def _in_pages(self) -> str:
        return f"ctid >= %(first)s::tid AND ctid < %(last)s::tid AND ({self.condition})"


def _unless_own(column: str, is_own: str) -> dict[str, str]:
    """A column that is emptied in the rows of the person."""
    return {column: f"CASE WHEN {is_own} THEN NULL ELSE {column} END"}


_OWN_REJECTION: Final = "kind = 'user' AND principal = ANY (%(subjects)s)"
_OWN_ACT: Final = "subject = ANY (%(subjects)s)"
BODIES: Final = Place("billing_bodies", {}, is_inserted_only=True)
"""Bodies are compressed: `find_in_pages` reads them itself."""
PLACES: Final = (
    Place(
        "audit_events",
        _texts("actor_id", "on_behalf_of", "reason", "request_id", "target_id", "before", "after"),
        ("actor_id", "on_behalf_of"),
        "org_id",
        is_inserted_only=True,
    ),
    Place("outbound_events", _json("data"), tenant="org_id", is_inserted_only=True),
    Place(
        "api_keys",
        {
            **_ids("created_by", "external_id"),
            **_texts("name"),
            **_json("metadata"),
        },
        ("created_by", "external_id"),
        "org_id",
    ),
    Place("projects", _texts("name", "description"), tenant="org_id"),
    Place(
        "invitations",
        {**_texts("email", "address"), **_ids("invited_by")},
        ("invited_by",),
        "org_id",
    ),
    Place(
        "mails",
        {
            **_ids("recipient_id"),
            **_texts("recipient", "cause", "last_error"),
            **_json("data", "jsonb"),
            "limit_key": f"CASE WHEN {_IS_RECIPIENT} THEN {_text('recipient')} ELSE limit_key END",
            "status": f"CASE WHEN {_IS_WAITING} THEN 'dropped' ELSE status END",
            "ended_at": f"CASE WHEN {_IS_WAITING} THEN now() ELSE ended_at END",
            "digest": f"CASE WHEN {_IS_RECIPIENT} THEN NULL ELSE digest END",
        },
        ("recipient_id",),
        "tenant_id",
        _finds("recipient_id, recipient, cause, last_error, data"),
    ),
    Place(
        "tenants",
        {
            # of an ended one: the owner of another one is not erased
            "owner_id": f"CASE WHEN deleted_at IS NULL THEN owner_id ELSE {_ids('owner_id')['owner_id']} END",
            **_texts("name", "suspension", "owner_email"),
            # an alias would swallow the tenant's security notices
            "verified_email": "CASE WHEN verified_email ~ %(any)s THEN '' ELSE verified_email END",
            **_json("folds"),
        },
        tenant="id",
        found=(
            f"{_finds('name, suspension, owner_email, verified_email, folds')}"
            " OR (deleted_at IS NOT NULL AND owner_id = ANY (%(subjects)s))"
        ),
    ),
    Place(
        "idempotency_keys",
        {
            **_apart(
                "key",
                {
                    "principal": f"coalesce({_ALIAS_OF_KEY}, {_text('principal')})",
                    **_texts("route", "key"),
                },
            ),
            **_json("answer", "jsonb"),
        },
        found=f"{_finds('principal, route, key, answer')} OR {_OWN_KEY}",
    ),
    Place(
        "consumption_keys",
        {**_apart("key", _texts("key")), **_json("answer"), **_json("given_back")},
        tenant="org_id",
    ),
    Place("request_counts", _apart("subject", _texts("subject"))),
    Place(
        "rejections",
        {
            **_unless_own("address", _OWN_REJECTION),
            **_alias_in_rejections(),
            **_texts("route", "request_id"),
        },
        ("principal",),
        "org_id",
        _finds("principal, route, request_id"),
    ),
    Place(
        "operator_acts",
        {
            **_unless_own("name", _OWN_ACT),
            **_unless_own("address", _OWN_ACT),
            **_ids("subject"),
            **_texts("target_id", "reason", "request_id"),
        },
        ("subject",),
        found=_finds("subject, name, target_id, reason, request_id"),
    ),
    Place(
        "ledger_runs",
        {
            "author": _text(f"regexp_replace(author, {_NO_NAME})"),
            **_texts("failure", "result"),
        },
        tenant="tenant_id",
    ),
    Place("procrastinate_jobs", {**_json("args", "jsonb"), **_texts("lock", "queueing_lock")}),
    Place("webhook_deliveries", _texts("last_error")),
    Place("webhook_endpoints", _texts("disabled_reason")),
    Place("customers", _texts("linked_by"), tenant="tenant_id"),
    Place("provider_refusals", _texts("message")),
    Place("billing_events", {**_texts("invoice_url"), **_json("document")}, tenant="tenant_id"),
    BODIES,
)
"""Beside memberships, profiles and sessions, which are a person's own."""

_USERS_BY_ADDRESS: Final = """
SELECT issuer, subject FROM user_profiles WHERE lower(email) = ANY (%(addresses)s)
 UNION
SELECT issuer, subject FROM dashboard_sessions WHERE lower(claims::json->>'email') = ANY (%(addresses)s)
 UNION
SELECT m.issuer, m.subject
  FROM invitations i
  JOIN memberships m ON (m.tenant_id, m.id) = (i.org_id, i.member_id)
 WHERE lower(i.email) = ANY (%(addresses)s) OR i.address = ANY (%(addresses)s)
"""
_USERS_BY_SUBJECT: Final = """
SELECT issuer, subject FROM memberships WHERE subject = %(subject)s
 UNION
SELECT issuer, subject FROM user_profiles WHERE subject = %(subject)s
 UNION
SELECT issuer, subject FROM dashboard_sessions WHERE subject = %(subject)s
 UNION
SELECT issuer, subject FROM operator_acts WHERE subject = %(subject)s
"""
_ADDRESSES: Final = """
WITH own AS (SELECT * FROM unnest(%(issuers)s::text[], %(subjects)s::text[]) u (issuer, subject))
SELECT email FROM user_profiles JOIN own USING (issuer, subject) WHERE email IS NOT NULL
 UNION
SELECT claims::json->>'email' FROM dashboard_sessions JOIN own USING (issuer, subject)
 WHERE claims::json->>'email' IS NOT NULL
 UNION
SELECT i.email
  FROM memberships m
  JOIN own USING (issuer, subject)
  JOIN invitations i ON (i.org_id, i.member_id) = (m.tenant_id, m.id)
"""
# The owner is stored by subject alone: a user of another issuer may be meant.
_OBSTACLES: Final = """
WITH own AS (SELECT * FROM unnest(%(issuers)s::text[], %(subjects)s::text[]) u (issuer, subject)),
     owner AS (SELECT tenant_id, issuer, subject, (issuer, subject) IN (SELECT * FROM own) AS is_own
                 FROM memberships
                WHERE role = 'owner' AND removed_at IS NULL AND NOT invited)
SELECT id, 'owner'
  FROM tenants t
 WHERE deleted_at IS NULL
   AND ((owner_id IN (SELECT subject FROM own)
         AND NOT EXISTS (SELECT FROM owner
                          WHERE (tenant_id, subject) = (t.id, t.owner_id) AND NOT is_own))
        OR (EXISTS (SELECT FROM owner WHERE tenant_id = t.id AND is_own)
            AND NOT EXISTS (SELECT FROM owner WHERE tenant_id = t.id AND NOT is_own)))
 UNION ALL
SELECT id, 'address' FROM tenants
 WHERE deleted_at IS NULL AND lower(owner_email) = ANY (%(addresses)s)
   AND owner_id <> ALL (SELECT subject FROM own)
 UNION ALL
SELECT id, 'id' FROM tenants WHERE id IN (SELECT subject FROM own)
 ORDER BY 2 DESC, 1
"""
_OWN_MEMBERSHIPS: Final = """
SELECT id, tenant_id, issuer, subject, removed_at IS NOT NULL
  FROM memberships
  JOIN unnest(%(issuers)s::text[], %(subjects)s::text[]) own (issuer, subject) USING (issuer, subject)
 ORDER BY tenant_id, id
"""
_OPEN_INVITATIONS: Final = """
SELECT org_id, id FROM invitations
 WHERE closed_as IS NULL AND (lower(email) = ANY (%(addresses)s) OR address = ANY (%(addresses)s))
 ORDER BY org_id, id
"""
_END_SESSIONS: Final = """
DELETE FROM dashboard_sessions
 USING unnest(%(issuers)s::text[], %(subjects)s::text[]) own (issuer, subject)
 WHERE (dashboard_sessions.issuer, dashboard_sessions.subject) = (own.issuer, own.subject)
"""
_COUNT_SESSIONS: Final = """
SELECT count(*) FROM dashboard_sessions
 WHERE (issuer, subject) IN (SELECT * FROM unnest(%(issuers)s::text[], %(subjects)s::text[]))
"""
_PROFILES: Final = """
SELECT org_id FROM user_profiles p
  LEFT JOIN unnest(%(issuers)s::text[], %(subjects)s::text[]) own (issuer, subject)
    ON (own.issuer, own.subject) = (p.issuer, p.subject)
 WHERE own.subject IS NOT NULL OR lower(email) = ANY (%(addresses)s)
"""
# A profile of another user with one of the addresses loses the address.
_ERASE_PROFILES: Final = """
UPDATE user_profiles p
   SET subject = coalesce(own.alias, p.subject),
       email = NULL,
       name = CASE WHEN own.alias IS NULL THEN p.name END,
       claimed_role = CASE WHEN own.alias IS NULL THEN p.claimed_role END
  FROM user_profiles q
  LEFT JOIN unnest(%(issuers)s::text[], %(subjects)s::text[], %(aliases)s::text[]) own (issuer, subject, alias)
    ON (own.issuer, own.subject) = (q.issuer, q.subject)
 WHERE (p.org_id, p.issuer, p.subject) = (q.org_id, q.issuer, q.subject)
   AND (own.alias IS NOT NULL OR lower(q.email) = ANY (%(addresses)s))
RETURNING p.org_id
"""
# Of a user who came back while the erasure was under way: the renamed profile is there already.
_DROP_PROFILES: Final = """
DELETE FROM user_profiles p
 USING unnest(%(issuers)s::text[], %(subjects)s::text[], %(aliases)s::text[]) own (issuer, subject, alias)
 WHERE (p.issuer, p.subject) = (own.issuer, own.subject)
   AND EXISTS (SELECT FROM user_profiles q WHERE (q.org_id, q.issuer, q.subject) = (p.org_id, p.issuer, own.alias))
"""
_LOCK_TENANTS: Final = "SELECT FROM tenants WHERE id = ANY (%s) ORDER BY id FOR NO KEY UPDATE"
# Another erasure may have left a row that rejects the same user: that one then rejects for both.
_STRENGTHEN: Final = """
UPDATE memberships SET binds_owner = binds_owner OR (SELECT binds_owner FROM memberships WHERE id = %(id)s)
 WHERE (issuer, subject, tenant_id) = (%(issuer)s, %(alias)s, %(tenant)s)
"""
# A user who came back while the erasure was under way has a second one in the tenant.
_RENAME: Final = """
UPDATE memberships m
   SET subject = CASE WHEN EXISTS (SELECT FROM memberships o
                                    WHERE (o.issuer, o.subject, o.tenant_id) = (m.issuer, %(alias)s, m.tenant_id))
                      THEN %(alias)s || ':' || m.id ELSE %(alias)s END,
       removed_at = coalesce(removed_at, now())
 WHERE id = %(id)s
"""
_REJECT: Final = "UPDATE tenants SET rejects_erased = true WHERE id = %s AND NOT rejects_erased"
_LAST_PAGE: Final = """
SELECT greatest(pg_relation_size(%(table)s::regclass),
                (SELECT max(pg_relation_size(relid)) FROM pg_partition_tree(%(table)s::regclass)))
       / current_setting('block_size')::int
"""
_BEGIN: Final = """
INSERT INTO erasures (id, begun_at, person, patterns, loose, replacements, subjects, aliases)
VALUES (%(id)s, %(now)s, %(person)s, %(patterns)s, %(loose)s, %(replacements)s, %(subjects)s, %(aliases)s)
    ON CONFLICT DO NOTHING
"""
_END: Final = """
UPDATE erasures
   SET ended_at = %s, person = NULL, patterns = NULL, loose = NULL, replacements = NULL, subjects = NULL, aliases = NULL
 WHERE id = %s
"""
_MAY_ERASE: Final = (
    "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'tenants'::regclass"
)
_HAS_ENTRY: Final = """
SELECT EXISTS (SELECT FROM audit_events WHERE org_id = %s AND target_id = %s AND action = 'person.erased')
"""
_SUBJECTS: Final = """
SELECT subject FROM memberships UNION SELECT subject FROM user_profiles UNION
SELECT subject FROM dashboard_sessions UNION SELECT subject FROM operator_acts UNION
SELECT actor_id FROM audit_events WHERE actor_kind = 'user' UNION SELECT created_by FROM api_keys UNION
SELECT invited_by FROM invitations UNION SELECT owner_id FROM tenants UNION
SELECT recipient_id FROM mails WHERE recipient_id IS NOT NULL UNION
SELECT principal FROM rejections WHERE kind = 'user'
"""
_ALL_ADDRESSES: Final = """
SELECT email FROM user_profiles WHERE email IS NOT NULL UNION SELECT email FROM invitations UNION
SELECT owner_email FROM tenants UNION SELECT verified_email FROM tenants UNION SELECT recipient FROM mails UNION
SELECT claims::json->>'email' FROM dashboard_sessions WHERE claims::json->>'email' IS NOT NULL
"""
_READ_BODIES: Final = """
SELECT arrival, body FROM billing_bodies WHERE ctid >= %(first)s::tid AND ctid < %(last)s::tid
"""
_ERASED_TEXTS: Final = """
SELECT key, erased_text(value, %(patterns)s, %(replacements)s)
  FROM unnest(%(keys)s::bigint[], %(texts)s::text[]) found (key, value)
 WHERE value ~ %(any)s
"""
_WRITE_BODY: Final = "UPDATE billing_bodies SET body = %s WHERE arrival = %s"
_NO_BYTE: Final = "\ue000"
"""Means the byte 0, which PostgreSQL has in no text; Latin-1 has no such character."""
_ADDRESS: Final = re.compile(r"[a-z0-9._%+-]+@[a-z0-9.-]+[a-z0-9]", re.IGNORECASE)


class Erasure(NamedTuple):
    """An erasure that is under way."""

    id: str
    person: Person

    @property
    def replacements(self) -> Replacements:
        return replacements_of(self.person, self.id)


class OwnMembership(NamedTuple):
    """A membership of a person, and whether it has ended."""

    id: str
    org_id: str
    issuer: str
    subject: str
    is_removed: bool


class Obstacle(NamedTuple):
    """A tenant that a person must leave first, and why."""

    org_id: str
    why: str


def _identity(person: Person) -> dict[str, Any]:
    return {
        "issuers": [user.issuer for user in person.users],
        "subjects": [user.subject for user in person.users],
        "addresses": person.spelled_addresses,
    }


async def may_erase(connection: Connection) -> bool:
    """Whether the login owns the tables."""
    return bool(await connection.fetch_value(_MAY_ERASE))


async def users_by_address(connection: Connection, addresses: Sequence[str]) -> list[User]:
    return [
        User(*row)
        for row in await connection.fetch(_USERS_BY_ADDRESS, {"addresses": list(addresses)})
    ]


async def users_by_subject(connection: Connection, subject: str) -> list[User]:
    return [User(*row) for row in await connection.fetch(_USERS_BY_SUBJECT, {"subject": subject})]


async def addresses_of(connection: Connection, users: Iterable[User]) -> list[str]:
    """Return the addresses of users that are known by more than texts."""
    return await connection.fetch_column(_ADDRESSES, _identity(Person(tuple(users), ())))


async def obstacles(connection: Connection, person: Person) -> list[Obstacle]:
    """Return the tenants whose only owner a person is, that mail to the person, or that have the
    person's id.
    """
    return [Obstacle(*row) for row in await connection.fetch(_OBSTACLES, _identity(person))]


async def memberships_of(connection: Connection, person: Person) -> list[OwnMembership]:
    rows = await connection.fetch(_OWN_MEMBERSHIPS, _identity(person))
    return [OwnMembership(*row) for row in rows]


async def open_invitations(connection: Connection, person: Person) -> list[tuple[str, str]]:
    """Return the tenants and ids of a person's invitations by mail."""
    return [
        (row[0], row[1]) for row in await connection.fetch(_OPEN_INVITATIONS, _identity(person))
    ]


async def under_way(connection: Connection) -> Erasure | None:
    """Return the erasure that has not ended."""
    row = await connection.fetch_row("SELECT id, person::text FROM erasures WHERE ended_at IS NULL")
    return Erasure(row[0], msgspec.json.decode(row[1], type=Person)) if row else None


async def is_known(connection: Connection, erasure_id: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM erasures WHERE id = %s AND ended_at IS NOT NULL)"
    return bool(await connection.fetch_value(query, (erasure_id,)))


async def begin(connection: Connection, erasure: Erasure, now: datetime) -> bool:
    """Store an erasure; return False if another one is under way."""
    person = Json(msgspec.to_builtins(erasure.person))
    values = {"id": erasure.id, "now": now, "person": person}
    stored = await connection.execute(_BEGIN, {**values, **erasure.replacements._asdict()})
    return stored.rowcount == 1


async def end(connection: Connection, erasure: Erasure, now: datetime) -> None:
    """Forget the person."""
    await connection.execute(_END, (now, erasure.id))


async def end_sessions(connection: Connection, person: Person) -> int:
    return (await connection.execute(_END_SESSIONS, _identity(person))).rowcount


async def count_sessions(connection: Connection, person: Person) -> int:
    return await connection.fetch_count(_COUNT_SESSIONS, _identity(person))


async def profiles_of(connection: Connection, person: Person) -> list[str]:
    """Return the tenants of a person's profiles."""
    return await connection.fetch_column(_PROFILES, _identity(person))


async def erase_profiles(connection: Connection, erasure: Erasure) -> list[str]:
    """Erase a person's profiles; return their tenants."""
    found = erasure.replacements
    by_subject = dict(zip(found.subjects, found.aliases, strict=True))
    aliases = [by_subject[user.subject] for user in erasure.person.users]
    values = {**_identity(erasure.person), "aliases": aliases}
    await connection.execute(_DROP_PROFILES, values)
    return await connection.fetch_column(_ERASE_PROFILES, values)


async def lock_tenants(connection: Connection, tenants: Sequence[str]) -> None:
    await connection.execute(_LOCK_TENANTS, (list(tenants),))


async def rename_membership(
    connection: Connection, membership: OwnMembership, alias: str, pepper: Pepper | None
) -> None:
    """Give the user of a membership, which has ended, another id: with ``pepper`` one by which the
    tenant still rejects the user.
    """
    values = {"id": membership.id, "issuer": membership.issuer, "tenant": membership.org_id}
    if pepper is not None:
        rejected = rejected_alias(User(membership.issuer, membership.subject), pepper)
        known = await connection.execute(_STRENGTHEN, {**values, "alias": rejected})
        alias = alias if known.rowcount else rejected
        await connection.execute(_REJECT, (membership.org_id,))
    await connection.execute(_RENAME, {"id": membership.id, "alias": alias})


async def page_count(connection: Connection, place: Place) -> int:
    return await connection.fetch_count(_LAST_PAGE, {"table": place.table})


def _pages(first: int) -> dict[str, str]:
    return {"first": f"({first},0)", "last": f"({first + PAGES_AT_ONCE},0)"}


async def scan_pages(
    connection: Connection, place: Place, erasure: Erasure, first: int, *, dry_run: bool
) -> list[str | None]:
    """Replace what the pages of a place that begin with ``first`` have of a person, or only find
    it; return the tenants of the rows.
    """
    if place is BODIES:
        return await _scan_bodies(connection, erasure, first, dry_run=dry_run)
    values = {**erasure.replacements.values, **_pages(first)}
    return await connection.fetch_column(place.find if dry_run else place.replace, values)


async def _scan_bodies(
    connection: Connection, erasure: Erasure, first: int, *, dry_run: bool
) -> list[str | None]:
    loose = re.compile(erasure.person.loose_pattern)
    found = {
        arrival: text.replace("\0", _NO_BYTE)
        for arrival, text in await _bodies(connection, first)
        if erasure.person.may_be_in(text, loose)
    }
    texts = {"keys": list(found), "texts": list(found.values())}
    changed = await connection.fetch(_ERASED_TEXTS, {**erasure.replacements.values, **texts})
    if not dry_run:
        for arrival, text in changed:
            body = text.replace(_NO_BYTE, "\0").encode("latin-1")
            await connection.execute(_WRITE_BODY, (pack(body), arrival))
    return [None] * len(changed)


async def _bodies(connection: Connection, first: int) -> list[tuple[int, str]]:
    """Read raw bodies as Latin-1, which has a character for each byte; damaged ones say nothing."""
    bodies = list[tuple[int, str]]()
    for arrival, packed in await connection.fetch(_READ_BODIES, _pages(first)):
        with suppress(zlib.error):
            bodies.append((arrival, unpack(packed).decode("latin-1")))
    return bodies


async def has_entry(connection: Connection, org_id: str, erasure_id: str) -> bool:
    """Whether a tenant's trail has the erasure."""
    return bool(await connection.fetch_value(_HAS_ENTRY, (org_id, erasure_id)))


async def is_tenant(connection: Connection, org_id: str) -> bool:
    """Whether a tenant exists: rows of others may name one that is deleted."""
    query = "SELECT EXISTS (SELECT FROM tenants WHERE id = %s)"
    return bool(await connection.fetch_value(query, (org_id,)))


async def all_subjects(connection: Connection) -> list[str]:
    """Return every user id that a column has."""
    return await connection.fetch_column(_SUBJECTS)


async def all_addresses(connection: Connection) -> list[str]:
    """Return every address that a column has."""
    return await connection.fetch_column(_ALL_ADDRESSES)


async def addresses_in_bodies(connection: Connection, first: int) -> set[str]:
    """Return the addresses in the raw bodies of the pages that begin with ``first``."""
    bodies = await _bodies(connection, first)
    return {address for _, text in bodies for address in _ADDRESS.findall(text)}
