"""Mails to be delivered, in two tables.

``notifications`` holds billing notices (SPEC 2.4), ``owner_mails`` security notices, their digests,
confirmations and invitations.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import msgspec

from tenantry.db.connection import Connection
from tenantry.domain import owner_mails as rules
from tenantry.domain.billing.events import PAYMENT_TYPES
from tenantry.domain.billing.ledger import FailedPayment
from tenantry.domain.billing.notices import BillingNotice, time_to_end
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.owner_mails import NOTICES_PER_HOUR, OWNER_ADDRESS_CONFIRMATION, PendingMail
from tenantry.domain.quota_notices import QuotaNotice

INSERT_NOTIFICATIONS: Final = """
INSERT INTO notifications (id, type, recipient_id, tenant_id, channels, data, event_id, created_at, recipient)
SELECT gen_random_uuid(), %(type)s, failed.owner_id, failed.tenant_id, '{email}',
       jsonb_build_object('invoiceUrl', failed.invoice_url), failed.event_id, %(now)s,
       (SELECT t.owner_email FROM tenants t WHERE t.id = failed.tenant_id)
  FROM json_to_recordset(%(failures)s::json) AS failed (
         tenant_id text, owner_id text, event_id text, invoice_url text)
    ON CONFLICT (event_id) DO NOTHING
RETURNING id, event_id
"""
# A worker reads the mail under the lock of its row, while its job is under way. So either the
# worker finds no mail, or this leaves the mail to it. Two statements: the second one sees the jobs
# as they are under the lock.
LOCK_QUEUED: Final = "SELECT FROM notifications WHERE event_id = ANY(%s) AND status = 'queued' ORDER BY id FOR UPDATE"
WITHDRAW: Final = """
DELETE FROM notifications n
 WHERE n.event_id = ANY(%s) AND n.status = 'queued'
   AND NOT EXISTS (SELECT FROM procrastinate_jobs job
                    WHERE job.status = 'doing' AND job.args->>'notification_id' = n.id::text)
"""
# The cause takes the place of the event's id, which is unique. A recovered payment is one whose
# failure was mailed. The cause of an end of access ends with its second: one that did not begin
# after another mailed end is that one, which a late event has moved. So is the late end of an older
# subscription.
INSERT_NOTICES: Final = """
INSERT INTO notifications (id, type, recipient_id, tenant_id, channels, data, event_id, created_at, recipient)
SELECT gen_random_uuid(), given.type, given.owner_id, given.tenant_id, '{email}', given.data, given.cause, %(now)s,
       (SELECT t.owner_email FROM tenants t WHERE t.id = given.tenant_id)
  FROM json_to_recordset(%(notices)s::json) AS given (
         type text, tenant_id text, owner_id text, cause text, data jsonb, paid_invoice text, begun bigint)
 WHERE (given.paid_invoice IS NULL
        OR EXISTS (SELECT FROM notifications n JOIN billing_events e ON e.id = n.event_id
                    WHERE n.tenant_id = given.tenant_id AND n.type = %(failed)s
                      AND e.document->>'invoice_id' = given.paid_invoice))
   AND (given.begun IS NULL
        OR NOT EXISTS (SELECT FROM notifications n
                        WHERE n.tenant_id = given.tenant_id AND n.type = %(access_ended)s
                          AND split_part(n.event_id, ' ', 3)::bigint >= given.begun))
    ON CONFLICT (event_id) DO NOTHING
RETURNING id
"""
# A subscription that is unpaid no longer: the newest of its paid invoices whose failure was mailed.
INSERT_RECOVERIES: Final = f"""
INSERT INTO notifications (id, type, recipient_id, tenant_id, channels, data, event_id, created_at, recipient)
SELECT gen_random_uuid(), given.type, given.owner_id, given.tenant_id, '{{email}}',
       jsonb_build_object('invoiceUrl', paid.invoice_url), given.cause || paid.invoice_id, %(now)s,
       (SELECT t.owner_email FROM tenants t WHERE t.id = given.tenant_id)
  FROM json_to_recordset(%(notices)s::json) AS given (
         type text, tenant_id text, owner_id text, cause text, recovered text)
 CROSS JOIN LATERAL (
         SELECT e.document->>'invoice_id' AS invoice_id, e.invoice_url
           FROM notifications n
           JOIN billing_events e ON e.id = n.event_id
          WHERE n.tenant_id = given.tenant_id AND n.type = %(failed)s
            AND coalesce(e.subscription_id, given.recovered) = given.recovered
            AND EXISTS (SELECT FROM billing_events p
                         WHERE p.tenant_id = given.tenant_id
                           AND p.document->>'invoice_id' = e.document->>'invoice_id'
                           AND p.type = ANY('{{{",".join(sorted(PAYMENT_TYPES))}}}') AND p.created >= e.created
                           AND p.outcome IN ('applied', 'late', 'no_change'))
          ORDER BY e.created DESC
          LIMIT 1) AS paid
    ON CONFLICT (event_id) DO NOTHING
