"""What decoding JSON raises."""

from __future__ import annotations

from typing import Final

import msgspec

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for invalid JSON, for too deep nesting, and for another type than
expected.
"""
