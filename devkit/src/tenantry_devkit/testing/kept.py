"""The keeper's processes, as the test session sees them."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tenantry.settings import inherited
from tenantry_devkit.testing import keeper
from tenantry_devkit.testing.errors import StartError
from tenantry_devkit.testing.keeper import LOG, tail

_INHERITED: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH",
    "COVERAGE_PROCESS_START", "COVERAGE_FILE",
)  # fmt: skip
"""What they get of the session's environment: none of what might be a setting of the service, or of PostgreSQL."""
_STOP_SECONDS: Final = 120.0


class Kept:
    """PostgreSQL, which is begun at once, and then the service, both below ``folder``, which goes in the end.

    They end with `close`, or with this process, even if that is killed. Raises `StartError` when one does not start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / LOG
        with self._log.open("ab") as log:
            self._keeper = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-P", keeper.__file__, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=inherited(_INHERITED),
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )

    def database(self) -> str:
        """The address of the database, once that takes connections."""
        return self._answer("database")

    def serve(self, settings: Mapping[str, str]) -> str:
        """Start the service with these settings; its address, once it is ready."""
        assert self._keeper.stdin is not None  # noqa: S101
        try:
            self._keeper.stdin.write(f"{json.dumps({**inherited(_INHERITED), **settings})}\n")
            self._keeper.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer("ready")

    @property
    def logged(self) -> int:
        """How many bytes the service has logged so far."""
        return self._log.stat().st_size

    def log(self, since: int = 0) -> str:
        """What it has logged since there were so many bytes; empty once it has ended."""
        try:
            with self._log.open("rb") as log:
                log.seek(since)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """End the service and PostgreSQL, and wait for it."""
        self._keeper.terminate()  # the pipes alone do not say so while a forked child of this process has them too
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._keeper.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # a keeper that was ended before it began has not done so

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, name: str) -> str:
        assert self._keeper.stdout is not None  # noqa: S101
        line = self._keeper.stdout.readline()
        if not line:
            raise self._ended()
        news: dict[str, str] = json.loads(line)
        if name not in news:
            raise StartError(f"The service of the tests does not start. {news['failed']}")
        return news[name]

    def _ended(self) -> StartError:
        return StartError(f"The process that keeps the service has ended:\n{tail(self._log)}")
