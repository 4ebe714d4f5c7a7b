"""Log lines as text or JSON, without secrets.

Besides what `redact` masks, they have none of the deployment's own secrets, verbatim or as URLs,
JSON and ``repr`` encode them.
"""

import contextlib
import json
import logging
import logging.handlers
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, TextIO
from urllib.parse import quote, quote_plus

from tenantry.common.redaction import MASK, redact
from tenantry.common.secret import Secret

FIELDS: Final = "fields"  # the key in a record's `extra` of the fields that a line names
REQUESTS: Final = "tenantry.requests"
"""The logger with a line for each request."""
_CACHED_FIELDS: Final = 1024
_SHORTEST_SECRET: Final = 6  # shorter secrets are not masked: they would mask ordinary words

# Line breaks, control characters and changes of text direction.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
_UNSAFE_IN_JSON: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_NOISY: Final = (
    "httpx2",
    "httpcore2",
    "httpx",
    "procrastinate",
    "alembic",
    "psycopg.pool",
    "uvicorn.error",
    "mail.log",
)

logger = logging.getLogger(__name__)


class Redactor:
    """`redact` that also masks these secrets."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret.reveal())}
        # The longest first: a secret may begin with another one.
        self._literals = sorted(
            (form for form in forms if len(form) >= _SHORTEST_SECRET), key=len, reverse=True
        )

    def __call__(self, text: str) -> str:
        for literal in self._literals:
            if literal in text:
                text = text.replace(literal, MASK)
        return redact(text)


def _forms(secret: str) -> Iterable[str]:
    escaped = {
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
    }
    return {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), *escaped}


class _RedactingFormatter(logging.Formatter):
    def __init__(self, redactor: Callable[[str], str] = redact) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._redact = redactor
        self._redact_field = lru_cache(_CACHED_FIELDS)(redactor)

    def _message(self, record: logging.LogRecord) -> str:
        try:
            return self._redact(record.getMessage())
        except Exception:  # noqa: BLE001  # logging would print the arguments unredacted
            return self._redact(
                f"{record.msg!r} {[type(argument).__name__ for argument in record.args or ()]}"
            )

    def _fields(self, record: logging.LogRecord) -> dict[str, str | int | float]:
        fields: Mapping[str, str | int | float] = getattr(record, FIELDS, {})
        return {
            name: self._redact_field(value) if isinstance(value, str) else value
            for name, value in fields.items()
        }

    def _traceback(self, record: logging.LogRecord) -> str:
        text = self.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        if record.stack_info:
            text += f"\n{record.stack_info}"
        return self._redact(text.strip("\n"))


class ConsoleFormatter(_RedactingFormatter):
    """Lines for people. Only the first line of an entry is not indented."""

    def format(self, record: logging.LogRecord) -> str:
        time = self.formatTime(record, self.datefmt)
        fields = "".join(f" {name}={value}" for name, value in self._fields(record).items())
        line = f"{time} {record.levelname:7} {record.name}  {_one_line(self._message(record) + fields)}"
        trace = self._traceback(record)
        if trace:
            return "\n  ".join([line, *map(_one_line, trace.split("\n"))])
        return line


class JsonFormatter(_RedactingFormatter):
    """Lines for machines: one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str | int | float] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
            **self._fields(record),
        }
        if trace := self._traceback(record):
            line["exception"] = trace
        return _UNSAFE_IN_JSON.sub(
            lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False)
        )


def _one_line(text: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Ignore a closed stderr: logging would print the record's arguments unredacted."""


class _FileHandler(logging.handlers.WatchedFileHandler):
    """Writes to a file, and to the new one after a rotation. Lines that cannot be written are
    lost.
    """

    def emit(self, record: logging.LogRecord) -> None:
        # a request must not fail because its line cannot be written
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Ignore a full disk, like `_Handler`."""


def configure(log_format: str, level: int = logging.INFO, secrets: Iterable[Secret] = ()) -> None:
    """Log to stderr from ``level`` up, in the format ``console`` or ``json``, without these
    secrets.
    """
    redactor = Redactor(secrets)
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(redactor) if log_format == "json" else ConsoleFormatter(redactor)
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def configure_service(
    log_format: str,
    secrets: Iterable[Secret],
    *,
    logs_requests: bool = True,
    requests_to: Path | None = None,
) -> None:
    """`configure` for a service process: also log warnings and uncaught exceptions.

    ``requests_to`` is a file for the lines of requests, as JSON; ``logs_requests`` says whether
    stderr gets them. The file is opened with the first request, and lines are lost while it cannot
    be.
    """
    secrets = [*secrets]
    configure(log_format, secrets=secrets)
    if requests_to is not None:
        handler = _FileHandler(requests_to, encoding="utf-8", delay=True)
        handler.setFormatter(JsonFormatter(Redactor(secrets)))
        requests = logging.getLogger(REQUESTS)
        requests.handlers[:], requests.propagate = [handler], logs_requests
    logging.captureWarnings(True)  # noqa: FBT003  # logging's signature
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda thread: _log_uncaught(
        thread.exc_type, thread.exc_value, thread.exc_traceback
    )
    sys.unraisablehook = lambda found: _log_uncaught(
        found.exc_type, found.exc_value, found.exc_traceback
    )


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt | SystemExit):
        logger.critical("uncaught exception", exc_info=(kind, error or kind(), trace))
