"""Which service a command uses, and with which credential: options, environment, profiles."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tenantry.cli.demo_folder import Demo, demo_here, is_loopback_url
from tenantry.cli.output import NOT_AUTHENTICATED, USAGE, CommandError
from tenantry.cli.sign_in_storage import SignInStorage, StoredSignIn
from tenantry_sdk import Secret

DEFAULT_PROFILE: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service, and how to sign in to it."""

    base_url: str | None = None
    issuer: str | None = None
    client_id: str | None = None
    scope: str | None = None
    audience: str | None = None
    organization: str | None = None
    api_key_file: str | None = None
    keyring: bool = False


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration file. ``profile`` is the default profile."""

    profile: str = DEFAULT_PROFILE
    profiles: dict[str, Profile] = {}


class ServiceOptions(NamedTuple):
    base_url: str | None = None
    profile: str | None = None
    organization: str | None = None
    api_key_file: str | None = None


class SourcedValue(NamedTuple):
    """A value, and where it is set, for messages."""

    value: str
    source: str


class Target(NamedTuple):
    """A service with a key or a sign-in; ``credential`` says where that is set, and ``demo`` provides what is unset."""

    profile: str
    base_url: SourcedValue
    organization: str | None
    key: Secret | None
    sign_in: StoredSignIn | None
    storage: SignInStorage
    credential: str
    demo: Demo | None = None


def read_config(path: Path) -> Config:
    """Read the configuration; a missing file is empty. Raises `CommandError` for a faulty one."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Config)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.", USAGE) from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not a configuration of tenantry: {error}", USAGE) from None


def _folder(environment: Mapping[str, str], name: str, default: str) -> Path:
    """Return tenantry's folder in an XDG base directory; a relative base does not count."""
    base = Path(environment.get(name) or "")
    if base.is_absolute():
        return base / "tenantry"
    try:
        return Path.home() / default / "tenantry"
    except RuntimeError:
        raise CommandError(f"There is no home folder: set HOME, or {name}.", USAGE) from None


