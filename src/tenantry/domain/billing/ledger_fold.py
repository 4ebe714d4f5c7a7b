"""The fold of a tenant's whole ledger, fold by fold, for replay and explanation, and the document
that stores the folds.
"""

import math
from collections.abc import Mapping
from itertools import filterfalse
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.billing.events import BillingEvent
from tenantry.domain.billing.ledger import BillingAccount, counted_state
from tenantry.domain.billing.state import BillingPolicy, BillingState, fold_key, is_grant_key
from tenantry.domain.billing.subscription_rank import MOST_SUBSCRIPTIONS, Rank, status_rank
from tenantry.domain.billing.timeline import Fold, Folded, Steps
from tenantry.domain.grants import MOST_GRANTS


class FoldedLedger(NamedTuple):
    """An account with the result of folding its ledger, and how many events that were."""

    account: BillingAccount
    events: int


class LedgerFold:
    """Folds the events of one tenant, which are added sorted by ``created``, fold by fold."""

    def __init__(self, account: BillingAccount, policy: BillingPolicy) -> None:
        self._account = account
        self._policy = policy
        self._folds: dict[str, Fold] = {}

    def add(self, event: BillingEvent) -> Steps:
        """Add the next event; return the steps of the seconds that are complete."""
        key = fold_key(event, self._policy)
        if key is None:
            return []
        if key not in self._folds:
            self._folds[key] = Fold(self._account.beginning_of(key, self._policy), self._policy)
        return self._folds[key].add(event)

    def end(self) -> tuple[FoldedLedger, Steps]:
        """Return the result of all events, and the last steps."""
        ended = {key: fold.end() for key, fold in self._folds.items()}
        folds = {key: self._account.keep_move(key, folded) for key, (folded, _) in ended.items()}
        whole = msgspec.structs.replace(self._account, is_whole=True)
        account = whole.with_folds(within_bounds(folds, self._policy), self._policy)
        number = sum(fold.events for fold in self._folds.values())
        return FoldedLedger(account, number), [
            step for _, steps in ended.values() for step in steps
        ]


def within_bounds(folds: Mapping[str, Folded], policy: BillingPolicy) -> Mapping[str, Folded]:
    """Return at most `MOST_SUBSCRIPTIONS` of a tenant's folds, those that count first, and at most
    `MOST_GRANTS` of its grants: those that have ended are left out first.
    """
    if len(folds) <= MOST_SUBSCRIPTIONS:
        return folds

    def place(key: str) -> Rank:
        return status_rank(counted_state(folds[key]), policy)

    def place_of_grant(key: str) -> tuple[float, int, str]:
        return *_grant_end(folds[key]), key

    subscriptions = sorted(filterfalse(is_grant_key, folds), key=place, reverse=True)
    grants = sorted(filter(is_grant_key, folds), key=place_of_grant, reverse=True)
    kept = subscriptions[:MOST_SUBSCRIPTIONS] + grants[:MOST_GRANTS]
    return {key: folds[key] for key in kept}


def _grant_end(fold: Folded) -> tuple[float, int]:
    """Return the second at which a grant ends, or has ended, and that of its last change."""
    held, changed_at = fold.state.grant, fold.tip_created or 0
    if held is None or held.ended_at is not None:
        return -math.inf, changed_at
    return math.inf if held.terms.until is None else held.terms.until, changed_at


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
