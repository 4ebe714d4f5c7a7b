"""``tenantry config``: the configuration file with its profiles."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from tenantry_cli._redaction import redact
from tenantry_cli.api_command import ServiceCommand
from tenantry_cli.client_configuration import (
    ClientConfiguration,
    Profile,
    ServiceOptions,
    checked_address,
    checked_id,
    config_path,
    parse_config,
    read_config,
    without_api_prefix,
)
from tenantry_cli.output import (
    NOT_FOUND,
    USAGE,
    CommandError,
    print_json,
    print_record,
    report,
    shown,
)
from tenantry_sdk._files import OWNER_ONLY, write_private

_DEFAULT: Final = "profile"
"""The key of the default profile, which is of no profile."""
_KEYS: Final = (_DEFAULT, *Profile.__struct_fields__)
_FLAGS: Final = {"true": True, "false": False}

_key_argument: Final = click.argument("key", type=click.Choice(_KEYS), metavar="KEY")


class ConfigCommand(ServiceCommand):
    """A command on the configuration file, for one profile."""

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401  # click's own
        super().__init__(*args, service_options=("profile",), **more)


@click.command("list", cls=ConfigCommand, json_help="The path and all values as one JSON document.")
def list_values(service: ServiceOptions, *, as_json: bool) -> None:
    """List the values of all profiles, or of one (--profile), and the default profile.

    The file holds no secrets: API keys are in separate files, and `tenantry login` stores tokens
    elsewhere.

    \b
      tenantry config list --profile staging
    """
    path = config_path(os.environ)
    config = read_config(path)
    names = config.profiles if service.profile is None else [service.profile]
    if not config.profiles.keys() >= set(names):
        raise CommandError(f"There is no profile {service.profile} in {path}.", NOT_FOUND)
    profiles = {name: _values(config.profiles[name]) for name in names}
    rows = [(_DEFAULT, config.profile)]
    for name, values in profiles.items():
        rows += [(f"{name}.{key}", shown(value)) for key, value in values.items()]
    document = {"path": str(path), "profile": config.profile, "profiles": profiles}
    print_record(document, rows, as_json=as_json)


@click.command("get", cls=ConfigCommand, json_help="The value as JSON.")
@_key_argument
def get(service: ServiceOptions, *, as_json: bool, key: str) -> None:
    """Print a value of the profile. KEY is a name as in `tenantry config list`, such as base_url.

    \b
      tenantry config get base_url --profile staging

    Exits with 5 if it is not set. Environment variables and options may take precedence: `tenantry
    status` shows what applies.
    """
    if key == _DEFAULT:
        value: str | bool | None = read_config(config_path(os.environ)).profile
        where = "the configuration"
    else:
        configuration = ClientConfiguration(service, os.environ)
        value = _values(configuration.profile).get(key)
        where = f"profile {configuration.name}"
    if value is None:
        raise CommandError(f"{key} is not set in {where}.", NOT_FOUND)
    print_json(value) if as_json else click.echo(shown(value))


@click.command("set", cls=ConfigCommand, json_help="What was set, as one JSON document.")
@_key_argument
@click.argument("value")
def set_value(
    service: ServiceOptions,
    *,
    as_json: bool,
    key: str,
    value: str,
) -> None:
    """Set a value of a profile, by default of the one in use. A new profile is created.

    \b
    KEY is one of
      profile               the default profile
      base_url              the service's address
      api_key_file          a file that holds an API key
      org                   for users of several organizations
      issuer, client_id     the identity provider, for `tenantry login`
      scope, audience       what `tenantry login` requests
      keyring               true: store tokens in the system's keyring

    \b
      tenantry config set base_url https://accounts.example.com --profile work
      tenantry config set profile work
    """
    configuration = ClientConfiguration(service, os.environ, signs_in=True)
    checked = _checked(key, value, configuration)
    with _editing() as document:
        if key == _DEFAULT:
            document[key] = checked
        else:
            _table(_table(document, "profiles"), configuration.name)[key] = checked
    _report(
        configuration.name,
        key,
        checked,
        as_json=as_json,
    )


@click.command("unset", cls=ConfigCommand, json_help="What was removed, as one JSON document.")
@_key_argument
def unset(service: ServiceOptions, *, as_json: bool, key: str) -> None:
    """Remove a value of a profile; a profile without values is removed too.

    \b
      tenantry config unset org --profile work

    A value that is not set is no error.
    """
    configuration = ClientConfiguration(service, os.environ, signs_in=True)
    with _editing() as document:
        profiles = document.get("profiles", {})
        table = document if key == _DEFAULT else profiles.get(configuration.name, {})
        table.pop(key, None)
        if key != _DEFAULT and not table:
            profiles.pop(configuration.name, None)
        if not profiles:
            document.pop("profiles", None)
    _report(configuration.name, key, None, as_json=as_json)


@click.command("path", cls=ConfigCommand, json_help="The path as one JSON document.")
def path(service: ServiceOptions, *, as_json: bool) -> None:  # noqa: ARG001  # every profile is in one file
    """Print the path of the configuration file, which need not exist.

    It is below XDG_CONFIG_HOME, by default ~/.config.

    \b
      cat "$(tenantry config path)"
    """
    found = str(config_path(os.environ))
    print_json({"path": found}) if as_json else click.echo(found)


def _values(profile: Profile) -> dict[str, str | bool]:
    """Return the values that are set, without what looks like a credential."""
    return {
        key: redact(value) if isinstance(value, str) else value
        for key, value in msgspec.structs.asdict(profile).items()
        if value not in (None, False)
    }


def _checked(key: str, value: str, configuration: ClientConfiguration) -> str | bool:
    """Return the value to store. Raises `CommandError`, which does not repeat a credential."""
    if not value.strip() or not value.isprintable():
        raise CommandError(
            f"{key}: is empty or has invalid characters. To remove it: tenantry config unset", USAGE
        )
    if key in ("base_url", "issuer"):
        address = checked_address(value, key)
        # an issuer's slash at the end counts
        return without_api_prefix(address) if key == "base_url" else value
    _check_for_secrets(key, value)
    return _converted(key, value, configuration)


def _converted(key: str, value: str, configuration: ClientConfiguration) -> str | bool:
    match key:
        case "profile":
            return _known_profile(value, configuration)
        case "org":
            return checked_id(value, "org: an organization's id")
        case "keyring":
            return _flag(value)
        case "api_key_file" if not value.startswith("~"):
            return os.path.abspath(value)  # noqa: PTH100  # links stay
    return value


def _check_for_secrets(key: str, value: str) -> None:
    if redact(value) != value:
        hint = " Store the key in a file that only you can read, and set its path."
        raise CommandError(
            f"{key}: this looks like a secret, which the file must not hold."
            f"{hint if key == 'api_key_file' else ''}",
            USAGE,
        )


def _known_profile(name: str, configuration: ClientConfiguration) -> str:
    profiles = read_config(config_path(configuration.environment)).profiles
    if (
        checked_id(name, "A profile's name") not in profiles
        and not configuration.storage_of(name).exists()
    ):
        raise CommandError(
            f"There is no profile {name}. Create it: tenantry config set base_url URL --profile {name}",
            USAGE,
        )
    return name


def _flag(value: str) -> bool:
    if value.lower() not in _FLAGS:
        raise CommandError("keyring: must be true or false.", USAGE)
    return _FLAGS[value.lower()]


def _table(parent: Any, name: str) -> Any:  # noqa: ANN401  # tomlkit's
    """Return a table of a document, which is created if it is missing."""
    import tomlkit  # noqa: PLC0415  # slow to import

    if name not in parent:
        parent[name] = tomlkit.table(is_super_table=name == "profiles")
    return parent[name]


@contextmanager
def _editing() -> Iterator[Any]:
    """Give the document to change, and write it at the end, atomically; comments stay. Raises
    `CommandError`.
    """
    import tomlkit  # noqa: PLC0415  # slow to import

    link = config_path(os.environ)
    try:
        target = link.resolve()  # a link stays one
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(target.parent):
            read_config(target)
            text = target.read_text("utf-8") if target.exists() else ""
            document = tomlkit.parse(text)
            yield document
            changed = tomlkit.dumps(document)
            parse_config(changed)
            if changed != text:
                _replace(target, changed)
    except (ValueError, tomlkit.exceptions.TOMLKitError, msgspec.DecodeError):
        raise CommandError(
            f"{link} cannot be changed because of its form: edit it.", USAGE
        ) from None
    except (OSError, RuntimeError) as error:  # also a loop of links
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{link} cannot be written: {reason}.") from None


def _replace(target: Path, text: str) -> None:
    """Write the file with the mode that it had."""
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else OWNER_ONLY
    write_private(target, text.encode(), mode)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for other commands that change the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _report(
    profile: str,
    key: str,
    value: str | bool | None,  # noqa: FBT001  # a value
    *,
    as_json: bool,
) -> None:
    own_profile = None if key == _DEFAULT else profile
    what = f"{key} in profile {profile}" if own_profile else key
    text = f"Removed {what}." if value is None else f"Set {what}: {shown(value)}"
    document = {"profile": own_profile, "key": key, "value": value}
    report(document, text, as_json=as_json)
