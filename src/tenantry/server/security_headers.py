"""Header fields that every answer has unless it says otherwise: nobody keeps it, or takes it for what it is not."""

from collections.abc import Iterable, Sequence
from typing import Final

from tenantry.server.problems import Header

SAFEGUARDS: Final[tuple[Header, ...]] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_A_YEAR: Final = b"max-age=31536000"


def safeguards(*, secure: bool) -> tuple[Header, ...]:
    """The fields; where clients come by https they are told to go on doing so (RFC 6797)."""
    return (*SAFEGUARDS, (b"strict-transport-security", _A_YEAR)) if secure else SAFEGUARDS


def lacking(headers: Iterable[Header], wanted: Sequence[Header]) -> list[Header]:
    """Those that are not among an answer's own."""
    names = {name.lower() for name, _ in headers}
    return [header for header in wanted if header[0] not in names]
