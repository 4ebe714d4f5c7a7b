"""The stored document of a tenant's folds: what a damaged one still says."""

import msgspec
import pytest

from tenantry.domain.billing.ledger_fold import DamagedFoldsError, read_folds
from tenantry.domain.billing.state import BillingState
from tenantry.domain.billing.timeline import Folded


def test_the_folds_are_read_as_they_were_written() -> None:
    folds = {"sub_1": Folded(BillingState(plan="pro"), 100, BillingState(), 150)}
    assert read_folds(msgspec.json.encode(folds).decode()) == folds


def test_a_damaged_document_is_rejected_with_the_place_of_the_damage() -> None:
    with pytest.raises(DamagedFoldsError, match=r"The stored folds are damaged: .*state"):
        read_folds('{"sub_1": {"state": 5}}')


def test_a_damaged_document_keeps_the_moves_of_its_subscriptions() -> None:
    with pytest.raises(DamagedFoldsError) as raised:
        read_folds('{"sub_1": {"state": 5, "moved_at": 150}, "sub_2": {"state": {}}}')
    assert raised.value.moves == {"sub_1": Folded(BillingState(), moved_at=150)}


@pytest.mark.parametrize("document", ["[]", '{"sub_1": {"moved_at": "then"}}'])
def test_a_document_without_readable_moves_has_none(document: str) -> None:
    with pytest.raises(DamagedFoldsError) as raised:
        read_folds(document)
    assert raised.value.moves == {}
