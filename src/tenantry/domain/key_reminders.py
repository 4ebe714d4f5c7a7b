"""Which API keys their makers and owners are reminded of by mail (KEY_EXPIRY_MAILS)."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from tenantry.domain.owner_mails import (
    KEY_REMINDER,
    ExpiringKey,
    KeyReminderData,
    NewMail,
    UnusedKey,
    same_address,
)

FIRST_DAYS: Final = 14
"""A key's first mail comes so many days before it expires."""
LAST_DAYS: Final = 3
"""The second one."""
UNUSED_AFTER: Final = timedelta(days=90)
MOST_UNUSED: Final = 100
"""Unused keys that a mail names; it only counts further ones."""
_MONTHS: Final = 3


class RemindedKey(NamedTuple):
    """A key that works and has no successor, with its owner's address and the one that reminders of
    its end go to: its maker's, else the owner's. Both may be empty: without a verified address.
    """

    id: str
    name: str
    start: str
    last4: str
    mode: str
    expires_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None
    owner: str
    recipient: str

    def expiring(self, now: datetime) -> ExpiringKey | None:
        """Return the reminder of the key's end that counts now; None if there is none.

        A key that was made to live for little longer than a reminder's days has none of it: its
        maker has just chosen the end.
        """
        if self.expires_at is None or self.expires_at > now + timedelta(FIRST_DAYS):
            return None
        days = LAST_DAYS if self.expires_at <= now + timedelta(LAST_DAYS) else FIRST_DAYS
        if self.expires_at - self.created_at < timedelta(days + 1):
            return None
        return ExpiringKey(
            self.id, self.name, self.start, self.last4, self.mode, self.expires_at, days
        )

    def unused(self, now: datetime) -> UnusedKey | None:
        """Return the key if it was not used for `UNUSED_AFTER`."""
        if (self.last_used_at or self.created_at) > now - UNUSED_AFTER:
            return None
        return UnusedKey(self.id, self.name, self.start, self.last4, self.mode, self.last_used_at)


class Mailed(NamedTuple):
    """What was mailed: by key and its end the fewest days of a reminder, and whether the owner was
    told of unused keys this quarter.
    """

    days: Mapping[tuple[str, datetime], int]
    told_unused: bool

    def has(self, key: ExpiringKey) -> bool:
        """Whether this reminder, or a later one of the same end, was mailed."""
        days = self.days.get((key.key_id, key.expires_at))
        return days is not None and days <= key.days


def quarter_start(now: datetime) -> datetime:
    """Return when the calendar quarter in UTC began."""
    day = now.astimezone(UTC)
    month = day.month - (day.month - 1) % _MONTHS
    return datetime(day.year, month, 1, tzinfo=UTC)


def mailed_before(mails: Iterable[tuple[datetime, KeyReminderData]], now: datetime) -> Mailed:
    """Return what these mails, each with its time, said."""
    days = dict[tuple[str, datetime], int]()
    told_unused = False
    for due_at, data in mails:
        told_unused = told_unused or (bool(data.unused) and due_at >= quarter_start(now))
        for key in data.expiring:
            place = key.key_id, key.expires_at
            days[place] = min(key.days, days.get(place, key.days))
    return Mailed(days, told_unused)


def reminder_mails(
    org_id: str, keys: Iterable[RemindedKey], mailed: Mailed, now: datetime
) -> list[NewMail]:
    """Return the mails of a tenant that are due: about keys that expire to their recipients, and
    about unused ones to the owner; one to each mailbox.
    """
    mails = dict[str, _Reminder]()
    for key in keys:
        expiring, unused = key.expiring(now), key.unused(now)
        if expiring is not None and key.recipient and not mailed.has(expiring):
            _of_mailbox(mails, key.recipient).expiring.append(expiring)
        if unused is not None and key.owner and not mailed.told_unused:
            _of_mailbox(mails, key.owner).unused.append(unused)
    return [each.to_mail(org_id) for each in mails.values()]


class _Reminder(NamedTuple):
    """The keys of a mail that is composed."""

    recipient: str
    expiring: list[ExpiringKey]
    unused: list[UnusedKey]

    def to_mail(self, org_id: str) -> NewMail:
        further = max(0, len(self.unused) - MOST_UNUSED)
        data = KeyReminderData(self.expiring, self.unused[:MOST_UNUSED], further)
        return NewMail(KEY_REMINDER, org_id, data).to(self.recipient)


def _of_mailbox(mails: dict[str, _Reminder], recipient: str) -> _Reminder:
    local, _, domain = recipient.rpartition("@")
    mailbox = f"{local}@{domain.casefold()}"  # as `same_address`
    return mails.setdefault(mailbox, _Reminder(recipient, [], []))


def still_due(
    data: KeyReminderData, keys: Iterable[RemindedKey], recipient: str, now: datetime
) -> KeyReminderData | None:
    """Return what of a mail is true when it is sent, by the keys as they are now; None if nothing
    is: keys have ended or were changed, or their mails go to another address.
    """
    known = list(keys)
    ends = {(key.id, key.expires_at) for key in known if same_address(key.recipient, recipient)}
    expiring = [each for each in data.expiring if (each.key_id, each.expires_at) in ends]
    unused = _still_unused(data.unused, known, recipient, now)
    current = KeyReminderData(expiring, unused, data.more_unused if unused else 0)
    return current if expiring or unused else None


def _still_unused(
    named: Iterable[UnusedKey], keys: Iterable[RemindedKey], recipient: str, now: datetime
) -> list[UnusedKey]:
    of_owner = {key.id: key.unused(now) for key in keys if same_address(key.owner, recipient)}
    return [found for each in named if (found := of_owner.get(each.key_id))]