class ClientConfiguration:
    """The options of a command, and what applies beside them: environment, configuration file, sign-in, demo.

    An unknown profile raises `CommandError`, except for a command that ``signs_in``.
    """

    def __init__(self, options: ServiceOptions, environment: Mapping[str, str], *, signs_in: bool = False) -> None:
        self.options = options
        self.environment = environment
        path = _folder(environment, "XDG_CONFIG_HOME", ".config") / "config.toml"
        config = read_config(path)
        self.name = self._profile_name(config)
        self._file = f"profile {self.name} in {path}"
        self._folder = path.parent
        self.profile = config.profiles.get(self.name, Profile())
        self.storage = SignInStorage(_folder(environment, "XDG_STATE_HOME", ".local/state"), self.name)
        self.sign_in = self.storage.load()
        for name, value in options._asdict().items():
            if value is not None and not value.strip():  # in scripts, an unset variable
                raise CommandError(f"--{name.replace('_', '-')}: is empty.", USAGE)
        self._is_named = bool(options.profile or environment.get("TENANTRY_PROFILE"))
        is_named = self._is_named or self.name != DEFAULT_PROFILE
        if is_named and not signs_in and self.name not in config.profiles and self.sign_in is None:
            known = ", ".join(config.profiles) or "none"
            raise CommandError(f"There is no profile {self.name}. {path} has: {known}.", USAGE)

    def address(self) -> tuple[SourcedValue, Demo | None]:
        """Return the service's address; also the demo, if neither an address nor a credential is set."""
        option = (self.options.base_url, "--base-url")
        variable = (self.environment.get("TENANTRY_BASE_URL"), "TENANTRY_BASE_URL")
        stored = (self.profile.base_url, self._file)
        signed_in = (self.sign_in.base_url if self.sign_in else None, "tenantry login")
        others = [stored, signed_in, variable] if self.options.profile else [variable, stored, signed_in]
        for value, source in [option, *others]:
            if value:
                return SourcedValue(checked_address(value, source), source), None
        has_key = self.options.api_key_file or self.environment.get("TENANTRY_API_KEY") or self.profile.api_key_file
        demo = None if self._is_named or has_key else demo_here(self.environment)
        if demo is not None:
            return SourcedValue(demo.base_url, f"the demo in {demo.folder}"), demo
        return SourcedValue("http://127.0.0.1:3001", "the default"), None

    def target(self) -> Target:
        """Return the service and the credential. Raises `CommandError` without a credential."""
        address, demo = self.address()
        organization = self.organization()
        key, source = self._key(address)
        sign_in = self.sign_in_for(address) if key is None else None
        if sign_in is not None:
            source = "tenantry login"
            # the configured organization is for users: a key belongs to one organization
            organization = organization or self.profile.organization or sign_in.organization
        elif key is None and demo is not None:
            key, source = Secret(demo.live_key), f"the demo in {demo.folder}"
        elif key is None:
            raise CommandError(self._explain_missing(address), NOT_AUTHENTICATED)
        return Target(self.name, address, organization, key, sign_in, self.storage, source, demo)

    def organization(self) -> str | None:
        """Return the organization that the command line or the environment names."""
        named, source = self.options.organization, "--organization"
        if named is None:
            named, source = self.environment.get("TENANTRY_ORGANIZATION") or None, "TENANTRY_ORGANIZATION"
            if self.options.profile and self.profile.organization:
                return None
        if named is not None and _NAME.fullmatch(named) is None:
            raise CommandError(f"{source}: an organization's id is 1 to 64 of A-Za-z0-9_-, not {named!r}.", USAGE)
        return named

    def setting(self, variable: str, of_profile: str | None) -> str | None:
        """Return a setting of environment or profile; a profile named on the command line takes precedence."""
        of_environment = self.environment.get(variable, "").strip() or None
        return (of_profile or of_environment) if self.options.profile else (of_environment or of_profile)

    def sign_in_for(self, address: SourcedValue) -> StoredSignIn | None:
        """Return the stored sign-in, if it is for this service."""
        return self.sign_in if self.sign_in is not None and self.sign_in.base_url == address.value else None

    def _profile_name(self, config: Config) -> str:
        name, source = config.profile, "profile in the configuration file"
        if self.options.profile is not None:
            name, source = self.options.profile, "--profile"
        elif named := self.environment.get("TENANTRY_PROFILE"):
            name, source = named, "TENANTRY_PROFILE"
        if _NAME.fullmatch(name) is None:
            raise CommandError(f"{source}: a profile's name is 1 to 64 of A-Za-z0-9_-, not {name!r}.", USAGE)
        return name

    def _key(self, address: SourcedValue) -> tuple[Secret | None, str]:
        """Return the API key for this service and where it is set. A profile's key goes only to its service."""
        if self.options.api_key_file:
            return _read_key(self.options.api_key_file, "--api-key-file"), "--api-key-file"
        of_service = (self.profile.base_url or address.value).rstrip("/") == address.value
        has_profile_key = self.profile.api_key_file is not None and of_service
        if self.options.profile and not has_profile_key and self.sign_in_for(address) is not None:
            return None, ""
        variable = self.environment.get("TENANTRY_API_KEY", "").strip()
        # the key of the environment is for its service; a profile on the command line has its own
        is_of_profile = self.options.profile and address.source in (self._file, "tenantry login")
        is_of_other = is_of_profile and self.environment.get("TENANTRY_BASE_URL", "").rstrip("/") != address.value
        if variable and not (self.options.profile and has_profile_key) and not is_of_other:
            return _checked_key(variable, "TENANTRY_API_KEY"), "TENANTRY_API_KEY"
        if not has_profile_key:
            return None, ""
        named = self.profile.api_key_file or ""
        # a relative name is relative to the configuration file
        return _read_key(named if named.startswith("~") else str(self._folder / named), self._file), self._file

    def _explain_missing(self, address: SourcedValue) -> str:
        lines = [f"There is no credential for {address.value} (from {address.source})."]
        if self.sign_in is not None:
            lines.append(f"You are signed in to {self.sign_in.base_url}; that sign-in is only for that service.")
        if self.profile.api_key_file is not None:
            lines.append(f"The API key of the {self._file} is for {self.profile.base_url}.")
        if self.environment.get("TENANTRY_API_KEY"):
            lines.append(f"TENANTRY_API_KEY is set, but --profile {self.name} names another service.")
        lines.append("Set TENANTRY_API_KEY, pass --api-key-file, or sign in: tenantry login")
        return "\n".join(lines)


def checked_address(address: str, source: str) -> str:
    """Return an address that may receive credentials: https, or on this machine. Raises `CommandError` otherwise."""
    before, at, after = address.rpartition("@")  # before it may be a password
    shown = f"{before[: before.find('//') + 2]}***@{after}" if at else address
    invalid = CommandError(f"{source}: {shown!r} is no http address.", USAGE)
    try:
        parts = urlsplit(address)
        is_valid = parts.port != 0 and not parts.query and not parts.fragment and is_plain(address)
    except ValueError:  # an invalid port or IPv6 address
        raise invalid from None
    if "@" in parts.netloc:
        raise CommandError(f"{source}: an address holds no user and no password.", USAGE)
    if not is_valid or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise invalid
    if parts.scheme == "http" and not is_loopback_url(address):
        raise CommandError(f"{source}: {address} must be https: it receives secrets.", USAGE)
    return address.rstrip("/")


def is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _checked_key(key: str, source: str) -> Secret:
    if not is_plain(key):
        raise CommandError(f"{source}: this is not an API key: it has invalid characters.", NOT_AUTHENTICATED)
    return Secret(key)


def _read_key(path: str, source: str) -> Secret:
    file = Path(path)
    try:
        file = file.expanduser()
        with file.open("rb") as opened:
            key = opened.read(4096).decode("utf-8", "replace").strip()
    except OSError as error:
        raise CommandError(f"{source}: {file} cannot be read: {error.strerror}.", NOT_AUTHENTICATED) from None
    except (RuntimeError, ValueError) as error:  # an unknown home, or an invalid file name
        raise CommandError(f"{source}: {str(file)!r} cannot be read: {error}.", NOT_AUTHENTICATED) from None
    if not key:
        raise CommandError(f"{source}: {file} is empty.", NOT_AUTHENTICATED)
    return _checked_key(key, source)