RETURNING id
"""  # noqa: S608  # our own names
# Access is followed by none after its first phase, before its last one, or between these, as phases
# of either kind can differ by what grants give. Three indexes find them. The cause is that of
# `access_end_cause`.
INSERT_ACCESS_ENDS: Final = """
WITH ended AS (
       SELECT id,
              (access->0->>'until')::bigint AS at,
              access->0->>'state' AS state,
              access->1->>'reason' AS reason
         FROM tenants
        WHERE (access->0->>'until')::bigint BETWEEN %(since)s AND %(until)s
          AND access->1->>'state' = 'none'
        UNION
       SELECT id,
              (access->-2->>'until')::bigint,
              access->-2->>'state',
              access->-1->>'reason'
         FROM tenants
        WHERE (access->-2->>'until')::bigint BETWEEN %(since)s AND %(until)s
          AND access->-1->>'state' = 'none'
        UNION
       SELECT id,
              (phase->>'until')::bigint,
              phase->>'state',
              access->position::int->>'reason' -- positions begin with 1: this is the next phase
         FROM tenants
        CROSS JOIN LATERAL json_array_elements(access) WITH ORDINALITY AS phases (phase, position)
        WHERE json_array_length(access) > 3
          AND (phase->>'until')::bigint BETWEEN %(since)s AND %(until)s
          AND access->position::int->>'state' = 'none')
INSERT INTO notifications (id, type, recipient_id, tenant_id, channels, data, event_id, created_at, recipient)
SELECT gen_random_uuid(), %(type)s, t.owner_id, t.id, '{email}', jsonb_build_object('reason', ended.reason),
       %(type)s || ' ' || t.id || ' ' || ended.at, %(now)s, t.owner_email
  FROM ended
  JOIN tenants t USING (id)
 WHERE ended.state <> 'none' AND t.deleted_at IS NULL
   AND NOT EXISTS (SELECT FROM notifications n
                    WHERE n.event_id = %(type)s || ' ' || t.id || ' ' || ended.at)
   AND NOT EXISTS (SELECT FROM notifications n
                    WHERE n.tenant_id = t.id AND n.type = %(type)s
                      AND split_part(n.event_id, ' ', 3)::bigint
                          >= ended.at - CASE ended.state WHEN 'grace' THEN %(grace)s ELSE %(other)s END)
 ORDER BY ended.at
 LIMIT %(most)s
    ON CONFLICT (event_id) DO NOTHING
RETURNING id
"""
INSERT_QUOTA_NOTICES: Final = """
INSERT INTO notifications (id, type, recipient_id, tenant_id, channels, data, event_id, created_at, recipient)
SELECT gen_random_uuid(), %(type)s, t.owner_id, t.id, '{email}', given.data, given.cause, %(now)s, t.owner_email
  FROM json_to_recordset(%(notices)s::json) AS given (org_id text, cause text, data jsonb)
  JOIN tenants t ON t.id = given.org_id
    ON CONFLICT (event_id) DO NOTHING
RETURNING id
"""
PENDING_NOTIFICATION: Final = """
SELECT n.id, n.attempts, n.created_at, t.name, n.recipient, n.tenant_id,
       n.data->>'invoiceUrl', (e.document->>'amount_due')::bigint,
       (e.document->>'amount_remaining')::bigint, e.document->>'currency', n.type, n.data::text
  FROM notifications n
  JOIN tenants t ON t.id = n.tenant_id
  LEFT JOIN billing_events e ON e.id = n.event_id
 WHERE n.id = %(id)s AND n.status = 'queued'
   FOR NO KEY UPDATE OF n
