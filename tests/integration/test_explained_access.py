"""What `tenantry admin explain-tenant` says of access, sentence by sentence, against the tenant's
record.
"""

import io
import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pytest
from rich.console import Console

from tenantry.cli.billing import show
from tenantry.domain.billing.explanation import BillingExplanation, SubscriptionView
from tenantry.domain.billing.state import SubscriptionRule
from tenantry_cli.output import shown
from tests.support import figures
from tests.support.subscription_deliveries import DeliveredTenant, by_catalog, running_instance
from tests.support.subscription_oracle import Expected

TENANTS: Final = {SubscriptionRule.EACH: 20, SubscriptionRule.ANY: 6}
"""With `any` the explanation has no sentences about single subscriptions. `tests/system` has 500
tenants with `each`.
"""
ENDED: Final = "It has ended."
NO_ACCESS: Final = re.compile(r"It gives no access\. (?P<why>.+)")
ACCESS: Final = re.compile(
    r"It gives (?P<full>full )?access to plan (?P<plan>\w+)(?P<grace> for a grace period)?"
    r"(?: until (?P<until>[\d-]+ [\d:]+) UTC)?\.(?P<current> The organization's access is from it\.)?"
)
VERDICT: Final = re.compile(r"(?P<verdict>Counts|Does not count): (?P<why>.+?)\. (?P<access>It .+)")
STATUS: Final = re.compile(
    r"(\d+_sub_\w) is (?!newer)(\w[\w ]*?)(?= and was | with quantity 0|,|$)"
)
NO_ITEM: Final = re.compile(r"(\d+_sub_\w) has no item of a plan")
LINE: Final = re.compile(r"Access  (?:(?P<state>full|grace), )?limits of plan (?P<plan>\w+)")
FULL_ACCESS_ENDS: Final = re.compile(
    r"(?P<at>\S+)  full access to plan (?P<plan>\w+) ends, then a grace period counts\..*"
)


class AccessSentence(NamedTuple):
    """What a sentence says that a subscription gives."""

    state: str
    plan: str
    until: datetime | None
    is_current: bool


def parsed(subscription: SubscriptionView) -> tuple[bool, str, AccessSentence]:
    """Whether a subscription counts, why, and what it gives, by its sentences."""
    sentence = VERDICT.fullmatch(subscription.reason)
    assert sentence, subscription.reason
    access = sentence["access"]
    if access == ENDED:
        return (
            sentence["verdict"] == "Counts",
            sentence["why"],
            AccessSentence("over", "free", None, is_current=False),
        )
    if NO_ACCESS.fullmatch(access):
        return (
            sentence["verdict"] == "Counts",
            sentence["why"],
            AccessSentence("none", "free", None, is_current=False),
        )
    given = ACCESS.fullmatch(access)
    assert given, access
    assert bool(given["full"]) != bool(given["grace"]), access
    until = datetime.fromisoformat(given["until"]).replace(tzinfo=UTC) if given["until"] else None
    said = AccessSentence(
        "full" if given["full"] else "grace", given["plan"], until, bool(given["current"])
    )
    return sentence["verdict"] == "Counts", sentence["why"], said


def wrong_sentences(explanation: BillingExplanation) -> Iterator[str]:
    """What the sentences of an explanation say otherwise than the record of the tenant."""
    said = [parsed(subscription) for subscription in explanation.subscriptions]
    for subscription, (counts, why, _) in zip(explanation.subscriptions, said, strict=True):
        record = explanation.tenant.plan, explanation.tenant.subscription_status
        if counts and (subscription.plan, subscription.status) != record:
            yield f"{subscription.id} counts"
        yield from wrong_facts(explanation, why)
    if said:
        yield from wrong_access(explanation, [gives for _, _, gives in said])
    yield from wrong_lines(explanation)


def wrong_facts(explanation: BillingExplanation, why: str) -> Iterator[str]:
    """The facts of subscriptions in a sentence that are not those in the list."""
    listed = {each.id: each for each in explanation.subscriptions}
    for name, status in STATUS.findall(why):
        if listed[name].status != status.replace(" ", "_"):
            yield f"{name} is {status}"
    for name in NO_ITEM.findall(why):
        if listed[name].seats is not None:
            yield f"{name} has no item of a plan"


