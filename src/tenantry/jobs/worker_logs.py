"""Log filters: while the database is unavailable, a worker logs one line instead of tracebacks."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from procrastinate.exceptions import ConnectorException
from psycopg_pool import PoolTimeout

from tenantry.db.database import UNAVAILABLE
from tenantry.domain.errors import DatabaseUnavailableError

logger = logging.getLogger(__name__)


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def as_information(record: logging.LogRecord) -> bool:
    """Log a job that found the database unavailable as information, without a traceback."""
    error = _error_of(record)
    if isinstance(error, DatabaseUnavailableError):
        record.msg, record.exc_info = f"{record.msg}: {error}", None
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True


def keep_unless_unavailable(record: logging.LogRecord) -> bool:
    """Drop what asyncio logs of a job whose end cannot be recorded while the database is
    unavailable.
    """
    error = _error_of(record)
    return not (isinstance(error, ConnectorException) and is_unavailable(error))


def is_unavailable(error: BaseException | None) -> bool:
    """Whether the database is unavailable, also where procrastinate says so."""
    cause = error.__cause__ if isinstance(error, ConnectorException) else error
    return isinstance(cause, UNAVAILABLE)


class UnavailableDatabaseFilter(logging.Filter):
    """Drop what libraries log, again and again or with a traceback, while the database is
    unavailable.

    The worker logs one line instead, with the ``reason``. Where it ``is_alone`` in its process,
    warnings of pools are dropped too, otherwise only while it ``is_interrupted``.
    """

    _POOL: Final = "psycopg.pool"
    _LOGGERS: Final = (
        _POOL,
        "procrastinate.worker",
        "procrastinate.worker.worker",
        "procrastinate.utils",
    )

    def __init__(self, *, is_alone: bool) -> None:
        super().__init__()
        self._is_alone = is_alone
        self.reason: str | None = None
        self.is_interrupted = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == self._POOL:
            return self._filter_pool(record)
        error = _error_of(record)
        if error is None or not is_unavailable(error):
            return True
        self._keep_reason(error, error.__cause__)
        return False

    def _filter_pool(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            self._keep_reason(*record.args)
        is_expected = self._is_alone or self.is_interrupted
        return record.levelno > logging.WARNING or not is_expected

    def _keep_reason(self, *found: object) -> None:
        for each in found:
            if isinstance(each, psycopg.Error) and not isinstance(each, PoolTimeout):
                self.reason = str(each)

    def begin_interruption(self, trouble: object) -> None:
        """Log that the worker ended, unless it was interrupted already."""
        if not self.is_interrupted:
            text = "the job worker was interrupted and will retry: %s"
            logger.error(text, self.reason or trouble)
        self.is_interrupted = True

    def end_interruption(self) -> None:
        """Log that the worker works again, if it was interrupted."""
        if self.is_interrupted:
            logger.info("the job worker continues")
        self.is_interrupted = False
        self.reason = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        loggers = [logging.getLogger(name) for name in self._LOGGERS]
        for each in loggers:
            each.addFilter(self)
        try:
            yield
        finally:
            for each in loggers:
                each.removeFilter(self)
