"""Which service a command uses, and with which credential: options, environment, profiles."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from tenantry_cli.demo_folder import Demo, demo_here
from tenantry_cli.output import NOT_AUTHENTICATED, USAGE, CommandError
from tenantry_cli.sign_in_storage import SignInStorage, StoredSignIn
from tenantry_sdk import Backoff, RefreshToken, Secret, Tenantry, oauth
from tenantry_sdk.errors import ConfigurationError

DEFAULT_PROFILE: Final = "default"
DEFAULT_SOURCE: Final = "the default"
"""The source of an address that nothing sets."""
_SIGN_IN: Final = "tenantry login"
_KEY: Final = re.compile(r"[\x21-\x7e]+")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_API_PREFIX: Final = re.compile(r"(?<!/)/api/v1$")  # after "//" it is a host


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service, and how to sign in to it."""

    base_url: str | None = None
    issuer: str | None = None
    client_id: str | None = None
    scope: str | None = None
    audience: str | None = None
    org: str | None = None
    api_key_file: str | None = None
    keyring: bool = False


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration file. ``profile`` is the default profile."""

    profile: str = DEFAULT_PROFILE
    profiles: dict[str, Profile] = {}


class ServiceOptions(NamedTuple):
    base_url: str | None = None
    profile: str | None = None
    org: str | None = None
    api_key_file: str | None = None


class SourcedValue(NamedTuple):
    """A value, and where it is set, for messages."""

    value: str
    source: str


class WaitTimes(NamedTuple):
    """How long a command waits, in seconds: between the attempts of an API call (``backoff``), for
    a response of the identity ``provider``, at least between two polls of the device flow, and
    until services have written what they collected of a person whose access has ended: visits and
    rejections, for five seconds (``settling``). Tests pass others, as click's ``obj``.
    """

    backoff: Backoff = Backoff()
    provider: float = 10.0
    poll: float = 1.0
    settling: float = 6.0


def wait_times() -> WaitTimes:
    context = click.get_current_context(silent=True)  # none for a completion
    return (context and context.find_object(WaitTimes)) or WaitTimes()


class Target(NamedTuple):
    """A service with a key or the tokens of a user; ``credential`` says where that is set.

    ``demo`` is set if it provides both.
    """

    profile: str
    base_url: SourcedValue
    org: str | None
    key: Secret | None
    tokens: RefreshToken | None
    credential: str
    demo: Demo | None = None

    @property
    def key_words(self) -> str:
        """Say which key the target has, where there is a demo."""
        is_of_demo = self.demo is not None and self.credential == self.demo.source
        return "its live key" if is_of_demo else f"the key of {self.credential}"

    def client(self, **options: Any) -> Tenantry:  # noqa: ANN401  # the SDK's
        return Tenantry(
            self.key,
            base_url=self.base_url.value,
            tokens=self.tokens,
            organization=self.org,
            backoff=wait_times().backoff,
            **options,
        )


def parse_config(text: str) -> Config:
    """Return the configuration that a file contains. Raises `msgspec.DecodeError` or
    `RecursionError`.
    """
    return msgspec.toml.decode(text, type=Config)


def read_config(path: Path) -> Config:
    """Read the configuration; a missing file is empty. Raises `CommandError` for a faulty one."""
    try:
        return parse_config(path.read_text("utf-8"))
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.", USAGE) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not a configuration of tenantry: {error}", USAGE) from None


def xdg_folder(environment: Mapping[str, str], name: str, default: str) -> Path:
    """Return tenantry's folder in an XDG base directory; a relative base does not count. Raises
    `CommandError`.
    """
    base = Path(environment.get(name) or "")
    if base.is_absolute():
        return base / "tenantry"
    try:
        return Path.home() / default / "tenantry"
    except RuntimeError:
        raise CommandError(f"There is no home folder: set HOME, or {name}.", USAGE) from None


def config_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the configuration file. Raises `CommandError` without a home folder."""
    return xdg_folder(environment, "XDG_CONFIG_HOME", ".config") / "config.toml"


