"""Events as the provider sends them: ``customer.subscription.updated`` of a renewal or of a change
of the price, 5 KiB, from ``event.json``.
"""

import functools
import hmac
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.support import SECRET, TENANTS

MONTH: Final = 30 * 24 * 3600
PRICE: Final = "price_pro"
RENEWALS: Final = (PRICE,)
CHANGES: Final = (PRICE, "price_team")
"""A tenant's prices, one event after the other."""
BEGIN: Final = 1_735_689_600
"""When the subscriptions began, in Unix seconds, as in ``event.json``."""

_PLACEHOLDER: Final = re.compile(rb"<(id|created|end)>")


def compose(tenant: int, event_id: str, created: int, price: str = PRICE) -> bytes:
    """Compose an event's body: a tenant's subscription renews for a month at ``created`` (Unix
    seconds).
    """
    values = {
        b"id": event_id.encode(),
        b"created": b"%d" % created,
        b"end": b"%d" % (created + MONTH),
    }
    return b"".join([values.get(part, part) for part in _parts(tenant, price)])


def sign(body: bytes, secret: str, stamp: int | None = None) -> str:
    """Compose the signature header of a body, for now or for another Unix time."""
    stamp = int(time.time()) if stamp is None else stamp
    return f"t={stamp},v1={hmac.digest(secret.encode(), b'%d.%b' % (stamp, body), 'sha256').hex()}"


def write_events(folder: Path, count: int, run: str, first: int, prices: Sequence[str]) -> None:
    """Write ``count`` distinct events for webhook.lua.

    The tenants alternate. Ids begin with ``evt_<run>_``. A tenant's first event is of the second
    ``first``, each later one of the next second: `seconds_of` returns the number of seconds. Its
    events name the ``prices`` in turn.
    """
    stamp = int(time.time())
    with (folder / "events").open("w") as out:
        for position in range(count):
            turn, tenant = divmod(position, TENANTS)
            created, price = first + turn, prices[turn % len(prices)]
            event_id = f"evt_{run}_{position:08d}"
            header = sign(compose(tenant, event_id, created, price), SECRET, stamp)
            out.write(f"{tenant} {event_id} {created} {header} {price}\n")
    (folder / "template").write_text(_template())


def seconds_of(count: int) -> int:
    """Return how many seconds of each tenant's history ``count`` events take."""
    return count // TENANTS + 1


@functools.lru_cache(maxsize=4096)
def _parts(tenant: int, price: str) -> list[bytes]:
    """Split a tenant's template at its placeholders; every second part is a placeholder's name."""
    return _PLACEHOLDER.split(
        _template().replace("<tenant>", str(tenant)).replace("<price>", price).encode()
    )


@functools.cache
def _template() -> str:
    """Read the event with placeholders: ``<id>``, ``<created>``, ``<end>``, ``<tenant>``,
    ``<price>``.
    """
    text = Path(__file__).with_name("event.json").read_text().strip()
    return re.sub(r'"<(created|end)>"', r"<\1>", text)
