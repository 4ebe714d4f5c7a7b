"""Values that must not be shown, and texts that protect nothing because everybody knows them."""

from typing import Final, final

_WORDS_OF_DEFAULTS: Final = (
    "changeme",
    "change-me",
    "change_me",
    "password",
    "example",
    "your-",
    "your_",
)
_PUBLISHED: Final = frozenset(
    {
        # of Standard Webhooks 1.0, and of libraries that implement it
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    }
)
_FEWEST_CHARACTERS: Final = 4
_PLACEHOLDER: Final = "..."


@final
class Secret:
    """A string that only `reveal` shows; its ``repr``, ``str`` and format are masked."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)


def is_placeholder(text: str) -> bool:
    """Whether a text stands in examples for a secret, such as ``whsec_...``."""
    return text.endswith(_PLACEHOLDER)


def is_known_default(text: str) -> bool:
    """Whether a text can be no secret: a default, an example that is published, or fewer than four
    different characters, such as "aaaa".
    """
    lower = text.lower().removeprefix("whsec_")
    has_default = any(word in lower for word in _WORDS_OF_DEFAULTS)
    return has_default or text in _PUBLISHED or len(set(lower)) < _FEWEST_CHARACTERS
