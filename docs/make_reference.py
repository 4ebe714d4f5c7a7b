"""Writes the generated pages of docs/: `python docs/make_reference.py`.

The sources are docstrings, `--help`, the settings, the agreed OpenAPI document and the clients'
READMEs.

With `--check` it only compares.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import tenantry_sdk
from tenantry.api import reference
from tenantry.api.openapi import CODES_KEY, REMEDIES_KEY, hand_written_part
from tenantry.api.reference import Schema
from tenantry.api.webhooks import PATH as PROVIDER_WEBHOOK
from tenantry.server.problems import CODES
from tenantry.settings import FILE_SUFFIX, REQUIRED, SETTINGS, Setting
from tenantry.settings.declarations import DeclaredSettings
from tenantry.settings.kinds import FLAG
from tenantry_cli.api_command import ServiceCommand, connection_options
from tenantry_cli.commands import main as tenantry
from tenantry_sdk import Tenantry, TokenStore, errors, frameworks, oauth, types, webhooks
from tenantry_sdk._models import CheckedCaller

FOLDER: Final = Path(__file__).parent
_ROOT: Final = FOLDER.parent
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_WIDTH: Final = 80
_LONGEST: Final = 100
_LINE: Final = 120
_LONG: Final = 100
"""The characters from which on a page refers to an earlier place for the same text."""
_FEWEST: Final = 3
"""The number of fields from which on one object can be the base of another one."""
_OFTEN: Final = 4
"""The number of operations from which on a parameter is described once for all."""
_QUOTED: Final = re.compile(r": '([^']*)'")
_SETTINGS: Final = f"""\
Look up each environment variable (or line of a `.env` file). [Configuration](../how-to/configuration.md) has the eight
that a service needs. A setting without a default is unset, and a flag false; an empty variable counts as unset. Several
values are separated by commas. A *number* is a whole one; a *flag* is true, false, 1 or 0, in any case. Logs and
messages show no *secret*; the variable with `{FILE_SUFFIX}` at the end of its name gives the path of a file with it."""
_EMPTY: Final = ("unset", "none", "false")
"""Defaults that the settings page names once for all."""
_SECTIONS: Final = {
    "PROVIDER_WEBHOOK_SECRET": (
        "Required",
        (
            "`openssl rand -hex 32` makes a good secret. One that is a well-known default is refused: it contains "
            "`changeme`, `change-me`, `change_me`, `password`, `example`, `your-` or `your_`, is an example of the "
            "Standard Webhooks specification, ends in `...`, or has at most three different characters."
        ),
    ),
    "DATABASE_URL": (
        "Database",
        "A statement may take 4 s. [How to connect](../how-to/connect-postgresql.md) through a pooler or to a standby.",
    ),
    "HOST": ("Server", ""),
    "KEY_PREFIX": (
        "API keys",
        (
            "Without these, keys begin with `svc` and come as `Authorization: Bearer`. Applications that authenticate "
            "[in-process](../how-to/in-process.md) need the same values."
        ),
    ),
    "PROVIDER_WEBHOOK_TOLERANCE": ("Payment provider", ""),
    "OIDC_ISSUER": (
        "Identity provider",
        (
            "Without `OIDC_ISSUER` only API keys work. [Choose an identity provider](../how-to/identity-providers.md) "
            "has the values for yours, [The dashboard](../how-to/dashboard.md#setting-up-the-sign-in) the sign-in."
        ),
    ),
    "SMTP_URL": (
        "Mail",
        "Without `SMTP_URL` mail stays queued, and the worker sends it once it is set.",
    ),
    "OTEL_EXPORTER_OTLP_ENDPOINT": (
        "Traces",
        (
            "Off unless OpenTelemetry's variables ask for them ([Traces](../how-to/tracing.md)). Its packages read "
            "other variables themselves."
        ),
    ),
}
"""The sections of the settings page: the first setting of each, its title and introduction."""
_ERRORS: Final = """\
Look up what each error of the API means, and below that what the caller does about it. An error is a problem document
(RFC 9457). Decide by its `code`, which does not change, and the status; `detail` is for people, and its wording may
change. The service's log has the `requestId`.

