"""``tenantry trigger``: signed provider events and stories, sent to the service on this machine."""

from typing import Final

STORY: Final = "story:"
"""The prefix of a story's name."""
FAULTS: Final = ("duplicate", "reorder", "delay", "stale", "bad-signature")
"""The faults of ``--chaos``."""
