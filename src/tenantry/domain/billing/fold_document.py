"""The stored document of a tenant's folds."""

from collections.abc import Mapping
from typing import Final

import msgspec

from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.timeline import Folded


class _Move(msgspec.Struct, frozen=True):
    moved_at: int | None = None


_folds: Final = msgspec.json.Decoder(dict[str, Folded])
_moves: Final = msgspec.json.Decoder(dict[str, _Move])


class DamagedFoldsError(ValueError):
    """A document of folds cannot be read.

    ``moves`` is what the tenant's own ledger does not say: the subscriptions that have moved to
    another tenant, as far as the document still names them.
    """

    def __init__(self, reason: str, moves: Mapping[str, Folded]) -> None:
        super().__init__(f"The stored folds are damaged: {reason}")
        self.moves = moves


def read_folds(document: str) -> dict[str, Folded]:
    """Return the folds by key. Raises `DamagedFoldsError`."""
    try:
        return _folds.decode(document)
    except msgspec.DecodeError as error:
        raise DamagedFoldsError(str(error), _readable_moves(document)) from error


def _readable_moves(document: str) -> dict[str, Folded]:
    try:
        moves = _moves.decode(document)
    except msgspec.DecodeError:
        return {}
    unfolded = BillingState()
    return {
        key: Folded(unfolded, moved_at=move.moved_at)
        for key, move in moves.items()
        if move.moved_at is not None
    }