def wrong_access(explanation: BillingExplanation, said: Sequence[AccessSentence]) -> Iterator[str]:
    """Sentences about what subscriptions give that the tenant's access contradicts."""
    access = explanation.tenant.access
    current = [each for each in said if each.is_current]
    is_of_operator = access.reason.startswith("By contract")
    if len(current) != (access.state != "none" and not is_of_operator):
        yield f"access is {access.state}, and that of {len(current)} subscriptions"
    for each in current:
        if (each.state, each.plan) != (access.state, access.plan):
            yield f"the tenant's access is {each}"
        if len(said) == 1 and each.until != access.until:
            yield f"the tenant's access ends {each.until}"
    if access.state == "none" and any(each.state in ("full", "grace") for each in said):
        yield "a subscription gives access"
    if access.state == "grace" and any(
        (each.state, each.plan) == ("full", access.plan) for each in said
    ):
        yield "a subscription gives full access"


def wrong_lines(explanation: BillingExplanation) -> Iterator[str]:
    """The same of the printed lines: each that names an access is the tenant's, or a
    subscription's.
    """
    screen = io.StringIO()
    show(explanation, Console(file=screen, width=1_000))
    known = {subscription.reason for subscription in explanation.subscriptions}
    access = explanation.tenant.access
    plans = [access.plan, *(ending.plan for ending in explanation.endings)]
    plans_before = {
        shown(ending.at): plan for ending, plan in zip(explanation.endings, plans, strict=False)
    }
    ends = [ending.at for ending in explanation.endings]
    if ends[:1] != ([] if access.until is None else [access.until]) or ends != sorted(ends):
        yield f"access ends {ends}"
    for line in map(str.strip, screen.getvalue().splitlines()):
        if line in known or line == access.reason:
            continue
        if found := LINE.fullmatch(line):
            if (found["state"] or "none", found["plan"]) != (access.state, access.plan):
                yield line
        elif found := FULL_ACCESS_ENDS.fullmatch(line):
            if plans_before[found["at"]] != found["plan"]:
                yield line
        elif "access" in line.lower():
            yield line


def some_moment(tenant: DeliveredTenant) -> datetime:
    """A random second around an end of the tenant's access, or long after all of them."""
    rng, last = random.Random(tenant.id), max(event.created for event in tenant.happened)  # noqa: S311  # repeatable
    turns = [last, *Expected(tenant.happened, tenant.rules, tenant.base_plan).turns]
    return datetime.fromtimestamp(rng.choice(turns) + rng.choice((-1, 0, 1, 3600, 10**7)), UTC)


@pytest.mark.parametrize("mode", SubscriptionRule)
async def test_every_sentence_about_access_is_that_of_the_record(
    conninfo: str, mode: SubscriptionRule, record_property: figures.RecordProperty
) -> None:
    await check_sentences(conninfo, mode, TENANTS[mode], record_property)


async def check_sentences(
    conninfo: str,
    mode: SubscriptionRule,
    number: int,
    record_property: figures.RecordProperty,
) -> None:
    """Assert that the explanations of so many random tenants agree with their records."""
    wrong: dict[str, list[str]] = {}
    sentences = 0
    for tenants in by_catalog(range(number)):
        async with running_instance(
            conninfo, tenants[0].rules._replace(subscriptions=mode)
        ) as instance:
            await instance.deliver_all(tenants)
            for tenant in tenants:
                explanation = await instance.explanation(tenant, some_moment(tenant))
                sentences += len(explanation.subscriptions) + 1
                if found := list(wrong_sentences(explanation)):
                    wrong[tenant.id] = found
    ran = {"tenants": number, "sentences": sentences}
    figures.record(record_property, f"Explained access, {mode}", ran, {"tenantry": len(wrong)})
    assert not wrong, dict(list(wrong.items())[:3])
