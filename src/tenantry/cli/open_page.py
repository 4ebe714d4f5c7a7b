"""``tenantry open``: pages of the service in the browser."""

import os
import sys
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem

from tenantry.cli.api_command import (
    ServiceCommand,
    complete_ids,
    exiting_on_failure,
    parse_id,
)
from tenantry.cli.browser import has_browser, open_browser
from tenantry.cli.client_configuration import ClientConfiguration, ServiceOptions, checked_id
from tenantry.cli.output import CommandError, print_json, say
from tenantry_sdk import Tenantry

_PUBLIC: Final = {"dashboard": "/", "docs": "/docs"}
_PAGES: Final = {
    "keys": "settings/api-keys",
    "projects": "projects",
    "members": "settings/members",
    "billing": "billing",
    "events": "events",
    "audit": "settings/audit",
}
"""The pages of an organization, below its address."""


class _Kind(NamedTuple):
    """A kind of object: its page, the client's resource, and what finds its organization."""

    page: str
    resource: str
    find_org: Callable[[Tenantry, str], str]


def _parse(text: str) -> str:
    """Return the name of a page or an id. Raises `click.BadParameter`, which does not repeat the
    text.
    """
    if text in _PUBLIC or text in _PAGES:
        return text
    prefix, _, rest = parse_id(text).partition("_")
    if prefix not in _KINDS or not rest:
        pages = ", ".join((*_PUBLIC, *_PAGES))
        raise click.BadParameter(
            f"is neither a page ({pages}) nor the id of a key, project, member or event"
        )
    return text


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    pages = [CompletionItem(page) for page in (*_PUBLIC, *_PAGES) if page.startswith(incomplete)]
    prefix, underscore, _ = incomplete.partition("_")
    if not underscore or prefix not in _KINDS:
        return pages
    return complete_ids(
        _KINDS[prefix].resource,
        {},
        ctx,
        param,
        incomplete,
    )


@click.command(
    "open", cls=ServiceCommand, json_help="The address as one JSON document; opens nothing."
)
@click.argument(
    "page",
    metavar="[PAGE|ID]",
    default="dashboard",
    type=_parse,
    shell_complete=_complete,
)
@click.option(
    "--print",
    "only_print",
    is_flag=True,
    help="Print the address on stdout; open nothing.",
)
def open_page(
    service: ServiceOptions,
    *,
    as_json: bool,
    page: str,
    only_print: bool,
) -> None:
    """Open a page of the service in the browser: the dashboard, docs (the API reference), or a page
    of the dashboard.

    PAGE is dashboard, docs, keys, projects, members, billing, events or audit; ID is that of a key,
    project, member or event. You sign in in the browser: the address never contains a credential.
    Without a browser or a terminal the command prints the address.

    \b
      tenantry open
      tenantry open docs
      tenantry open key_01a1f97751a3e4c5b6d7f8091a2b3c4d
      tenantry open billing --organization acme --print

    Exits with 4 without a credential where the page depends on it, and with 5 if there is no such
    object.
    """
    configuration = ClientConfiguration(service, os.environ)
    base = configuration.address()[0].value
    url = base + (_PUBLIC.get(page) or _path(configuration, page, as_json=as_json))
    if as_json:
        print_json({"url": url})
    elif not only_print and sys.stdout.isatty() and has_browser(os.environ):
        say(f"Opening {url}")
        open_browser(url)
    else:
        click.echo(url)


def _path(configuration: ClientConfiguration, page: str, *, as_json: bool) -> str:
    """Return the path of a page of an organization. Asks the service for the organization of the
    object or credential.

    Raises `CommandError`.
    """
    if page in _PAGES and (named := configuration.options.organization):
        return f"/orgs/{checked_id(named, '--organization')}/{_PAGES[page]}"
    target = configuration.target()
    with exiting_on_failure(target, as_json=as_json), target.client() as client:
        if page in _PAGES:
            return f"/orgs/{target.organization or client.auth.whoami().org_id}/{_PAGES[page]}"
        kind = _KINDS[page.partition("_")[0]]
        return f"/orgs/{kind.find_org(client, page)}/{_PAGES[kind.page]}/{quote(page, safe='')}"


def _organization_of_project(client: Tenantry, project_id: str) -> str:
    project = client.projects.get(project_id)
    if project.mode != "live":
        raise CommandError(
            "The dashboard shows projects of live mode only; this one is of test mode."
        )
    return project.org_id


def _organization_of_event(client: Tenantry, event_id: str) -> str:
    client.billing.events.get(event_id)
    return client.auth.whoami().org_id


_KINDS: Final = {
    "key": _Kind("keys", "api_keys", lambda client, key_id: client.api_keys.get(key_id).org_id),
    "proj": _Kind("projects", "projects", _organization_of_project),
    "mbr": _Kind("members", "members", lambda client, mbr_id: client.members.get(mbr_id).org_id),
    "evt": _Kind("events", "billing.events", _organization_of_event),
}
"""By the prefix of the ids."""
