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
from collections.abc import Iterator
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
from tenantry.cli import main as tenantry
from tenantry.server.problems import CODES
from tenantry.settings import FILE_SUFFIX, REQUIRED, SETTINGS, Setting
from tenantry.settings.declarations import DeclaredSettings
from tenantry_sdk import Tenantry, errors, oauth, types, webhooks

FOLDER: Final = Path(__file__).parent
_ROOT: Final = FOLDER.parent
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_WIDTH: Final = 80
_LONGEST: Final = 100
_LINE: Final = 120
_QUOTED: Final = re.compile(r": '([^']*)'")
_SETTINGS: Final = f"""\
Look up each environment variable (or line of a `.env` file). [Configuration](../how-to/configuration.md) shows how to
set and check them. An empty variable counts as unset. Types: a *number* is a whole one; a *flag* may be in upper or
lower case; a *secret* is kept out of logs and messages. A secret can be in a file: set the variable of the same name
with `{FILE_SUFFIX}` at its end to the path."""
_SECTIONS: Final = {
    "PROVIDER_WEBHOOK_SECRET": (
        "Required",
        (
            "A secret must not be a well-known default: it must not contain `changeme`, `change-me`, `change_me`, "
            "`password`, `example`, `your-` or `your_`, be an example of the Standard Webhooks specification, or end "
            "in `...`, and it must have more than three different characters. `openssl rand -hex 32` makes a good one."
        ),
    ),
    "DATABASE_URL": (
        "Database",
        (
            "Statements end after 4 s; tenantry sends this limit as a connection option. Poolers: "
            "[Configuration](../how-to/configuration.md#with-a-pooler)."
        ),
    ),
    "HOST": ("Server", ""),
    "KEY_PREFIX": (
        "API keys",
        (
            "Without these, keys begin with `svc` and come as `Authorization: Bearer`. Applications that authenticate "
            "[in-process](../how-to/in-process.md) need the same values."
        ),
    ),
    "PROVIDER_WEBHOOK_TOLERANCE": (
        "Payment provider",
        "[Configuration](../how-to/configuration.md#plan-catalog) describes the plan catalog.",
    ),
    "OIDC_ISSUER": (
        "Identity provider",
        (
            "Without `OIDC_ISSUER` the API answers 401 to bearer tokens, and API keys work. How users sign in: "
            "[Tokens](tokens.md), [The dashboard](../how-to/dashboard.md#setting-up-the-sign-in). The values for your "
            "provider: [Choose an identity provider](../how-to/identity-providers.md)."
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
Look up what each error of the API means, and what the caller does about it. An error is a problem document (RFC 9457).
Decide by its `code`, which does not change, and the status; `detail` is for people, and its wording may change. The
service's log has the `requestId`.

- Retry a request after 408, 429, 500 and 503, and after 409 `idempotency_in_flight`. Send `Idempotency-Key` with each
  request that creates something, so that a retry cannot create it twice.
- Other 4xx answers stay the same until the request, the credential or the plan changes.
- The SDK retries where that is safe, and raises a class for each status ([SDK](sdk.md#errors)).
- The payment provider's webhook answers in plain text ([contract](contract.md), section 6)."""
_SDK: Final = """\
Look up the classes and methods of the SDK. [tenantry-sdk](../how-to/python-sdk.md) shows how to use them. Await the
methods of `AsyncTenantry`. Every method also takes the options of `CallOptions` as named arguments. Every record has
the methods of `Model`."""
_MADE: Final = "<!-- Made by docs/make_reference.py from the code: change that. -->\n"


def command_line() -> str:
    """Each command's help, as the terminal shows it."""
    parts = [
        _MADE,
        "# The command line\n",
        "Look up the `--help` of each command. [The command line](../how-to/command-line.md) shows how to use them.\n",
    ]
    for path, context in _commands(tenantry, "tenantry", None):
        heading = "###" if path.count(" ") > 1 else "##"
        parts.append(f"{heading} {path}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(parts)


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
    default = setting.default_text or _default(setting.default)
    parts = [
        f"Type: {setting.kind.name}.",
        "Required." if default == "required" else f"Default: {default.replace(': ', ', ')}.",
        f"Bounds: {setting.kind.bounds}." if setting.kind.bounds else "",
    ]
    return " ".join(filter(None, parts))


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
        _filled(_SDK) + "\n",
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
    parts.append("## Classes\n")
    parts += [f"### {name}\n\n{_about(kind)}\n" for name, kind in sorted(others.items())]
    parts.append(
        f"## Functions\n\n### record_responses\n\n{_text(tenantry_sdk.record_responses)}\n"
    )
    parts += [
        f"### webhooks.{name}\n\n{_call(name, getattr(webhooks, name))}\n\n{_text(getattr(webhooks, name))}\n"
        for name in ("verify", "sign")
    ]
    parts += [
        f"### oauth.{name}\n\n{_call(name, getattr(oauth, name))}\n\n{_text(getattr(oauth, name))}\n"
        for name in ("read_token", "checked_address")
    ]
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
            parameters.append(_QUOTED.sub(r": \1", str(one)))
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


def _about(kind: type) -> str:
    return _text(kind) + _fields(kind) + _own_methods(kind)


def _fields(kind: type) -> str:
    """A table of the fields of a record or of options."""
    meanings, annotations = dict[str, str](), dict[str, str]()
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("tenantry_sdk"):
            meanings |= _attribute_docstrings(base)
            found = inspect.get_annotations(base).items()
            annotations |= {name: str(getattr(one, "__forward_arg__", one)) for name, one in found}
    rows = [
        _cells(f"`{name}`", f"`{annotations[name]}`", meanings[name])
        for name in getattr(kind, "__struct_fields__", annotations)
        if not name.startswith("_")
    ]
    return "\n".join(["\n\n| field | type | meaning |\n|---|---|---|", *rows]) if rows else ""


def _cells(*cells: str) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |".replace("|  |", "| |")


def _own_methods(kind: type) -> str:
    """A list of the methods and properties of a class."""
    lines = []
    for name, value in vars(kind).items():
        if name.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
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
            [values] = re.findall(r"Literal\[(.*?)\]", ast.unparse(alias.value))
            meaning = ast.literal_eval(below.value)
            rows.append(
                _cells(
                    f"`types.{ast.unparse(alias.target)}`",
                    values.replace("'", "`"),
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


def http_api() -> str:
    """Each operation of the agreed OpenAPI document, with what the service's own page at `/docs`
    shows.
    """
    document = msgspec.json.decode(
        (_ROOT / "tests" / "contract" / "openapi.json").read_bytes(), type=dict[str, Any]
    )
    document["paths"] = {
        path: dict(sorted(operations.items(), key=lambda one: _METHODS.index(one[0])))
        for path, operations in document["paths"].items()
    }
    environment = Environment(  # noqa: S701  # Markdown
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(cell=lambda text: text.replace("|", "\\|"), pretty=reference.pretty)
    page = environment.get_template("http-api.md.jinja")
    text = page.render(reference.contents(document), address=reference.DEFAULT_ADDRESS)
    return _MADE + re.sub(r"\n{3,}", "\n\n", text) + "\n"


def error_codes() -> str:
    """Each error code of the API: its status, its meaning, and what to do."""
    texts = hand_written_part()
    parts = [_MADE, "# Error codes\n", _ERRORS]
    for status, codes in CODES.items():
        parts.append(f"\n## {status} {HTTPStatus(status).phrase}")
        for code in codes:
            remedy = _filled(f"**What to do:** {texts[REMEDIES_KEY][code]}")
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