class ClientConfiguration:
    """The options of a command, and what applies beside them: environment, configuration file,
    sign-in, demo.

    An unknown profile raises `CommandError`, except for a command that ``signs_in``.
    """

    def __init__(
        self,
        options: ServiceOptions,
        environment: Mapping[str, str],
        *,
        signs_in: bool = False,
    ) -> None:
        _check_options(options)
        self.options = options
        self.environment = environment
        path = config_path(environment)
        config = read_config(path)
        self._named = options.profile or environment.get("TENANTRY_PROFILE")
        self.name = checked_id(self._named or config.profile, "A profile's name")
        self._file = f"profile {self.name} in {path}"
        self._folder = path.parent
        self.profile = config.profiles.get(self.name, Profile())
        self.storage = self.storage_of(self.name)
        if not signs_in and self.name not in config.profiles:
            self._check_profile(config, path)

    def _check_profile(self, config: Config, path: Path) -> None:
        """Reject a profile that neither a sign-in nor the default made."""
        is_default = not self._named and self.name == DEFAULT_PROFILE
        if not is_default and not self.storage.exists():
            known = ", ".join(config.profiles) or "none"
            raise CommandError(f"There is no profile {self.name}. {path} has: {known}.", USAGE)

    def storage_of(self, profile: str) -> SignInStorage:
        return SignInStorage(
            xdg_folder(self.environment, "XDG_STATE_HOME", ".local/state"), profile
        )

    @cached_property
    def sign_in(self) -> StoredSignIn | None:
        """The stored sign-in, for whatever service. Raises `StoreError`."""
        return self.storage.load()

    def sign_in_for(self, address: SourcedValue) -> StoredSignIn | None:
        """Return the stored sign-in, if it is for this service."""
        if self.sign_in is not None and self.sign_in.base_url == address.value:
            return self.sign_in
        return None

    def setting(
        self,
        name: str,
        option: str | None,
        sign_in: StoredSignIn | None,
        demo: Demo | None = None,
    ) -> SourcedValue | None:
        """Return the setting from the first that has it of option, environment, profile, sign-in
        and demo.

        A profile named on the command line takes precedence over the environment, and so does its
        sign-in.
        """
        variable = f"TENANTRY_{name.upper()}"
        environment = [(self.environment.get(variable), variable)]
        stored = [
            (getattr(self.profile, name), self._file),
            (getattr(sign_in, name, None), _SIGN_IN),
        ]
        others = [*stored, *environment] if self.options.profile else [*environment, *stored]
        candidates = [(option, f"--{name.replace('_', '-')}"), *others]
        if demo is not None:
            candidates.append((getattr(demo, name), demo.source))
        return next((SourcedValue(value, source) for value, source in candidates if value), None)

    def address(self) -> tuple[SourcedValue, Demo | None]:
        """Return the service's address; also the demo, if no address is set, and no credential but
        a key of that demo.
        """
        if found := self.setting("base_url", self.options.base_url, self.sign_in):
            address = without_api_prefix(checked_address(*found))
            return SourcedValue(address, found.source), None
        key = self.environment.get("TENANTRY_API_KEY", "").strip()
        is_set = any((self._named, self.options.api_key_file, self.profile.api_key_file))
        demo = None if is_set else demo_here(self.environment)
        if demo is not None and (not key or demo.takes(key)):
            return SourcedValue(demo.base_url, demo.source), demo
        return SourcedValue("http://127.0.0.1:3001", DEFAULT_SOURCE), None

    def org(self, sign_in: StoredSignIn | None, *, has_key: bool = False) -> str | None:
        """Return the organization; with a key, which belongs to one, only that of command line or
        environment.
        """
        found = self.setting("org", self.options.org, sign_in)
        if found is None or (has_key and found.source in (self._file, _SIGN_IN)):
            return None
        return checked_id(found.value, f"{found.source}: an organization's id")

    def target(self) -> Target:
        """Return the service and the credential. Raises `CommandError` without a credential."""
        address, demo = self.address()
        sign_in = self.sign_in_for(address)
        key, source = self._key(address, sign_in) or (None, _SIGN_IN)
        tokens = None
        if key is None and sign_in is not None:
            tokens = RefreshToken(
                issuer=sign_in.issuer,
                client_id=sign_in.client_id,
                store=self.storage.tokens(sign_in),
            )
        elif key is None and demo is not None:
            key = Secret(demo.live_key)
            source = address.source
        elif key is None:
            raise CommandError(self._explain_missing(address), NOT_AUTHENTICATED)
        org = self.org(sign_in, has_key=key is not None)
        return Target(
            self.name,
            address,
            org,
            key,
            tokens,
            source,
            demo,
        )

    def _key(
        self, address: SourcedValue, sign_in: StoredSignIn | None
    ) -> tuple[Secret, str] | None:
        """Return the API key for this service, and its source. A profile's key goes only to the
        profile's service.
        """
        if self.options.api_key_file:
            return _read_key(Path(), self.options.api_key_file, "--api-key-file")
        file = self._key_file(address)
        is_own = bool(file or sign_in)
        variable = self.environment.get("TENANTRY_API_KEY", "").strip()
        if variable and not self._hides_key(address, is_own=is_own):
            return _checked_key(variable, "TENANTRY_API_KEY")
        return None if file is None else _read_key(self._folder, file, self._file)

    def _key_file(self, address: SourcedValue) -> str | None:
        """Return the profile's file, if it is for this service."""
        own = self.profile.base_url or address.value
        return self.profile.api_key_file if without_api_prefix(own) == address.value else None

    def _hides_key(self, address: SourcedValue, *, is_own: bool) -> bool:
        """Whether the profile named on the command line takes precedence over the key of the
        environment: it has its own credential, or is another service's.
        """
        is_named = self.options.profile is not None
        return is_named and (is_own or self._is_of_another_service(address))

    def _is_of_another_service(self, address: SourcedValue) -> bool:
        """Whether the key of the environment is for another service than that of the profile."""
        if address.source not in (self._file, _SIGN_IN):
            return False
        return without_api_prefix(self.environment.get("TENANTRY_BASE_URL", "")) != address.value

    def _explain_missing(self, address: SourcedValue) -> str:
        lines = [f"There is no credential for {address.value} (from {address.source})."]
        if self.sign_in is not None:
            lines.append(
                f"You are signed in to {self.sign_in.base_url}; that sign-in is only for that service."
            )
        if self.profile.api_key_file is not None:
            lines.append(f"The API key of the {self._file} is for {self.profile.base_url}.")
        if self.environment.get("TENANTRY_API_KEY"):
            lines.append(
                f"TENANTRY_API_KEY is set, but --profile {self.name} names another service."
            )
        lines.append("Set TENANTRY_API_KEY, pass --api-key-file, or sign in: tenantry login")
        return "\n".join(lines)


