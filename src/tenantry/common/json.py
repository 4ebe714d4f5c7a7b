"""JSON that others wrote."""

from typing import Final

import msgspec

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no JSON, that are nested too deep, or that are not of the type asked for."""
