"""The settings: how each variable is read, and what follows from them.

Only `environment` reads the environment and the ``.env`` file.
"""

from tenantry.settings.declarations import SECRETS, SETTINGS, VARIABLES
from tenantry.settings.derived import (
    DEMO_COMMAND,
    DEMO_PAGES,
    DEMO_PEOPLE,
    OTHER_CONNECTIONS,
    Settings,
    load,
    load_for_admin,
    load_for_authentication,
)
from tenantry.settings.environment import (
    export_environment,
    export_telemetry,
    inherited,
    read_env_file,
    read_environment,
)
from tenantry.settings.kinds import EMBEDDED, read_conninfo
from tenantry.settings.setting import DEMO_FLAG, FILE_SUFFIX, REQUIRED, Setting, SettingsError

__all__ = [
    "DEMO_COMMAND",
    "DEMO_FLAG",
    "DEMO_PAGES",
    "DEMO_PEOPLE",
    "EMBEDDED",
    "FILE_SUFFIX",
    "OTHER_CONNECTIONS",
    "REQUIRED",
    "SECRETS",
    "SETTINGS",
    "VARIABLES",
    "Setting",
    "Settings",
    "SettingsError",
    "export_environment",
    "export_telemetry",
    "inherited",
    "load",
    "load_for_admin",
    "load_for_authentication",
    "read_conninfo",
    "read_env_file",
    "read_environment",
]
