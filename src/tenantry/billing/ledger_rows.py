"""The rows of the ledger: columns that find and order an entry, and a document with its facts."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import LedgerEntry
from tenantry.domain.billing.tenant_record import BillingRecord

EVENT_COLUMNS: Final = (
    "id",
    "type",
    "created",
    "arrival",
    "org_id",
    "customer_id",
    "subscription_id",
    "invoice_url",  # a column, so that a role can read the document without it
)
_NOT_STORED: Final = "is_thin"


class EntryEffect(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an entry has its outcome, and the tenant's record before and after it."""

    reason: str = ""
    before: BillingRecord | None = None
    after: BillingRecord | None = None


_FACTS: Final = [
    (field.name, field.type, field.default)
    for field in msgspec.structs.fields(BillingEvent)
    if field.name not in (*EVENT_COLUMNS, _NOT_STORED)
]
# A new fact of `BillingEvent` needs no column.
_Document: Final[Any] = msgspec.defstruct(
    "LedgerDocument",
    _FACTS,
    bases=(EntryEffect,),
    frozen=True,
    omit_defaults=True,
)
_fact_names: Final = tuple(name for name, *_ in _FACTS)
_facts_of: Final = attrgetter(*_fact_names)
_event_names: Final = (*EVENT_COLUMNS, *_fact_names)
_encoder: Final = msgspec.json.Encoder()
decode_document: Final = msgspec.json.Decoder(_Document).decode
"""Return a document as an `EntryEffect` that also has the facts of the event."""


def to_event(columns: Sequence[Any]) -> BillingEvent:
    """Return the event of an entry from its columns `EVENT_COLUMNS` and its document."""
    *values, document = columns
    facts = _facts_of(decode_document(document))
    return BillingEvent(**dict(zip(_event_names, (*values, *facts), strict=True)))


def encode_document(entry: LedgerEntry) -> bytes:
    """Return the facts of an entry that have no column."""
    facts = _facts_of(entry.received.event)
    return _encoder.encode(_Document(entry.reason, entry.before, entry.after, *facts))
