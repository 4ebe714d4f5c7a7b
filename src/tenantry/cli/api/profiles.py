"""The configuration file: which services there are, by name."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tenantry.cli.exit_codes import USAGE, CommandError

DEFAULT: Final = "default"
"""The profile that is used where none is named."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One service, and how to sign in to it. Everything may be left out."""

    base_url: str | None = None
    issuer: str | None = None
    client_id: str | None = None
    scope: str | None = None
    audience: str | None = None
    organization: str | None = None
    api_key_file: str | None = None
    keyring: bool = False


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. ``profile`` is the one that counts where none is named."""

    profile: str = DEFAULT
    profiles: dict[str, Profile] = {}


def config_path(environment: Mapping[str, str]) -> Path:
    """``tenantry/config.toml`` in ``XDG_CONFIG_HOME``, or in ``~/.config``."""
    return _folder(environment, "XDG_CONFIG_HOME", ".config") / "config.toml"


def state_folder(environment: Mapping[str, str]) -> Path:
    """``tenantry`` in ``XDG_STATE_HOME``, or in ``~/.local/state``: what was kept by signing in."""
    return _folder(environment, "XDG_STATE_HOME", ".local/state")


def read_config(path: Path) -> Config:
    """The configuration; one without anything where there is no file. Raises `CommandError` where it is faulty."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Config)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.", USAGE) from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not a configuration of tenantry: {error}", USAGE) from None


def checked_name(name: str, source: str) -> str:
    """The name of a profile. Raises `CommandError` where it is none."""
    if _NAME.fullmatch(name) is None:
        raise CommandError(f"{source}: a profile's name is 1 to 64 of A-Za-z0-9_-, not {name!r}.", USAGE)
    return name


def _folder(environment: Mapping[str, str], name: str, instead: str) -> Path:
    base = Path(environment.get(name) or "")
    # XDG Base Directory Specification: relative paths do not count
    if base.is_absolute():
        return base / "tenantry"
    try:
        return Path.home() / instead / "tenantry"
    except RuntimeError:
        raise CommandError(f"There is no home folder here: set HOME, or {name}.", USAGE) from None