"""
# A job is deleted after its mail is recorded, in another transaction: a crash may lose the record
# alone.
_ORPHANED: Final = """
SELECT id
  FROM {table} m
 WHERE status IN ('queued', 'collecting')
   AND NOT EXISTS (SELECT FROM procrastinate_jobs job
                    WHERE job.task_name = %(task)s AND job.status IN ('todo', 'doing')
                      AND job.args->>'notification_id' = m.id::text)
 ORDER BY created_at
 LIMIT %(most)s
   FOR UPDATE SKIP LOCKED
"""
_MARK_SENT: Final = """
UPDATE {table} SET status = 'sent', attempts = attempts + 1, sent_at = %s, last_error = NULL WHERE id = %s
"""
# Users choose the addresses of some mails, so the operator need not know that one cannot be
# delivered.
_MARK_ATTEMPT: Final = """
UPDATE {table}
   SET attempts = attempts + 1, last_error = %(error)s,
       status = CASE WHEN NOT %(final)s THEN status WHEN type = ANY(%(chosen)s) THEN 'dropped' ELSE 'failed' END
 WHERE id = %(id)s
"""
_GIVE_UP: Final = (
    "UPDATE {table} SET status = 'failed', last_error = %s WHERE status IN ('queued', 'collecting')"
)
_TABLES: Final = ("notifications", "owner_mails")
READ_QUEUE: Final = """
SELECT count(*) FILTER (WHERE status = 'queued'), count(*) FILTER (WHERE status = 'failed'),
       greatest(coalesce(extract(epoch FROM now() - min(due_at) FILTER (WHERE status = 'queued')), 0), 0)::float8
  FROM (SELECT status, created_at AS due_at FROM notifications WHERE status <> 'sent'
         UNION ALL
        SELECT CASE status WHEN 'collecting' THEN 'queued' ELSE status END, due_at FROM owner_mails
         WHERE status NOT IN ('sent', 'dropped')) AS mails
"""
LATEST_NOTICES: Final = """
SELECT due_at FROM owner_mails
 WHERE tenant_id = %(tenant)s AND due_at > %(since)s AND type = ANY(%(notices)s)
 ORDER BY due_at DESC LIMIT %(most)s
"""
COUNT_CONFIRMATIONS: Final = """
SELECT count(*) FILTER (WHERE created_at > %(hour)s AND tenant_id = %(tenant)s),
       count(*) FILTER (WHERE created_at > %(hour)s AND limit_key = %(key)s),
       count(*) FILTER (WHERE limit_key = %(key)s)
  FROM owner_mails
 WHERE type = %(confirmation)s
   AND ((tenant_id = %(tenant)s AND due_at > %(hour)s) OR (limit_key = %(key)s AND created_at > %(day)s))
"""
COUNT_INVITATION_MAILS: Final = """
SELECT count(*) FILTER (WHERE tenant_id = %(tenant)s), count(*) FILTER (WHERE limit_key = %(key)s)
  FROM owner_mails
 WHERE type = %(type)s
   AND ((tenant_id = %(tenant)s AND due_at > %(day)s) OR (limit_key = %(key)s AND created_at > %(day)s))
"""
COUNT_INVITATION_CONFIRMATIONS: Final = """
SELECT count(*) FILTER (WHERE created_at > %(hour)s), count(*)
  FROM owner_mails
 WHERE limit_key = %(key)s AND created_at > %(day)s AND type = %(type)s
