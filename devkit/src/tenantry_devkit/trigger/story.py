"""Playing a story, and telling it scene by scene."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
import httpx2
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.cli.output import FAILED, OUT_OF_REACH, counted, fail, json_text, own_command, printable
from tenantry.domain.billing.events import HANDLED_TYPES, PAYMENT_FAILED
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.samples import API_VERSIONS, Subject
from tenantry_devkit.local.service import Message
from tenantry_devkit.local.stories import STORIES, Scene, Stage, Story, play
from tenantry_devkit.simulator import Delivery
from tenantry_devkit.trigger import STORY
from tenantry_devkit.trigger.session import Change, Tools, change_lines, changes, first_second, now, tenant_for, write

_INDENT: Final = 12
_DAY: Final = 86_400


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    type: str
    status: int | None


class _Scene(msgspec.Struct, frozen=True, rename="camel"):
    """A scene as one line of JSON."""

    tenant_id: str
    at: datetime
    text: str
    events: list[_Event]
    changed: list[Change]
    tenant: Tenant | None
    mails: list[Message]


def chosen(tools: Tools) -> Story:
    """The story that was asked for; a usage error where there is none of that name."""
    name = (tools.options.what or "").removeprefix(STORY)
    if name not in STORIES:
        raise click.UsageError(f"There is no story {name!r}. There are {', '.join(STORIES)}.")
    return STORIES[name]


def bigger_price(tools: Tools) -> str:
    """The next price that costs more than the plan's, or the plan's own where there is none."""
    own = tools.prices[tools.price]
    return min((price for price in tools.prices if tools.prices[price] > own), key=tools.prices.__getitem__,
               default=tools.price)  # fmt: skip


def stage_for(tools: Tools, subject: Subject, start: int, client: httpx2.AsyncClient | None = None) -> Stage:
    """A stage whose provider knows all prices of the catalog."""
    shape = API_VERSIONS[tools.options.shape]
    # ids of an earlier telling are in the ledger
    simulator = subject.simulator(start, fresh_ids=True, prices=tools.prices, api_version=shape, client=client)
    return Stage(simulator, subject, bigger_price(tools))


async def run(tools: Tools) -> int:
    """Play the story; returns the exit code."""
    story, console = chosen(tools), Console(highlight=False)
    async with tenant_for(tools, "story") as (tenant_id, sight):
        subject = tools.subject(tenant_id, sight)
        stage = stage_for(tools, subject, first_second(sight, now() - story.days * _DAY), tools.client)
        stage.simulator.add_endpoint(tools.endpoint.url, tools.secret.reveal(), enabled_events=HANDLED_TYPES)
        if tools.inbox:
            await tools.inbox.begin()
        if not tools.options.as_json:
            write(console, Text.assemble((tools.options.what or "", "bold"), f"  {story.summary}"))
            write(console, Text(f"on tenant {tenant_id}, plan {tools.plan.id}", "dim"))
        before = sight.tenant
        async for scene in play(story, stage):
            if scene.failed:
                return _stopped(tools, scene.failed)
            after = (await tools.reader.look(tenant_id)).tenant
            changed = changes(before, after)
            mails = await _mails(tools, scene, after)
            if tools.options.as_json:
                click.echo(json_text(msgspec.json.encode(_document(tenant_id, scene, changed, after, mails))))
            else:
                _show(console, scene, changed, mails)
            before = after
        if not tools.options.as_json:
            console.print()
            write(console, Text(f"The whole of it: {own_command()} tenants explain {tenant_id}", "dim"))
    return 0


async def _mails(tools: Tools, scene: Scene, tenant: Tenant | None) -> list[Message]:
    """The mail that the scene's failed payments have brought."""
    if tools.inbox is None or tenant is None:
        return []
    failures = sum(event.type == PAYMENT_FAILED for event, _ in scene.events)
    return await tools.inbox.fresh(tenant.name, wanted=failures)


def _stopped(tools: Tools, delivery: Delivery) -> int:
    """Say why the story cannot go on."""
    last = delivery.attempts[-1] if delivery.attempts else None
    if last is None or last.status is None:
        fail(f"{tools.endpoint.url} does not answer: the story stops here.", OUT_OF_REACH)
    hint = " Perhaps it checks with another secret: --sign-as listener?" if last.status == 400 else ""  # noqa: PLR2004
    fail(f"{tools.endpoint.url} answered {last.status} to {delivery.type}: the story stops here.{hint}", FAILED)


def _document(
    tenant_id: str, scene: Scene, changed: list[Change], tenant: Tenant | None, mails: list[Message]
) -> _Scene:
    events = [_Event(event.id, event.type, delivery.attempts[-1].status) for event, delivery in scene.events]
    return _Scene(tenant_id, scene.at, scene.text, events, changed, tenant, mails)


def _show(console: Console, scene: Scene, changed: list[Change], mails: Sequence[Message]) -> None:
    console.print()
    write(console, Text(scene.text), _INDENT, Text(f"{scene.at:%Y-%m-%d}", "bold"))
    counts = Counter(event.type for event, _ in scene.events)
    for event_type, number in counts.items():
        times = f" ({counted(number, 'time')})" if number > 1 else ""
        write(console, Text(f"{event_type}{times}", "dim"), _INDENT)
    for line in change_lines(changed):
        write(console, line, _INDENT)
    if not changed:
        write(console, Text("the tenant stays as it is", "dim"), _INDENT)
    for mail in mails:
        write(console, Text.assemble(("mail", "magenta"), f": {printable(mail.subject)}"), _INDENT)
