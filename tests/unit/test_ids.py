"""Identifiers."""

import re

from tenantry.common.encoding import new_id


def test_ids_sort_in_the_order_in_which_they_were_made() -> None:
    made = [new_id("key") for _ in range(10_000)]
    assert made == sorted(made)


def test_ids_are_unique_and_have_32_hex_digits() -> None:
    made = {new_id("proj") for _ in range(10_000)}
    assert len(made) == 10_000
    assert all(re.fullmatch("proj_[0-9a-f]{32}", one) for one in made)
