"""Values that must not be shown accidentally."""

from __future__ import annotations


class Secret:
    """A credential that ``repr``, ``str``, logs and tracebacks hide; ``reveal()`` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('**********')"

    def __str__(self) -> str:
        return "**********"

    def __eq__(self, other: object) -> bool:
        import hmac  # noqa: PLC0415  # slow to import

        return isinstance(other, Secret) and hmac.compare_digest(
            self._value.encode(), other._value.encode()
        )

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> str:
        raise TypeError("A Secret cannot be serialized; use reveal() where this is intended.")


def revealed(value: str | Secret) -> str:
    """Return the text of a secret or of a plain string."""
    return value.reveal() if isinstance(value, Secret) else value