- Retry a request after 408, 429, 500 and 503, and after 409 `idempotency_in_flight`. Send `Idempotency-Key` with each
  request that creates something, so that a retry cannot create it twice.
- Other 4xx answers stay the same until the request, the credential or the plan changes.
- The SDK retries where that is safe, and raises a class for each status ([SDK](sdk.md#errors)).
- The payment provider's webhook answers in plain text ([contract](contract.md), section 6)."""
_SDK: Final = """\
Look up the classes and methods of the SDK. [tenantry-sdk](../how-to/python-sdk.md) shows how to use them. Await the
methods of `AsyncTenantry`. Every method also takes the options of `CallOptions` as named arguments. Every record has
the methods of `Model`.

These arguments mean the same wherever a method takes them: ``limit``, an int, is the size of a page; ``cursor``, a str,
is the ``next_cursor`` of the page before. ``idempotency_key``, a str, lets a repeated call take effect once; by default
it is a random one. ``reason``, a str, is for the audit trail."""
_PLAIN: Final = ("limit", "cursor", "idempotency_key", "reason")
"""Arguments that signatures show without their types."""
_ELSEWHERE: Final = {
    "EventType": "[the types of changes](change-events.md)",
    "AuditAction": "those of [AuditEvent](http-api.md#auditevent-object)",
}
"""Where the values of a long type are listed."""
_RECORDS: Final = """\
These records have the fields of the API's objects: names in snake case, a `datetime` for a date-time, None for null or
an absent field. A field with a set of values has one of the [types](#types)."""
_Kind = Callable[[Schema], bool]
_COMMANDS: Final = """\
Look up each command: what its `--help` shows, without the usage line and the options that many commands share. [The
command line](../how-to/command-line.md) shows how to use them. Every command has `--help`."""
_SERVICE_OPTIONS: Final = """\
Commands that use a service take these. In brackets are the environment variable and the default:"""
_SHARED_OPTIONS: Final = """\
Each command names those that it takes of these. The service options include `--json`."""
_TO_SERVICE_OPTIONS: Final = "[service options](#service-options)"
_COMMON: Final = 6
"""The number of commands from which on an option is described once for all."""
_JSON: Final = "The result as one JSON document; a list as one line for each of its objects."
_PLAIN_JSON: Final = re.compile(
    r"^[\w', ]*(JSON( document| each| an? \w+)?|as the API gives (it|them))\.$"
)
"""What the help of `--json` says where it says nothing of its own."""
_MADE: Final = "<!-- Made by docs/make_reference.py from the code: change that. -->\n"


def command_line() -> str:
    """Each command's help, as the terminal shows it, without the options of many commands."""
    commands = list(_commands(tenantry, "tenantry", None))
    counts = Counter(record for _, context in commands for record in _options(context).values())
    shared = [record for record, count in counts.items() if count >= _COMMON]
    parts = [_MADE, "# The command line\n", _filled(_COMMANDS)]
    parts += _option_table("Service options", _SERVICE_OPTIONS, connection_options())
    parts += _option_table("Shared options", _SHARED_OPTIONS, shared)
    for path, context in commands:
        heading = "###" if path.count(" ") > 1 else "##"
        parts.append(f"\n{heading} {path}\n\n{_help(context, shared)}")
    return "\n".join(parts) + "\n"


def _option_table(title: str, about: str, options: list[tuple[str, str]]) -> list[str]:
    rows = [_cells(f"`{option}`", meaning) for option, meaning in options]
    head = "| option | meaning |\n|---|---|"
    return [f"\n## {title}\n", _filled(about), f"\n{head}", *rows]


def _options(context: click.Context) -> dict[str, tuple[str, str]]:
    """The options of a command, by name, as its help shows them: without `--help`."""
    found = {
        each.opts[-1]: each.get_help_record(context)
        for each in context.command.get_params(context)
        if isinstance(each, click.Option) and "--help" not in each.opts
    }
    return {
        name: (record[0], _PLAIN_JSON.sub(_JSON, record[1]))
        for name, record in found.items()
        if record
    }


def _help(context: click.Context, shared: list[tuple[str, str]]) -> str:
    """What the terminal shows of a command, and which of the shared options it has."""
    command = copy(context.command)
    common = [name for name, record in _options(context).items() if record in shared]
    own = [each for each in command.get_params(context) if each.opts[-1] not in (*common, "--help")]
    if isinstance(command, click.Group) and not own:
        return command.help or ""
    vars(command)["get_params"] = lambda _: own
    formatter = context.make_formatter()
    _, *arguments = command.collect_usage_pieces(context)
    if arguments and not isinstance(command, click.Group):
        formatter.write_text(f"Arguments: {' '.join(arguments)}")
    command.format_help_text(context, formatter)
    click.Command.format_options(command, context, formatter)  # not the commands of a group
    text = formatter.getvalue().strip("\n")
    return f"```text\n{text}\n```{_also(context.command, common)}"


def _also(command: click.Command, common: list[str]) -> str:
    """A sentence with the options that a command shares with many."""
    names = [f"`{name}`" for name in common]
    if isinstance(command, ServiceCommand):
        options = {option.split()[0] for option, _ in connection_options()}
        connection = [f"`{each.opts[0]}`" for each in command.params if each.opts[0] in options]
        takes_all = len(connection) == len(options)
        names = [
            *[name for name in names if not takes_all or name != "`--json`"],
            *([_TO_SERVICE_OPTIONS] if takes_all else connection),
        ]
    return f"\n\nAlso {', '.join(names)}." if names else ""


def _commands(
    command: click.Command, path: str, parent: click.Context | None
) -> Iterator[tuple[str, click.Context]]:
    name = path.rpartition(" ")[2]
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    yield path, context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            _, found, _ = command.resolve_command(context, [child])
            if found is not None and not found.hidden:
                yield from _commands(found, f"{path} {child}", context)


def configuration() -> str:
    """Each environment variable of the service."""
    parts = [_MADE, "# Settings\n", _filled(_SETTINGS)]
    meanings = _attribute_docstrings(DeclaredSettings)
    for attribute, setting in SETTINGS.items():
        if setting.name in _SECTIONS:
            title, about = _SECTIONS[setting.name]
            parts += [f"\n## {title}", *([f"\n{_filled(about)}"] if about else [])]
        parts += [
            f"\n### `{setting.name}`",
            f"\n{_bounds(setting)}",
            f"\n{_filled(meanings[attribute])}",
        ]
    return "\n".join(parts) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, _LINE, break_long_words=False, break_on_hyphens=False)


def _attribute_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each attribute of a class. Raises `KeyError` later for one that
    has none.
    """
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101
    return {
        ast.unparse(target): " ".join(below.value.value.split())
        for statement, below in pairwise(definition.body)
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in [
            statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        ]
        if isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _bounds(setting: Setting[Any]) -> str:
    default = (setting.default_text or _default(setting.default)).replace(": ", ", ")
    bounds = "" if setting.kind is FLAG else setting.kind.bounds
    parts = [
        ": ".join(filter(None, (setting.kind.name.capitalize(), bounds))),
        "Required" if default == "required" else f"Default: {default}",
    ]
    return ". ".join(parts[:1] if default in _EMPTY else parts) + "."


def _default(value: object) -> str:
    if value is REQUIRED:
        return "required"
    if value is None:
        return "unset"
    if isinstance(value, int):  # flags too
        return str(value).lower()
    return f"`{value}`" if value else "none"


def sdk() -> str:
    """The client's methods, the records, errors and functions, with their docstrings."""
    parts = [
        _MADE,
        "# The SDK\n",
        _SDK + "\n",
        f"## Tenantry\n\n{_call('Tenantry', Tenantry.__init__)}\n\n{_text(Tenantry)}\n",
    ]
    client = Tenantry("key")
    for name, method in _methods(client, ""):
        parts.append(f"### {name}\n\n{_call(name, method)}\n\n{_text(method)}\n")
    client.close()
    records = {name: getattr(tenantry_sdk, name) for name in tenantry_sdk.__all__}
    others = {
        name: kind
        for name, kind in records.items()
        if inspect.isclass(kind) and "Tenantry" not in name
    }
    others["oauth.IdentityProviderClient"] = oauth.IdentityProviderClient
    others["frameworks.DjangoMiddleware"] = frameworks.DjangoMiddleware
    parts += ["## Classes\n", *_classes(dict(sorted(others.items(), key=_sync_first)))]
    parts.append(
        f"## Functions\n\n### record_responses\n\n{_text(tenantry_sdk.record_responses)}\n"
    )
    functions = {
        frameworks: ("starlette_handler", "flask_handler"),
        webhooks: ("unwrap", "verify_provider_event", "sign_provider_event"),
        oauth: ("read_token", "checked_address"),
    }
    for module, names in functions.items():
        for name in names:
            function = getattr(module, name)
            title = f"{module.__name__.rpartition('.')[2]}.{name}"
            parts.append(f"### {title}\n\n{_call(name, function)}\n\n{_text(function)}\n")
    parts.append(f"## Types\n\n{_text(types)}\n\n{_aliases()}\n")
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.TenantryError)
    ]
    parts.append("## Errors\n\n| class | base | meaning |\n|---|---|---|")
    parts += [f"| `{kind.__name__}` | {_base(kind)} | {_summary(kind)} |" for kind in kinds]
    return "\n".join(parts) + "\n"


