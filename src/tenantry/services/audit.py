"""Writing and reading the audit trail."""

from datetime import datetime
from typing import Any

import msgspec

from tenantry.db.database import Connection
from tenantry.domain.audit import Action, AuditEvent, Author, differences
from tenantry.kit.ids import new_id
from tenantry.store import audit


async def record(
    connection: Connection,
    author: Author,
    action: Action,
    *,
    org_id: str,
    target_id: str,
    before: msgspec.Struct | None = None,
    after: msgspec.Struct | None = None,
    now: datetime,
) -> None:
    """Enter a change into the trail, in the transaction that makes it.

    Of what there was before and is there after, the fields that differ are kept. A change that changes nothing is
    no change.
    """
    was, became = _told(before, after)
    if was == became and before is not None:
        return
    await audit.insert(
        connection,
        AuditEvent(
            id=new_id("aud"),
            org_id=org_id,
            at=now,
            action=action,
            actor_kind=author.kind,
            actor_id=author.id,
            address=author.address,
            request_id=author.request_id,
            target_id=target_id,
            before=was,
            after=became,
        ),
    )


def _told(
    before: msgspec.Struct | None, after: msgspec.Struct | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    if before is not None and after is not None:
        return differences(before, after)
    was: dict[str, Any] | None = None if before is None else msgspec.to_builtins(before)
    return was, None if after is None else msgspec.to_builtins(after)