def _check_options(options: ServiceOptions) -> None:
    for name, value in options._asdict().items():
        if value is not None and not value.strip():  # in scripts, an unset variable
            raise CommandError(f"--{name.replace('_', '-')}: is empty.", USAGE)


def checked_id(text: str, what: str) -> str:
    """Return the name of a profile or the id of an organization. Raises `CommandError`."""
    if _ID.fullmatch(text) is None:
        raise CommandError(f"{what} is 1 to 64 of A-Za-z0-9_-, not {text!r}.", USAGE)
    return text


def checked_address(
    address: str,
    source: str,
    code: int = USAGE,
    *,
    allow_query: bool = False,
) -> str:
    """Return an address that may receive credentials: https, or on this machine. Raises
    `CommandError` otherwise.
    """
    try:
        return oauth.checked_address(address, source, allow_query=allow_query)
    except ConfigurationError as error:
        raise CommandError(str(error), code) from None


def without_api_prefix(text: str) -> str:
    """Return a service's address without a slash at its end, and without the prefix of the API's
    paths.
    """
    return _API_PREFIX.sub("", text.rstrip("/"))


def _checked_key(key: str, source: str) -> tuple[Secret, str]:
    if not _KEY.fullmatch(key):
        raise CommandError(
            f"{source}: this API key is empty or has invalid characters.", NOT_AUTHENTICATED
        )
    return Secret(key), source


def _read_key(folder: Path, path: str, source: str) -> tuple[Secret, str]:
    """Read an API key; a relative path is relative to the folder. Raises `CommandError`."""
    try:
        with (folder / Path(path).expanduser()).open("rb") as file:
            key = file.read(4096).decode("utf-8", "replace").strip()
    except (OSError, RuntimeError, ValueError) as error:
        # also an unknown home, or an invalid file name
        raise CommandError(
            f"{source}: {path!r} cannot be read: {error}.", NOT_AUTHENTICATED
        ) from None
    return _checked_key(key, source)
