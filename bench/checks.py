"""Check that a contestant does the work, before it is measured and afterwards."""

import time
from typing import Any, Final

import httpx2

from bench import events
from bench.contestant import Contestant, Dataset, Job, Server
from bench.support import PROJECTS, SECRET

_REVOCATION_BOUND: Final = 10.0
"""Seconds to try a revoked credential."""
_STORE_BOUND: Final = 5.0
"""Seconds until an acknowledged event can be read."""
_REJECTIONS_IN_A_ROW: Final = 8
"""So many rejections in a row mean that every process rejects."""
_PAUSE: Final = 0.05
_REJECTED: Final = (401, 403)


class CheckError(Exception):
    """A contestant does not do the work; the message says what it did instead."""


def check_events(contestant: Contestant, data: Dataset, server: Server, created: int) -> str:
    """Send tenant 0 an event, a duplicate, and a forged event of the next second; return the
    results in one line. Raises `CheckError`.
    """
    body = events.compose(0, "evt_check_0", created)
    forged = events.compose(0, "evt_check_forged", created + 1)
    stored, plan = contestant.events_stored(data), contestant.plan_of(data, 0)
    first = _deliver(server, body, SECRET)
    _require(first == 200, f"an event is answered with {first}")
    until = time.monotonic() + _STORE_BOUND
    while contestant.events_stored(data) != stored + 1:
        _require(time.monotonic() < until, "an event was answered with 200 and is not stored")
        time.sleep(_PAUSE)
    changed = contestant.plan_of(data, 0)
    _require(changed != plan, f"an event left the plan {plan!r}")
    again, rejected = _deliver(server, body, SECRET), _deliver(server, forged, "whsec_another")
    _require(200 <= again < 300, f"a duplicate event is answered with {again}")
    _require(400 <= rejected < 500, f"a forged event is answered with {rejected}")
    kept = contestant.events_stored(data)
    _require(kept == stored + 1, "a duplicate or forged event was stored")
    return f"plan {plan!r} -> {changed!r}, duplicate {again} and not stored, forged {rejected}"


def check_credentials(job: Job, server: Server) -> str:
    """Send a valid credential and an invalid one; return the results in one line. Raises
    `CheckError`.
    """
    answer = _use(server, server.credentials[0])
    _require(answer.status_code == 200, f"a credential is answered with {answer}")
    wrong = _use(server, _altered(server.credentials[0])).status_code
    _require(wrong in _REJECTED, f"an invalid credential is answered with {wrong}")
    if job is not Job.LIST:
        return f"invalid credential {wrong}"
    found = _count(answer.json())
    _require(found == PROJECTS, f"the list has {found} projects")
    return f"{found} projects, invalid credential {wrong}"


def check_revocation(contestant: Contestant, data: Dataset, server: Server) -> str:
    """Revoke the last credential, and use it until every process rejects it or time is up.

    Return the results in one line. Raises `CheckError`.
    """
    number = len(server.credentials) - 1
    credential = server.credentials[number]
    for _ in range(_REJECTIONS_IN_A_ROW):
        status = _use(server, credential).status_code
        _require(status == 200, f"a credential is answered with {status} before its revocation")
    contestant.revoke(data, server, number)
    began = time.monotonic()
    accepted_until, in_a_row = 0.0, 0
    while in_a_row < _REJECTIONS_IN_A_ROW:
        elapsed = time.monotonic() - began
        if elapsed > _REVOCATION_BOUND:
            return f"revoked credential accepted for all of {_REVOCATION_BOUND:.0f} s"
        in_a_row += 1
        if _use(server, credential).status_code not in _REJECTED:
            accepted_until, in_a_row = elapsed, 0
    return f"revoked credential rejected after {accepted_until:.1f} s"


def _deliver(server: Server, body: bytes, secret: str) -> int:
    """Send an event; return the status."""
    headers = {
        "Content-Type": "application/json",
        server.header: events.sign(body, secret),
        **server.more_headers,
    }
    return httpx2.post(server.url, content=body, headers=headers).status_code


def _use(server: Server, credential: str) -> httpx2.Response:
    """Use a credential on a new connection, so that another process may answer each time."""
    return httpx2.get(server.url, headers={server.header: credential, **server.more_headers})


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # reads as an assertion
    if not holds:
        raise CheckError(otherwise)


def _count(document: Any) -> int:  # noqa: ANN401  # any JSON
    """Count the objects of a list, bare or in an envelope."""
    return len(document if isinstance(document, list) else document["data"])


def _altered(credential: str) -> str:
    """Return another credential of the same form."""
    middle = len(credential) * 3 // 4
    other = "A" if credential[middle] != "A" else "B"
    return credential[:middle] + other + credential[middle + 1 :]