"""
OPEN_INVITATION: Final = """
SELECT role, expires_at FROM invitations WHERE id = %s AND closed_as IS NULL AND expires_at > %s
"""
INSERT_OWNER_MAIL: Final = """
INSERT INTO owner_mails (id, tenant_id, type, recipient, limit_key, data, status, created_at, due_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
# The row's lock decides between this and a worker that has started to deliver the digest.
ADD_TO_DIGEST: Final = """
UPDATE owner_mails
   SET data = CASE WHEN jsonb_array_length(data->'leaked') + jsonb_array_length(data->'changed') < %(most)s
                   THEN jsonb_set(data, ARRAY[%(list)s::text], (data->%(list)s) || %(notice)s::jsonb)
                   ELSE jsonb_set(data, '{more}', to_jsonb((data->>'more')::int + 1)) END
 WHERE tenant_id = %(tenant)s AND recipient = %(recipient)s AND status = 'collecting'
"""
PENDING_OWNER_MAIL: Final = """
SELECT m.type, m.status, m.attempts, m.created_at, m.due_at, t.name, m.recipient, m.tenant_id, m.data::text,
       t.owner_email, t.verified_email, t.deleted_at IS NOT NULL
  FROM owner_mails m
  JOIN tenants t ON t.id = m.tenant_id
 WHERE m.id = %s AND m.status IN ('collecting', 'queued')
   FOR NO KEY UPDATE OF m
"""


class PendingOwnerMail(msgspec.Struct, frozen=True):
    """A mail of ``owner_mails`` that is not yet delivered, and its tenant's current owner
    address.
    """

    type: str
    status: str
    attempts: int
    created_at: datetime
    due_at: datetime
    tenant_name: str
    recipient: str
    tenant_id: str
    data: str
    owner_email: str
    verified_email: str
    tenant_deleted: bool

    @property
    def is_to_be_confirmed(self) -> bool:
        """Whether the recipient is the owner's address, and not verified yet."""
        address = rules.OwnerAddress(self.owner_email, self.verified_email)
        is_current = rules.same_address(self.recipient, self.owner_email)
        return is_current and not address.is_verified and not self.tenant_deleted

    @property
    def invitation(self) -> rules.InvitationReference:
        """The invitation that the mail is about."""
        return msgspec.json.decode(self.data, type=rules.InvitationReference)

    @property
    def about(self) -> rules.SecurityNotice | rules.DigestData:
        """The content of a security notice or digest."""
        kinds: dict[str, Any] = {
            rules.KEY_LEAKED: rules.KeyLeakedData,
            rules.SECURITY_DIGEST: rules.DigestData,
        }
        kind = kinds.get(self.type, rules.AddressChangedData)
        about: rules.SecurityNotice | rules.DigestData = msgspec.json.decode(self.data, type=kind)
        return about


async def insert_notifications(
    connection: Connection, failures: Sequence[FailedPayment], now: datetime
) -> dict[UUID, str]:
    """Store the notifications of failed payments (SPEC 2.4), at most one for each event.

    Returns the ids of new ones, each with that of its event.
    """
    encoded = msgspec.json.encode([failure._asdict() for failure in failures]).decode()
    values = {"type": rules.PAYMENT_FAILED, "failures": encoded, "now": now}
    return dict(await connection.fetch(INSERT_NOTIFICATIONS, values))


async def withdraw_notifications(connection: Connection, events: Sequence[str]) -> None:
    """Delete the notifications of these events: they name another owner than the right one.

    One that is sent, or that a worker is sending, stays: each event is mailed once.
    """
    await connection.execute(LOCK_QUEUED, (list(events),))
    await connection.execute(WITHDRAW, (list(events),))


async def insert_notices(
    connection: Connection, notices: Sequence[BillingNotice], now: datetime
) -> list[UUID]:
    """Store billing notices, at most one for each cause; return the ids of new ones."""
    recovered = [notice for notice in notices if notice.recovered is not None]
    others = [notice for notice in notices if notice.recovered is None]
    ids = await _insert(connection, INSERT_NOTICES, others, now)
    return ids + await _insert(connection, INSERT_RECOVERIES, recovered, now)


async def _insert(
    connection: Connection, statement: str, notices: Sequence[BillingNotice], now: datetime
) -> list[UUID]:
    if not notices:
        return []
    values = {
        "notices": msgspec.json.encode(notices).decode(),
        "failed": rules.PAYMENT_FAILED,
        "access_ended": rules.OwnerNotice.ACCESS_ENDED.mail_type,
        "now": now,
    }
    return await connection.fetch_column(statement, values)


async def insert_access_ends(
    connection: Connection,
    since: datetime,
    until: datetime,
    now: datetime,
    most: int,
    policy: BillingPolicy,
) -> list[UUID]:
    """Store notices for tenants whose access ended by time; return the ids of new ones."""
    values = {
        "type": rules.OwnerNotice.ACCESS_ENDED.mail_type,
        "now": now,
        "most": most,
        "since": math.ceil(since.timestamp()),
        "until": math.floor(until.timestamp()),
        "grace": time_to_end("grace", policy),
        "other": time_to_end("full", policy),
    }
    return await connection.fetch_column(INSERT_ACCESS_ENDS, values)


async def insert_quota_notices(
    connection: Connection, notices: Sequence[QuotaNotice], now: datetime
) -> list[UUID]:
    """Store notices of used quotas, at most one for each cause; return the ids of new ones."""
    values = {
        "type": rules.OwnerNotice.QUOTA_USED.mail_type,
        "notices": msgspec.json.encode(notices).decode(),
        "now": now,
    }
    return await connection.fetch_column(INSERT_QUOTA_NOTICES, values)


async def read_notification(connection: Connection, notification_id: UUID) -> PendingMail | None:
    """Lock and return a notification to be sent; None if it has been delivered, given up or
    withdrawn.
    """
    row = await connection.fetch_row(PENDING_NOTIFICATION, {"id": notification_id})
    if row is None:
        return None
    found_id, attempts, created_at, tenant_name, recipient, tenant_id, *payment, mail_type, data = (
        row
    )
    kind = rules.NOTICE_DATA.get(mail_type)
    about = rules.PaymentFailure(*payment) if kind is None else msgspec.json.decode(data, type=kind)
    return PendingMail(
        found_id,
        attempts,
        created_at,
        tenant_name,
        recipient,
        tenant_id,
        about,
        in_notifications=True,
    )


async def orphaned(connection: Connection, task: str, most: int) -> list[UUID]:
    """Lock and return the oldest mails to be delivered that have no job of this name."""
    values = {"task": task, "most": most}
    found: list[UUID] = []
    for table in _TABLES:
        found += await connection.fetch_column(_ORPHANED.format(table=table), values)
    return found


async def mark_sent(connection: Connection, mail: PendingMail, now: datetime) -> None:
    """Record that the mail server accepted a mail, and when it last accepted one of an
    invitation.
    """
    await connection.execute(_MARK_SENT.format(table=_table(mail)), (now, mail.notification_id))
    if isinstance(mail.about, rules.InvitationMail):
        statement = "UPDATE invitations SET sent_at = %s WHERE id = %s"
        await connection.execute(statement, (now, mail.about.invitation_id))


async def mark_attempt(
    connection: Connection, mail: PendingMail, error: str, *, final: bool
) -> None:
    """Record a failed attempt; after a ``final`` one the mail is given up."""
    values = {
        "error": error[:500],
        "final": final,
        "id": mail.notification_id,
        "chosen": list(rules.TO_CHOSEN_ADDRESSES),
    }
    await connection.execute(_MARK_ATTEMPT.format(table=_table(mail)), values)


def _table(mail: PendingMail) -> str:
    return "notifications" if mail.in_notifications else "owner_mails"


async def give_up(connection: Connection, why: str) -> int:
    """Mark every queued mail as failed; return their number."""
    return sum(
        [
            (await connection.execute(_GIVE_UP.format(table=table), (why,))).rowcount
            for table in _TABLES
        ]
    )


class MailQueue(NamedTuple):
    """How many mails are queued and have failed, and for how many seconds the oldest queued one has
    been due.
    """

    queued: int
    failed: int
    oldest_seconds: float


async def read_queue(connection: Connection) -> MailQueue:
    [row] = await connection.fetch(READ_QUEUE)
    return MailQueue(*row)


async def latest_notices(connection: Connection, tenant_id: str, since: datetime) -> list[datetime]:
    """Return when a tenant's latest security notices after ``since`` are due, newest first, at most
    an hour's limit.
    """
    values = {
        "tenant": tenant_id,
        "since": since,
        "notices": list(rules.SECURITY_NOTICES),
        "most": NOTICES_PER_HOUR,
    }
    return await connection.fetch_column(LATEST_NOTICES, values)


async def count_confirmations(
    connection: Connection, tenant_id: str, limit_key: str, *, hour: datetime, day: datetime
) -> tuple[int, int, int]:
    """Count confirmations since ``hour`` of a tenant, and to an address since ``hour`` and since
    ``day``.
    """
    values = {
        "tenant": tenant_id,
        "key": limit_key,
        "hour": hour,
        "day": day,
        "confirmation": OWNER_ADDRESS_CONFIRMATION,
    }
    [(for_tenant, to_address, to_address_today)] = await connection.fetch(
        COUNT_CONFIRMATIONS, values
    )
    return for_tenant, to_address, to_address_today


async def insert_owner_mail(
    connection: Connection,
    tenant_id: str,
    mail_type: str,
    recipient: str,
    data: msgspec.Struct | None,
    now: datetime,
    due_at: datetime | None = None,
) -> UUID:
    """Store a mail and return its id; one with ``due_at`` is a digest, which collects notices until
    then.
    """
    mail_id = uuid4()
    key = rules.limit_key(recipient)
    status = "queued" if due_at is None else "collecting"
    content = "{}" if data is None else msgspec.json.encode(data).decode()
    values = (mail_id, tenant_id, mail_type, recipient, key, content, status, now, due_at or now)
    await connection.execute(INSERT_OWNER_MAIL, values)
    return mail_id


async def count_invitation_mails(
    connection: Connection, tenant_id: str, limit_key: str, day: datetime
) -> tuple[int, int]:
    """Count invitation mails since ``day``: of a tenant, and of all tenants to an address."""
    values = {"tenant": tenant_id, "key": limit_key, "day": day, "type": rules.INVITATION}
    [(of_tenant, to_address)] = await connection.fetch(COUNT_INVITATION_MAILS, values)
    return of_tenant, to_address


async def count_invitation_confirmations(
    connection: Connection, limit_key: str, *, hour: datetime, day: datetime
) -> tuple[int, int]:
    """Count confirmation mails of invitations to an address, since ``hour`` and since ``day``."""
    values = {"key": limit_key, "hour": hour, "day": day, "type": rules.INVITATION_CONFIRMATION}
    [(of_hour, of_day)] = await connection.fetch(COUNT_INVITATION_CONFIRMATIONS, values)
    return of_hour, of_day


async def find_open_invitation(
    connection: Connection, invitation_id: str, now: datetime
) -> tuple[str, datetime] | None:
    """Return the role and the end of an invitation that can be accepted; None for another one."""
    row = await connection.fetch_row(OPEN_INVITATION, (invitation_id, now))
    return (row[0], row[1]) if row else None


async def add_to_digest(
    connection: Connection, tenant_id: str, recipient: str, notice: rules.SecurityNotice
) -> bool:
    """Add a notice to the digest that collects for this recipient; return False if there is
    none.
    """
    values = {
        "tenant": tenant_id,
        "recipient": recipient,
        "list": "leaked" if isinstance(notice, rules.KeyLeakedData) else "changed",
        "most": rules.DIGEST_DETAILS,
        "notice": msgspec.json.encode([notice]).decode(),
    }
    cursor = await connection.execute(ADD_TO_DIGEST, values)
    return cursor.rowcount > 0


async def read_owner_mail(connection: Connection, mail_id: UUID) -> PendingOwnerMail | None:
    """Lock and return the mail to be sent; None if it has been delivered, given up or dropped."""
    row = await connection.fetch_row(PENDING_OWNER_MAIL, (mail_id,))
    return PendingOwnerMail(*row) if row else None


async def set_status(connection: Connection, mail_id: UUID, status: str) -> None:
    """Close a digest (``queued``), or drop a mail that is no longer needed (``dropped``)."""
    await connection.execute("UPDATE owner_mails SET status = %s WHERE id = %s", (status, mail_id))


async def set_link(
    connection: Connection, mail_id: UUID, digest: bytes, expires_at: datetime
) -> None:
    """Store the hash of a confirmation's token, which replaces an earlier one."""
    statement = "UPDATE owner_mails SET digest = %s, expires_at = %s WHERE id = %s"
    await connection.execute(statement, (digest, expires_at, mail_id))


async def find_confirmation(
    connection: Connection, digest: bytes, now: datetime
) -> tuple[str, str] | None:
    """Return the tenant and address that a link confirms; None for a link that is unknown, used or
    expired.
    """
    statement = "SELECT tenant_id, recipient FROM owner_mails WHERE digest = %s AND expires_at > %s"
    row = await connection.fetch_row(statement, (digest, now))
    return (row[0], row[1]) if row else None


async def end_links(connection: Connection, tenant_id: str) -> None:
    statement = "UPDATE owner_mails SET digest = NULL WHERE tenant_id = %s AND digest IS NOT NULL"
    await connection.execute(statement, (tenant_id,))
