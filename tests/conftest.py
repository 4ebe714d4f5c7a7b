"""Fixtures that every kind of test may use."""

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tenantry.common.process import set_for_serving
from tests.support import figures, waiting
from tests.support.pgbouncer import pooled_everywhere
from tests.support.postgres import PostgresServer, as_url, running_server

pytest_plugins = ["pytester", "tenantry_devkit.testing"]

# a busy machine is no failure
settings.register_profile("tenantry", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=30)  # of `make test-system`
settings.load_profile("tenantry")

# What a shell puts into the background is deaf to Ctrl-C, and what `nohup` starts to a closed
# terminal. So are programs that it starts, unless it has a handler: those that tests end too.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN or "PYTEST_XDIST_WORKER" in os.environ:
    # a worker ends with the process that started it
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give this run a separate folder for the files of its tests.

    pytest's default is below a folder that all runs of a user share, and which each new run closes
    to other users: as root, the PostgreSQL servers of another run, which belong to another user,
    would lose their files.
    """
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="tenantry-pytest-")
        config.add_cleanup(lambda: _remove_unless_failed(config))


def _remove_unless_failed(config: pytest.Config) -> None:
    session = config.pluginmanager.get_plugin("session")
    if not isinstance(session, pytest.Session) or not session.testsfailed:
        shutil.rmtree(config.option.basetemp, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Leave the modules and the collected tests out of every garbage collection, which would go
    through all of them.
    """
    set_for_serving()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show in which lines the coroutines waited when a test has had its time: its own stack ends in
    the event loop.
    """
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, pytest.fail.Exception):
        tasks = waiting.tasks_of_interrupted_loop(call.excinfo.tb)
        if tasks:
            report.sections.append((waiting.TITLE, tasks))
    return report


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a command in this process does to the log ends with its test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test process."""
    with running_server() as server, pooled_everywhere(server.conninfo):
        yield server


@pytest.fixture
def conninfo(postgres: PostgresServer) -> Iterator[str]:
    """The connection string of a migrated, empty database of this test's own."""
    with postgres.database() as conninfo:
        yield conninfo


@pytest.fixture
def database_url(conninfo: str) -> str:
    """`conninfo` as a ``postgresql://`` address, as `DATABASE_URL` takes it."""
    return as_url(conninfo)


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the identity provider at which people sign in to dashboards; its key takes long
    to make.
    """
    return tmp_path_factory.mktemp("people")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what the tests have counted."""
    lines = figures.lines(
        terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    )
    if lines:
        terminalreporter.section(figures.TITLE)
        for line in lines:
            terminalreporter.line(line)
