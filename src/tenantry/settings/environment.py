"""The variables of settings: the environment over the ``.env`` file.

This is the only module that reads either, and that changes the environment.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from dotenv import dotenv_values

from tenantry.settings.declarations import SECRETS
from tenantry.settings.setting import secret_in


def read_env_file() -> dict[str, str]:
    """The ``.env`` file of the current folder; empty without one."""
    try:
        # bytes that are not UTF-8, of another program's settings, are read as in the environment
        with (Path.cwd() / ".env").open(encoding="utf-8", errors="surrogateescape") as stream:
            values = dotenv_values(stream=stream)
    except (FileNotFoundError, IsADirectoryError):
        return {}
    return {name: value for name, value in values.items() if value is not None}


def read_environment(env_file: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment over the ``.env`` file of the current folder, or over another content of that
    file.

    Secrets in files that ``NAME_FILE`` variables name are read and returned under their own names.
    A file that cannot be read, or a secret that is given in both ways, stays as it is: `load`
    reports it.
    """
    file = read_env_file() if env_file is None else env_file
    return _with_secrets_of_files({**_not_overridden(file), **os.environ})


def _not_overridden(file: Mapping[str, str]) -> dict[str, str]:
    """Leave out secrets that the environment has in either form."""
    overridden = set[str]()
    for secret in SECRETS:
        forms = {secret.name, secret.file_name}
        if not forms.isdisjoint(os.environ):
            overridden |= forms
    return {name: value for name, value in file.items() if name not in overridden}


def _with_secrets_of_files(values: dict[str, str]) -> dict[str, str]:
    for secret in SECRETS:
        path = secret.file(values)
        if path is not None and not values.get(secret.name, "").strip():
            with contextlib.suppress(ValueError):
                values[secret.name] = secret_in(path)
                del values[secret.file_name]
    return values


def inherited(names: Iterable[str]) -> dict[str, str]:
    """Return those of these variables that are set, for a child process that inherits no others."""
    return {name: os.environ[name] for name in names if name in os.environ}


def export_telemetry(values: Mapping[str, str]) -> None:
    """Export OpenTelemetry's variables from the ``.env`` file: its packages read the environment
    themselves.
    """
    export_environment({name: value for name, value in values.items() if name.startswith("OTEL_")})


def export_environment(values: Mapping[str, str]) -> None:
    """Export settings to the server processes that this one starts, with the secrets that were read
    from files.
    """
    os.environ.update(values)
    for secret in SECRETS:
        if secret.name in values:
            os.environ.pop(secret.file_name, None)
