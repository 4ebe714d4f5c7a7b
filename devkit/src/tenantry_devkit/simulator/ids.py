"""Identifiers of the provider's look, the same ones for the same seed."""

import random
import string
from typing import Final

_ALPHABET: Final = string.ascii_letters + string.digits
_LENGTH: Final = 24


class Ids:
    """Makes ids; two of them with one seed make the same ids in the same order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"ids {seed}")  # noqa: S311  # to be the same again, not to be secret

    def new(self, prefix: str) -> str:
        """``prefix_`` and 24 letters and digits."""
        return f"{prefix}_{''.join(self._random.choices(_ALPHABET, k=_LENGTH))}"
