"""Waiting longer after each failure."""


def exponential(attempt: int, *, first: float, factor: float, ceiling: float) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (1 is the first)."""
    return min(ceiling, first * factor ** (attempt - 1))
