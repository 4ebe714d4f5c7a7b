"""The log of requests and retries, without secrets."""

from __future__ import annotations

import logging
import os
from typing import Final

logger: Final = logging.getLogger("tenantry.sdk")

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO}
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure() -> None:
    """Log to stderr as ``TENANTRY_LOG`` says, unless the program handles log records itself.

    Only the level is set then. Calling it again changes nothing.
    """
    level = _LEVELS.get(os.environ.get("TENANTRY_LOG", "").strip().lower())
    if level is None:
        return
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        # the program may set up logging later
        handler.addFilter(lambda _: not logging.getLogger().handlers)
        logger.addHandler(handler)
