"""Stories: sequences of events as a provider sends them over several weeks."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Final, NamedTuple, NoReturn

import click
import httpx2
import msgspec
from rich.text import Text

from tenantry.cli.output import OUT_OF_REACH, CommandError, counted, own_command, printable
from tenantry.domain.billing.events import PAYMENT_FAILED, REQUIRED_TYPES
from tenantry.domain.tenants import Tenant
from tenantry_devkit.local.samples import (
    API_VERSIONS,
    EventSubject,
    Json,
    catalog_prices,
    subscribe,
)
from tenantry_devkit.local.session import (
    STORY,
    FieldChange,
    InboxMessage,
    TenantView,
    TriggerSession,
    change_lines,
    changes,
    current_second,
    first_second,
    write,
)
from tenantry_devkit.simulator import (
    Delivery,
    ItemChange,
    Simulator,
    State,
    Subscription,
)
from tenantry_devkit.simulator.invoices import DAY

_INDENT: Final = 12


def _set_seats(simulator: Simulator, subscription: Subscription, seats: int) -> None:
    """Change the quantity of the first item."""
    simulator.update_subscription(
        subscription, items=[ItemChange(subscription.items[0].id, quantity=seats)]
    )


class StoryStage(NamedTuple):
    """A provider with one customer; ``higher_price`` costs more than the subject's, and ``addon``
    is a further price.

    Acts are on the oldest subscription that has not ended.
    """

    simulator: Simulator
    subject: EventSubject
    higher_price: str
    addon: str | None = None

    @property
    def subscription(self) -> Subscription:
        return next(each for each in self.simulator.subscriptions.values() if not each.has_ended)

    async def perform(self, act: str) -> None:
        """Let the customer or the provider do what a scene of ``stories.toml`` names."""
        match act.split():
            case ["wait", days, "days"]:
                await self.simulator.advance(days=int(days))
            case ["end", "period"]:
                await self.simulator.advance(
                    seconds=self.subscription.period_end - self.simulator.now.timestamp()
                )
            case ["seats", number]:
                _set_seats(
                    self.simulator,
                    self.subscription,
                    int(number),
                )
            case _:
                _STORY_ACTS[act](self)

    def add_addon(self) -> None:
        if self.addon is not None:
            self.simulator.update_subscription(
                self.subscription, items=[ItemChange(price=self.addon)]
            )


_STORY_ACTS: Final[Mapping[str, Callable[[StoryStage], object]]] = {
    "subscribe": lambda stage: subscribe(stage.simulator, stage.subject),
    "subscribe flexible": lambda stage: subscribe(
        stage.simulator, stage.subject, billing_mode="flexible"
    ),
    "subscribe higher": lambda stage: subscribe(
        stage.simulator,
        stage.subject,
        stage.higher_price,
    ),
    "begin trial": lambda stage: subscribe(stage.simulator, stage.subject, trial_days=14),
    "card declines": lambda stage: stage.simulator.card_declines(stage.subject.customer),
    "card works": lambda stage: stage.simulator.card_works(stage.subject.customer),
    "cancel": lambda stage: stage.simulator.cancel(stage.subscription, at_period_end=True),
    "cancel now": lambda stage: stage.simulator.cancel(stage.subscription),
    "cancel in portal": lambda stage: stage.simulator.cancel_in_portal(stage.subscription),
    "resume": lambda stage: stage.simulator.resume(stage.subscription),
    "upgrade": lambda stage: stage.simulator.change_plan(stage.subscription, stage.higher_price),
    "downgrade": lambda stage: stage.simulator.change_plan(stage.subscription, stage.subject.price),
    "pause collection": lambda stage: stage.simulator.pause_collection(stage.subscription),
    "resume collection": lambda stage: stage.simulator.resume_collection(stage.subscription),
    "add addon": StoryStage.add_addon,
}


class _SceneScript(msgspec.Struct, frozen=True):
    acts: list[str]
    text: str


class Story(msgspec.Struct, frozen=True):
    """``days`` is the longest duration."""

    summary: str
    days: int
    scenes: list[_SceneScript]


@cache
def stories() -> dict[str, Story]:
    """Return the stories by name."""
    content = (resources.files("tenantry_devkit") / "local" / "stories.toml").read_bytes()
    return msgspec.toml.decode(content, type=dict[str, Story])


class Scene(NamedTuple):
    """A step of a story: its time, its text, and the events sent in it, with the answers."""

    at: datetime
    text: str
    deliveries: Sequence[Delivery]

    @property
    def failed(self) -> Delivery | None:
        """The first delivery that the service did not accept."""
        return next((each for each in self.deliveries if each.state is not State.DELIVERED), None)


async def play(story: Story, stage: StoryStage) -> AsyncIterator[Scene]:
    """Act the scenes, and deliver the events of each."""
    shown = 0
    for script in story.scenes:
        for act in script.acts:
            await stage.perform(act)
        await stage.simulator.deliver()
        deliveries = stage.simulator.deliveries()[shown:]
        shown += len(deliveries)
        yield Scene(
            stage.simulator.now,
            script.text,
            deliveries,
        )


def chosen_story(session: TriggerSession) -> Story:
    name = (session.options.what or "").removeprefix(STORY)
    if name not in stories():
        raise click.UsageError(f"There is no story {name!r}. There are {', '.join(stories())}.")
    return stories()[name]


def stage_for(
    session: TriggerSession,
    story: Story,
    tenant_id: str,
    view: TenantView,
    client: httpx2.AsyncClient | None = None,
) -> StoryStage:
    """Return a stage with all prices of the catalog, whose clock begins so that the story ends
    about now.
    """
    prices, catalog = session.prices, session.policy.catalog
    addon = next((price for each in catalog.addons for price in each.stripe_price_ids), None)
    higher = [price for price in prices if prices[price] > prices[session.price]]
    subject = session.subject(tenant_id, view)
    simulator = subject.simulator(
        first_second(view, current_second() - story.days * DAY),
        prices=catalog_prices(catalog),
        api_version=API_VERSIONS[session.options.shape],
        client=client,
    )
    higher_price = min(higher, key=prices.__getitem__, default=session.price)
    return StoryStage(simulator, subject, higher_price, addon)


async def run_story(session: TriggerSession) -> int:
    story, options, endpoint = chosen_story(session), session.options, session.endpoint
    async with session.tenant_of_story() as (tenant_id, view):
        stage = stage_for(
            session,
            story,
            tenant_id,
            view,
            endpoint.client,
        )
        stage.simulator.add_endpoint(
            endpoint.url,
            endpoint.secret.reveal(),
            enabled_events=REQUIRED_TYPES,
        )
        if session.inbox:
            await session.inbox.begin()
        if not options.as_json:
            _introduce(session, story, tenant_id)
        before = view.tenant
        async for scene in play(story, stage):
            if scene.failed:
                _fail_scene(session, scene.failed)
            after = (await session.reader.tenant_view(tenant_id)).tenant
            changed, mails = changes(before, after), await _new_mails(session, scene, after)
            if options.as_json:
                document = {
                    "tenantId": tenant_id,
                    **_scene_document(scene, mails),
                    "changed": changed,
                    "tenant": after,
                }
                session.write_json(document, indent=0)
            else:
                _show_scene(session, scene, changed, mails)
            before = after
        if not options.as_json:
            session.console.print()
            session.write(
                f"The whole ledger: {own_command()} tenants explain {tenant_id}", style="dim"
            )
    return 0


def _introduce(session: TriggerSession, story: Story, tenant_id: str) -> None:
    session.write(Text.assemble((session.options.what or "", "bold"), f"  {story.summary}"))
    session.write(f"on tenant {tenant_id}, plan {session.plan.id}", style="dim")


async def _new_mails(
    session: TriggerSession, scene: Scene, tenant: Tenant | None
) -> list[InboxMessage]:
    if session.inbox is None or tenant is None:
        return []
    failures = sum(delivery.type == PAYMENT_FAILED for delivery in scene.deliveries)
    return await session.inbox.new_messages(tenant.name, count=failures)


def _fail_scene(session: TriggerSession, delivery: Delivery) -> NoReturn:
    status = delivery.attempts[-1].status if delivery.attempts else None
    if status is None:
        raise CommandError(
            f"{session.endpoint.url} does not answer: the story stops here.", OUT_OF_REACH
        )
    raise CommandError(
        f"{session.endpoint.url} answered {status} to {delivery.type}: the story stops here."
    )


def _scene_document(scene: Scene, mails: Sequence[InboxMessage]) -> Json:
    events = [
        {
            "id": each.event,
            "type": each.type,
            "status": each.attempts[-1].status,
        }
        for each in scene.deliveries
    ]
    listed = [
        {name: getattr(mail, name) for name in ("id", "to", "subject", "date")} for mail in mails
    ]
    return {
        "at": scene.at,
        "text": scene.text,
        "events": events,
        "mails": listed,
    }


def _show_scene(
    session: TriggerSession, scene: Scene, changed: list[FieldChange], mails: Sequence[InboxMessage]
) -> None:
    session.console.print()
    write(
        session.console,
        Text(scene.text),
        _INDENT,
        Text(f"{scene.at:%Y-%m-%d}", "bold"),
    )
    for event_type, number in Counter(delivery.type for delivery in scene.deliveries).items():
        times = f" ({counted(number, 'time')})" if number > 1 else ""
        session.write(
            f"{event_type}{times}",
            _INDENT,
            style="dim",
        )
    for line in change_lines(changed):
        session.write(line, _INDENT)
    if not changed:
        session.write("the tenant is unchanged", _INDENT, style="dim")
    for mail in mails:
        session.write(Text.assemble(("mail", "magenta"), f": {printable(mail.subject)}"), _INDENT)