def _methods(thing: object, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in [*vars(thing).items(), *vars(type(thing)).items()]:
        if name.startswith("_"):
            continue
        if inspect.isfunction(value):
            yield prefix + name, value
        elif type(value).__module__.startswith("tenantry_sdk._"):
            yield from _methods(value, f"{prefix}{name}.")


def _call(name: str, function: Any) -> str:  # noqa: ANN401
    """How it is called, without what a caller does not write."""
    signature = inspect.signature(function)
    parameters = []
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        if one.name != "self" and not one.name.startswith("_") and one.kind is not one.VAR_KEYWORD:
            is_plain = one.name in _PLAIN and one.default is not one.empty
            text = f"{one.name}={one.default}" if is_plain else str(one)
            parameters.append(_QUOTED.sub(r": \1", text))
    result = signature.return_annotation
    begin, end = (
        f"{name.rpartition('.')[2]}(",
        f") -> {result}" if result not in (None, "None") else ")",
    )
    line = begin + ", ".join(parameters) + end
    if len(line) > _LONGEST:
        line = "\n".join([begin, *(f"    {parameter}," for parameter in parameters), end])
    return f"```python\n{line}\n```"


def _text(thing: object) -> str:
    return (inspect.getdoc(thing) or "").strip()


def _sync_first(item: tuple[str, type]) -> tuple[str, bool]:
    name, _ = item
    return name.removeprefix("Async"), name.startswith("Async")


def _classes(kinds: dict[str, type]) -> Iterator[str]:
    """A section for each class, except those that another page or section describes."""
    objects = _fields_of_objects()
    fields = {name: _fields_in_json(kind) for name, kind in kinds.items()}
    known = {name: _same_object(name, fields, objects) for name in kinds}
    known = {name: title for name, title in known.items() if title}
    links = [f"[`{name}`](http-api.md#{title.lower()}-object)" for name, title in known.items()]
    yield f"{_filled(_RECORDS)}\n\n{_filled(', '.join(links))}.\n"
    sections, variants = dict[str, list[str]](), dict[str, list[str]]()
    for name, kind in kinds.items():
        base = _base_record(kind, kinds)
        if base and base not in known and len(_own_fields(kind)) == 1:
            variants.setdefault(base, []).append(f"- `{name}`: {_variant(kind)}")
        elif name not in known:
            sections.setdefault(_about(kind, base), []).append(name)
    for about, names in sections.items():
        lines = "\n".join(["\n", *variants[names[0]]]) if names[0] in variants else ""
        yield f"### {', '.join(names)}\n\n{about}{lines}\n"


def _fields_of_objects() -> dict[str, set[str]]:
    groups = _with_parts(reference.contents(_openapi()))
    return {
        each["title"].removesuffix("View"): set(each["properties"])
        for group in groups
        for each in (*group["objects"], *group["parts"])
    }


def _same_object(name: str, fields: dict[str, set[str]], objects: dict[str, set[str]]) -> str:
    """Return the title of the API's object with the fields of a record, or nothing.

    Only the one record with these fields may have another name than the object.
    """
    own = fields[name]
    if objects.get(name) == own:
        return name
    titles = [title for title, known in objects.items() if known == own]
    is_unique = len(titles) == 1 and list(fields.values()).count(own) == 1
    return titles[0] if is_unique and len(own) >= _FEWEST else ""


def _fields_in_json(kind: type) -> set[str]:
    fields = [name for name in getattr(kind, "__struct_fields__", ()) if name[0] != "_"]
    return {re.sub(r"_(\w)", lambda match: match[1].upper(), name) for name in fields}


def _base_record(kind: type, kinds: dict[str, type]) -> str:
    """Return the name of the nearest base with fields that the page has."""
    bases = [base.__name__ for base in kind.__mro__[1:] if base in kinds.values()]
    return next((name for name in bases if _fields_in_json(kinds[name])), "")


def _own_fields(kind: type) -> list[str]:
    return [name for name in inspect.get_annotations(kind) if not name.startswith("_")]


def _variant(kind: type) -> str:
    [name], meanings = _own_fields(kind), _attribute_docstrings(kind)
    return f"{_summary(kind)} ``{name}``: `{_annotations(kind)[name]}`. {meanings[name]}"


def _about(kind: type, base: str) -> str:
    inherited = f"\n\nIt has the fields of `{base}`, and these:" if base else ""
    return _text(kind) + inherited + _fields(kind, only_own=bool(base)) + _own_methods(kind)


def _annotations(kind: type) -> dict[str, str]:
    found = inspect.get_annotations(kind).items()
    return {name: str(getattr(one, "__forward_arg__", one)) for name, one in found}


def _fields(kind: type, *, only_own: bool) -> str:
    """A table of the fields of a record or of options."""
    meanings, annotations = dict[str, str](), dict[str, str]()
    for base in [kind] if only_own else reversed(kind.__mro__):
        if base.__module__.startswith("tenantry_sdk"):
            meanings |= _attribute_docstrings(base)
            annotations |= _annotations(base)
    rows = [
        _cells(f"`{name}`", f"`{annotations[name]}`", meanings[name])
        for name in (annotations if only_own else getattr(kind, "__struct_fields__", annotations))
        if not name.startswith("_")
    ]
    return "\n".join(["\n\n| field | type | meaning |\n|---|---|---|", *rows]) if rows else ""


def _cells(*cells: str) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |".replace("|  |", "| |")


def _own_methods(kind: type) -> str:
    """A list of the methods and properties of a class, and of its bases that the page does not
    show; without those of a `TokenStore`, which has a section.
    """
    lines = []
    hidden = [base for base in kind.__mro__[1:] if base is CheckedCaller]
    members = [member for each in (kind, *hidden) for member in vars(each).items()]
    for name, value in members:
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        if kind is not TokenStore and hasattr(TokenStore, name):
            continue
        shown = name if isinstance(value, property) else f"{name}()"
        lines.append(f"- `{shown}`: {' '.join(_text(value).split())}")
    return "\n".join(["\n", *lines]) if lines else ""


def _aliases() -> str:
    """A table of the sets of values."""
    rows = []
    statements = ast.parse(inspect.getsource(types)).body
    for alias, below in pairwise(statements):
        if (
            isinstance(alias, ast.AnnAssign)
            and alias.value is not None
            and isinstance(below, ast.Expr)
        ):
            name = ast.unparse(alias.target)
            [values] = re.findall(r"Literal\[(.*?)\]", ast.unparse(alias.value))
            meaning = ast.literal_eval(below.value)
            rows.append(
                _cells(
                    f"`types.{name}`",
                    _ELSEWHERE.get(name, values.replace("'", "`")),
                    " ".join(meaning.split()),
                )
            )
    return "\n".join(["| type | values | meaning |\n|---|---|---|", *rows])


def _summary(kind: type) -> str:
    """Return the first paragraph of a docstring, in one line."""
    first, _, _ = (inspect.getdoc(kind) or "").partition("\n\n")
    return " ".join(first.split())


def _base(kind: type) -> str:
    base = kind.__bases__[0].__name__
    return f"`{base}`" if base != "Exception" else ""


def _openapi() -> dict[str, Any]:
    document = msgspec.json.decode(
        (_ROOT / "tests" / "contract" / "openapi.json").read_bytes(), type=dict[str, Any]
    )
    document["paths"] = {
        path: dict(sorted(operations.items(), key=lambda one: _METHODS.index(one[0])))
        for path, operations in document["paths"].items()
    }
    return document


def http_api() -> str:
    """Each operation of the agreed OpenAPI document, with what the service's own page at `/docs`
    shows.
    """
    document = _openapi()
    environment = Environment(  # noqa: S701  # Markdown
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests.update(
        id=lambda parameter: parameter["in"] == "path" and parameter["name"].endswith("_id")
    )
    environment.filters.update(
        cell=lambda text: text.replace("|", "\\|"), pretty=reference.pretty, anchor=_anchor
    )
    page = environment.get_template("http-api.md.jinja")
    contents = reference.contents(document)
    operations = [each for each in contents["operations"] if each["path"] != PROVIDER_WEBHOOK]
    shared = _shared_errors(operations)
    groups = _with_parts(contents)
    text = page.render(
        contents | {"groups": groups},
        address=reference.DEFAULT_ADDRESS,
        shared_errors={words: codes for words, (_, codes) in shared.items()},
        own_errors=lambda operation: _own_errors(operation, shared.values()),
        shared_parameters=_shared_parameters(operations),
        described=Described(contents["schemas"], groups),
    )
    return _MADE + re.sub(r"\n{3,}", "\n\n", text) + "\n"


def _with_parts(contents: dict[str, Any]) -> list[Schema]:
    """Return the groups, each with the objects within its objects and its requests' bodies that no
    group before it has.
    """
    schemas: reference.Schemas = contents["schemas"]
    known = {each["title"] for group in contents["groups"] for each in group["objects"]}
    groups = list[Schema]()
    for group in contents["groups"]:
        bodies = [each["body"] for each in group["operations"] if each["body"]]
        wholes = [*group["objects"], *map(schemas.resolve, bodies)]
        fields = [field for whole in wholes for field in whole.get("properties", {}).values()]
        found = [schemas.resolve(schemas.resolve(field).get("items", field)) for field in fields]
        parts = {each["title"]: each for each in found if each.get("properties")}
        groups.append(
            {**group, "parts": [each for name, each in parts.items() if name not in known]}
        )
        known.update(parts)
    return groups


def _anchor(heading: str) -> str:
    """The name of a heading in an address."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _shared_errors(operations: list[Schema]) -> dict[str, tuple[_Kind, set[str]]]:
    """The error codes of all operations of a kind, by the kind's words; each code once."""
    shared, seen = dict[str, tuple[_Kind, set[str]]](), set[str]()
    for words, kind in _KINDS.items():
        codes = set.intersection(*[each["codes"] for each in operations if kind(each)]) - seen
        shared[words] = kind, codes
        seen |= codes
    return shared


def _own_errors(operation: Schema, shared: Iterable[tuple[_Kind, set[str]]]) -> list[str]:
    common = [codes for kind, codes in shared if kind(operation)]
    return sorted(operation["codes"].difference(*common))


def _shared_parameters(operations: list[Schema]) -> list[Schema]:
    """The parameters that many operations take, except parts of paths."""
    taken = [each for operation in operations for each in operation.get("parameters", ())]
    return [
        each
        for place, each in enumerate(taken)
        if each["in"] != "path" and taken.count(each) >= _OFTEN and each not in taken[:place]
    ]


def _takes(name: str) -> _Kind:
    return lambda operation: any(
        name in (each["name"], each["in"]) for each in operation.get("parameters", ())
    )


_KINDS: Final[dict[str, _Kind]] = {
    "every operation": lambda _: True,
    "with a credential": lambda operation: operation["needs"] != "No credential",
    "with an API key or a user's token": lambda operation: (
        operation["needs"] in ("Any credential", "A user's token")
    ),
    "with any credential but the operator's token": lambda operation: (
        operation["needs"] == "Any credential"
    ),
    "with a scope": lambda operation: operation["scope"] and operation["needs"] == "Any credential",
    "with a user's token": lambda operation: operation["needs"] == "A user's token",
    "with a body, or parameters in the query": lambda operation: (
        operation["body"] is not None or _takes("query")(operation)
    ),
    "with a body": lambda operation: operation["body"] is not None,
    "with `cursor`": _takes("cursor"),
    "with `Idempotency-Key`": _takes("Idempotency-Key"),
}
"""Kinds of operations that have error codes in common."""


class Described:
    """Refers to what a page about the API has described before: objects, parameters and fields."""

    def __init__(self, schemas: reference.Schemas, groups: list[Schema]) -> None:
        self._schemas = schemas
        self._objects = {
            each["title"]: each["properties"] for group in groups for each in group["objects"]
        }
        self._parts = {
            each["title"]: each["properties"] for group in groups for each in group["parts"]
        }
        self._places = dict[str, str]()

    def base(self, title: str, fields: Schema) -> str:
        """Return the title of the largest object all of whose fields this one has too."""
        all_objects = self._objects | (self._parts if title in self._parts else {})
        bases = [
            other
            for other, known in all_objects.items()
            if other != title and len(known) >= _FEWEST and known.items() <= fields.items()
        ]
        return max(bases, key=lambda other: len(all_objects[other]), default="")

    def further(self, title: str, fields: Schema) -> Schema:
        """Return the fields that an object has besides those of its base."""
        known = (self._objects | self._parts).get(self.base(title, fields), {})
        return {name: field for name, field in fields.items() if name not in known}

    def has_example(self, title: str, fields: Schema) -> bool:
        """Whether the page shows an example: not of an object with another one in it."""
        values = [self._schemas.resolve(field) for field in fields.values()]
        items = [self._schemas.resolve(value.get("items", value)) for value in values]
        return not self.base(title, fields) and not any(
            each.get("title") in self._objects for each in items
        )

    def answer(self, schema: Schema) -> Schema | None:
        """Return the object that an answer is or lists, if the page has it, and what it adds."""
        answer = self._schemas.resolve(schema)
        fields = answer["properties"]
        items = fields.get("data", {}).get("items")
        title = self._schemas.resolve(items)["title"] if items else answer["title"]
        shown = title if title in self._objects else self.base(title, fields)
        if not shown:
            return None
        known = {"data", "nextCursor"} if items else self._objects[shown]
        return {
            "title": shown,
            "is_list": bool(items),
            "further": {name: field for name, field in fields.items() if name not in known},
        }

    def before(self, text: str, place: str) -> str:
        """Return the place that has said this long text before, if there is one."""
        earlier = self._places.setdefault(text, place)
        return earlier if earlier != place and len(text) > _LONG else ""


def error_codes() -> str:
    """Each error code of the API: its status, its meaning, and what to do."""
    texts = hand_written_part()
    parts = [_MADE, "# Error codes\n", _ERRORS]
    for status, codes in CODES.items():
        parts.append(f"\n## {status} {HTTPStatus(status).phrase}")
        for code in codes:
            remedy = _filled(texts[REMEDIES_KEY][code])
            parts.append(f"\n### `{code}`\n\n{_filled(texts[CODES_KEY][code])}\n\n{remedy}")
    return "\n".join(parts) + "\n"


def python_sdk() -> str:
    """The SDK's README, which is the description of its package too."""
    text = (_ROOT / "sdk" / "README.md").read_text("utf-8")
    return f"<!-- Made by docs/make_reference.py from sdk/README.md: change that. -->\n{text}"


def typescript_client() -> str:
    """The TypeScript client's README, with its links as seen from the page's folder."""
    text = (_ROOT / "typescript" / "README.md").read_text("utf-8")
    text = text.replace("](../docs/", "](../").replace("](../examples/", "](../../examples/")
    return (
        f"<!-- Made by docs/make_reference.py from typescript/README.md: change that. -->\n{text}"
    )


PAGES: Final = {
    "reference/command-line.md": command_line,
    "reference/configuration.md": configuration,
    "reference/errors.md": error_codes,
    "reference/http-api.md": http_api,
    "reference/sdk.md": sdk,
    "how-to/python-sdk.md": python_sdk,
    "how-to/typescript-client.md": typescript_client,
}


def main(*, check: bool) -> int:
    """Write the pages, or say which ones are not what the code says."""
    stale = []
    for name, make in PAGES.items():
        text = make()
        page = FOLDER / name
        if not page.exists() or page.read_text() != text:
            stale.append(page)
            if not check:
                page.write_text(text)
    for page in stale:
        sys.stderr.write(
            f"{page}: {'is not what the code says: make format' if check else 'made'}\n"
        )
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
