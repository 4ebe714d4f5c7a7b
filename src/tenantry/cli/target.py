"""Which service a command uses and with which credential: flags, environment, profiles."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tenantry.cli.demo_folder import Demo, demo_here
from tenantry.cli.exit_codes import NOT_AUTHENTICATED, USAGE, CommandError
from tenantry.cli.sessions import Session, Sessions
from tenantry_sdk import Secret

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


DEFAULT_ADDRESS: Final = "http://127.0.0.1:3001"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_MOST_KEY_BYTES: Final = 4096
_ORGANIZATION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Flags(NamedTuple):
    """What the command line says."""

    base_url: str | None = None
    profile: str | None = None
    organization: str | None = None
    api_key_file: str | None = None


class Given(NamedTuple):
    """A value and who gave it, in words for messages."""

    value: str
    source: str


class Target(NamedTuple):
    """A service, and what it is asked with: a key, or else a sign-in."""

    profile: str
    base_url: Given
    organization: str | None
    key: Secret | None
    session: Session | None
    sessions: Sessions
    credential: str
    """Where the credential is from, in words."""
    demo: Demo | None = None
    """The demo of the folder, where nothing else was set and so it is meant."""


class ClientConfiguration:
    """The flags, and all that counts beside them: environment, configuration file, what was kept, the demo here.

    Where ``signs_in``, a profile that nobody has heard of is a new one; else that is a `CommandError`.
    """

    def __init__(self, flags: Flags, environment: Mapping[str, str], *, signs_in: bool = False) -> None:
        self.flags = flags
        self.environment = environment
        path = config_path(environment)
        config = read_config(path)
        self.name = self._name(config)
        self._file = f"profile {self.name} in {path}"
        self._folder = path.parent
        self.profile = config.profiles.get(self.name, Profile())
        self.sessions = Sessions(state_folder(environment), self.name)
        self.session = self.sessions.load()
        self._check_flags()
        named = self._named or self.name != DEFAULT
        if named and not signs_in and self.name not in config.profiles and self.session is None:
            known = ", ".join(config.profiles) or "none"
            raise CommandError(
                f"There is no profile {self.name}: {path} has {known}, and nobody is signed in under it.", USAGE
            )

    def address(self) -> tuple[Given, Demo | None]:
        """Where the service is; with the demo where nothing says so, and neither is there a credential."""
        for given in self._addresses():
            return Given(checked_address(given.value, given.source), given.source), None
        demo = None if self._named or self._has_key() else demo_here(self.environment)
        if demo is not None:
            return Given(demo.base_url, f"the demo in {demo.folder}"), demo
        return Given(DEFAULT_ADDRESS, "the default"), None

    def target(self) -> Target:
        """The service and the credential. Raises `CommandError` where there is none."""
        address, demo = self.address()
        organization = self.organization()
        key, source = self._key(address)
        session = None
        if key is None and self._session_fits(address):
            session, source = self.session, "tenantry login"
            # a key is of one organization: what is configured is for the user
            organization = organization or self.profile.organization or (session.organization if session else None)
        elif key is None and demo is not None:
            key, source = Secret(demo.live_key), f"the demo in {demo.folder}"
        elif key is None:
            raise CommandError(self._nothing(address), NOT_AUTHENTICATED)
        return Target(self.name, address, organization, key, session, self.sessions, source, demo)

    def organization(self) -> str | None:
        """The organization that the command line or the environment names."""
        named = self.flags.organization
        if named is None:
            named, source = self.environment.get("TENANTRY_ORGANIZATION") or None, "TENANTRY_ORGANIZATION"
            if self.flags.profile and self.profile.organization:
                return None
        else:
            source = "--organization"
        if named is not None and _ORGANIZATION.fullmatch(named) is None:
            raise CommandError(f"{source}: an organization's id is 1 to 64 of A-Za-z0-9_-, not {named!r}.", USAGE)
        return named

    def set_here(self, variable: str, of_profile: str | None) -> str | None:
        """What environment or profile say: a profile that is named on the command line goes before."""
        of_environment = self.environment.get(variable, "").strip() or None
        return (of_profile or of_environment) if self.flags.profile else (of_environment or of_profile)

    def _check_flags(self) -> None:
        """Raise `CommandError` for an empty one: in scripts that is a variable that is not set."""
        for name, value in self.flags._asdict().items():
            if value is not None and not value.strip():
                raise CommandError(f"--{name.replace('_', '-')}: is empty.", USAGE)

    def _name(self, config: Config) -> str:
        if self.flags.profile is not None:
            return checked_name(self.flags.profile, "--profile")
        if named := self.environment.get("TENANTRY_PROFILE"):
            return checked_name(named, "TENANTRY_PROFILE")
        return checked_name(config.profile, "profile in the configuration file")

    @property
    def _named(self) -> bool:
        return bool(self.flags.profile or self.environment.get("TENANTRY_PROFILE"))

    def _addresses(self) -> Iterator[Given]:
        kept = [
            Given(value, source)
            for value, source in (
                (self.profile.base_url, self._file),
                (self.session.base_url if self.session else None, "tenantry login"),
            )
            if value
        ]
        if self.flags.base_url:
            yield Given(self.flags.base_url, "--base-url")
        if self.flags.profile:  # named on the command line, it goes before the environment
            yield from kept
        if set_ := self.environment.get("TENANTRY_BASE_URL"):
            yield Given(set_, "TENANTRY_BASE_URL")
        yield from kept

    def _has_key(self) -> bool:
        return bool(self.flags.api_key_file or self.environment.get("TENANTRY_API_KEY") or self.profile.api_key_file)

    def _key(self, address: Given) -> tuple[Secret | None, str]:
        if self.flags.api_key_file:
            return _key_in(self.flags.api_key_file, "--api-key-file"), "--api-key-file"
        if self.flags.profile and self._belongs_to_profile(address):
            return self._key_of_profile()
        if self.flags.profile and self._session_fits(address):
            return None, ""
        if (key := self.environment.get("TENANTRY_API_KEY", "").strip()) and self._is_of_environment(address):
            return checked_key(key, "TENANTRY_API_KEY"), "TENANTRY_API_KEY"
        if self._belongs_to_profile(address):
            return self._key_of_profile()
        return None, ""

    def _key_of_profile(self) -> tuple[Secret, str]:
        """The key in the profile's file; a relative name is one beside the configuration, whatever folder this is."""
        named = self.profile.api_key_file or ""
        return _key_in(named if named.startswith("~") else str(self._folder / named), self._file), self._file

    def _belongs_to_profile(self, address: Given) -> bool:
        """Whether the profile has a key, and for this service: what belongs to one is sent to no other."""
        of_profile = self.profile.base_url
        return self.profile.api_key_file is not None and (not of_profile or of_profile.rstrip("/") == address.value)

    def _is_of_environment(self, address: Given) -> bool:
        """Whether the key of the environment is meant for this service: a profile that is named has its own."""
        if not self.flags.profile or address.source not in (self._file, "tenantry login"):
            return True
        return self.environment.get("TENANTRY_BASE_URL", "").rstrip("/") == address.value

    def _session_fits(self, address: Given) -> bool:
        return self.session is not None and self.session.base_url == address.value

    def _nothing(self, address: Given) -> str:
        lines = [f"There is no credential for {address.value} (from {address.source})."]
        if self.session is not None:
            lines.append(f"You are signed in to {self.session.base_url}, and that counts there alone.")
        if self.profile.api_key_file is not None:
            lines.append(f"The API key of the {self._file} is for {self.profile.base_url}.")
        if self.environment.get("TENANTRY_API_KEY"):
            lines.append(f"TENANTRY_API_KEY is set, but --profile {self.name} names a service of its own.")
        lines.append("Set TENANTRY_API_KEY, pass --api-key-file, or sign in: tenantry login")
        return "\n".join(lines)


