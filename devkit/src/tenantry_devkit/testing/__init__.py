"""A pytest plugin for applications that use tenantry: the real service, and fixtures (docs/testing.md).

Load it with ``pytest_plugins = ["tenantry_devkit.testing"]``. It imports everything slow on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from tenantry_devkit.testing.plugin import (
    pytest_assertrepr_compare,
    pytest_runtest_makereport,
    tenantry,
    tenantry_service,
    tenantry_settings,
)

if TYPE_CHECKING:
    from tenantry_devkit.testing.errors import Credential, MailError, RefusedError, StartError, Variables
    from tenantry_devkit.testing.events import Events, SentEvent
    from tenantry_devkit.testing.fixture import Tenantry
    from tenantry_devkit.testing.provider import Provider
    from tenantry_devkit.testing.service import RunningService, running_service
    from tenantry_devkit.testing.tenants import Key, Member, Tenant

__all__ = [
    "Credential",
    "Events",
    "Key",
    "MailError",
    "Member",
    "Provider",
    "RefusedError",
    "RunningService",
    "SentEvent",
    "StartError",
    "Tenant",
    "Tenantry",
    "Variables",
    "pytest_assertrepr_compare",
    "pytest_runtest_makereport",
    "running_service",
    "tenantry",
    "tenantry_service",
    "tenantry_settings",
]

_HOMES: Final = {
    "Credential": "errors", "Events": "events", "Key": "tenants", "MailError": "errors", "Member": "tenants",
    "Provider": "provider", "RefusedError": "errors", "RunningService": "service", "SentEvent": "events",
    "StartError": "errors", "Tenant": "tenants", "Tenantry": "fixture", "Variables": "errors",
    "running_service": "service",
}  # fmt: skip


if not TYPE_CHECKING:  # otherwise type checkers accept any name

    def __getattr__(name: str) -> Any:  # noqa: ANN401  # PEP 562
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
