"""Log lines for people or machines, with anything that looks like a credential taken out."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

_SECRETS: Final = re.compile(
    r"svc_(?:live|test)_[A-Za-z0-9]{20,}"
    r"|whsec_[A-Za-z0-9_+/=-]{8,}"
    r"|[sr]k_(?:live|test)_[A-Za-z0-9_]{8,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)
_MASK: Final = "[redacted]"


def redact(text: str) -> str:
    """The text with API keys, tokens, webhook secrets, provider keys and passwords in URLs masked."""
    return _SECRETS.sub(_MASK, text)


class ConsoleFormatter(logging.Formatter):
    """Lines for a person to read."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s  %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback if there is one."""
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """``{time, level, logger, message, exception?}``."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, ensure_ascii=False))


def configure(log_format: str, level: int = logging.INFO) -> None:
    """Send everything from ``level`` up to stderr, as ``console`` or ``json`` lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else ConsoleFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in (
        "httpx2",
        "httpcore2",
        "httpx",
        "procrastinate",
        "alembic",
        "psycopg.pool",
        "uvicorn.error",
        "stripe",
        "mail.log",
    ):
        logging.getLogger(noisy).setLevel(logging.WARNING)