def checked_address(address: str, source: str) -> str:
    """An address to which credentials may go: https, or on this machine. Raises `CommandError` for any other."""
    try:
        parts = urlsplit(address)
        faulty = parts.port == 0 or parts.query or parts.fragment or not _is_plain(address)
    except ValueError:  # a port that is none, or an IPv6 address that is none
        raise CommandError(f"{source}: {shown_address(address)} is no http address.", USAGE) from None
    if "@" in parts.netloc:
        raise CommandError(f"{source}: an address holds no user and no password.", USAGE)
    if parts.scheme not in {"http", "https"} or not parts.hostname or faulty:
        raise CommandError(f"{source}: {shown_address(address)} is no http address.", USAGE)
    if parts.scheme == "http" and not is_loopback(address):
        raise CommandError(f"{source}: {address} has to be https, for what is sent there is secret.", USAGE)
    return address.rstrip("/")


def shown_address(address: str) -> str:
    """An address for messages, without what may be a password in it."""
    before, at, after = address.rpartition("@")
    return repr(f"{before[: before.find('//') + 2]}***@{after}" if at else address)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def checked_key(key: str, source: str) -> Secret:
    """The key as a secret. Raises `CommandError` where it holds what no key does."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise CommandError(f"{source}: this is no API key: it holds characters that none has.", NOT_AUTHENTICATED)
    return Secret(key)


def _key_in(path: str, source: str) -> Secret:
    file = Path(path)
    try:
        file = file.expanduser()
        with file.open("rb") as opened:
            key = opened.read(_MOST_KEY_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise CommandError(f"{source}: {file} cannot be read: {error.strerror}.", NOT_AUTHENTICATED) from None
    except (RuntimeError, ValueError) as error:  # no such home, or a name that no file can have
        raise CommandError(f"{source}: {str(file)!r} cannot be read: {error}.", NOT_AUTHENTICATED) from None
    if not key:
        raise CommandError(f"{source}: {file} is empty.", NOT_AUTHENTICATED)
    return checked_key(key, source)


def is_loopback(address: str) -> bool:
    """Whether this is an address on this machine."""
    try:
        return urlsplit(address).hostname in _LOOPBACK
    except ValueError:
        return False
