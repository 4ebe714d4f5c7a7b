"""A pytest plugin for applications that use tenantry: the real service, and fixtures
(docs/how-to/testing.md).

Load it with ``pytest_plugins = ["tenantry_devkit.testing"]``. It imports everything slow on first
use.
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from tenantry_devkit.testing.errors import (
        Credential,
        MailError,
        RefusedError,
        StartError,
        Variables,
    )
    from tenantry_devkit.testing.fixture import SuiteTenantry
    from tenantry_devkit.testing.provider import Events, Provider, SentEvent
    from tenantry_devkit.testing.service import RunningService, running_service
    from tenantry_devkit.testing.tenants import Key, SuiteMember, SuiteTenant

__all__ = [
    "Credential",
    "Events",
    "Key",
    "MailError",
    "Provider",
    "RefusedError",
    "RunningService",
    "SentEvent",
    "StartError",
    "SuiteMember",
    "SuiteTenant",
    "SuiteTenantry",
    "Variables",
    "pytest_assertrepr_compare",
    "pytest_runtest_makereport",
    "running_service",
    "tenantry",
    "tenantry_service",
    "tenantry_settings",
]

_MODULES: Final = ("errors", "service", "tenants", "provider", "fixture")
"""The modules that have the names of `__all__` but for those here."""


if not TYPE_CHECKING:  # otherwise type checkers accept any name

    def __getattr__(name: str) -> Any:  # noqa: ANN401  # PEP 562
        for module in _MODULES if name in __all__ else ():
            found = importlib.import_module(f"{__name__}.{module}")
            if hasattr(found, name):
                return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_started: "Final[pytest.StashKey[tuple[RunningService, int]]]" = pytest.StashKey()
"""A test's service, and the length of its log at the start."""


@pytest.fixture(scope="session")
def tenantry_settings() -> Mapping[str, object]:
    """The service's settings, by variable name; override it in the suite's conftest.py."""
    return {}


@pytest.fixture(scope="session")
def tenantry_service(tenantry_settings: Mapping[str, object]) -> "Iterator[RunningService]":
    """The service, for the session."""
    from tenantry_devkit.testing.errors import StartError  # noqa: PLC0415  # slow to import
    from tenantry_devkit.testing.service import running_service  # noqa: PLC0415

    __tracebackhide__ = True  # the settings may hold secrets
    with ExitStack() as stack:
        try:
            service = stack.enter_context(running_service(tenantry_settings))
        except StartError as error:
            pytest.fail(str(error), pytrace=False)
        yield service


@pytest.fixture
def tenantry(
    tenantry_service: "RunningService",
    tenantry_settings: Mapping[str, object],
    request: pytest.FixtureRequest,
) -> "Iterator[SuiteTenantry]":
    """The service as this test uses it: tenants, keys, tokens, events, mails, and its own payment
    provider.
    """
    from tenantry_devkit.testing.fixture import SuiteTenantry  # noqa: PLC0415  # as above
    from tenantry_devkit.testing.service import as_variables  # noqa: PLC0415

    __tracebackhide__ = True  # as above
    if tenantry_service.given != as_variables(tenantry_settings):
        pytest.fail(
            "The service runs with other tenantry_settings than this test's. A session has one service: "
            "override tenantry_settings for all of it, in its topmost conftest.py.",
            pytrace=False,
        )
    request.node.stash[_started] = tenantry_service, tenantry_service.log_length
    with SuiteTenantry(tenantry_service) as tenantry:
        yield tenantry


@pytest.hookimpl(tryfirst=True)
def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Mask compared credentials."""
    from tenantry_devkit.testing.errors import explain_comparison  # noqa: PLC0415  # as above

    return explain_comparison(op, left, right)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Add the service's log to the report of a failed test."""
    if call.excinfo is None or _started not in item.stash:
        return
    service, since = item.stash[_started]
    if logged := service.log(since):
        item.add_report_section(call.when, "tenantry", logged)
