"""``tenantry trigger``: the provider's events and stories, made up, signed and sent to the service here."""

from typing import Final

import click

from tenantry.domain.billing.events import HANDLED_TYPES, SUBSCRIPTION_UPDATED
from tenantry_devkit.trigger import FAULTS, STORY

_MOST_CHAOS: Final = 10_000
_STATUSES: Final = (
    "active", "trialing", "past_due", "unpaid", "canceled", "incomplete", "incomplete_expired", "paused",
)  # fmt: skip


@click.command("trigger")
@click.argument("what", metavar="[TYPE|story:NAME]", required=False)
@click.option("--tenant", metavar="ORG", help="The tenant. Default: the demo's, or that of TENANTRY_API_KEY.")
@click.option("--plan", default="pro", show_default=True, help="The plan that is paid for.")
@click.option(
    "--status", type=click.Choice(_STATUSES), metavar="STATUS",
    help=f"The status in {SUBSCRIPTION_UPDATED}, such as trialing. [default: active]",
)  # fmt: skip
@click.option(
    "--override", "overrides", multiple=True, metavar="PATH=VALUE",
    help="Set a value of the event's object, or with event.PATH of the event.",
)  # fmt: skip
@click.option("--times", type=click.IntRange(1, 100_000), help="How many events. Default: 1; with --chaos 100.")
@click.option("--shape", type=click.Choice(("new", "old")), default="new", show_default=True,
              help="Of the provider's API before or since 2025-03-31.")  # fmt: skip
@click.option("--chaos", metavar="KIND,...", help=f"Send a history badly: {', '.join(FAULTS)}, or all.")
@click.option("--seed", type=click.IntRange(min=0), help="What --chaos does depends on this alone.")
@click.option("--forward-to", metavar="ADDRESS", help="An address, host:port, or a port. Default: the service here.")
@click.option("--remote", is_flag=True, help="Send to a service that is not on this machine.")
@click.option("--sign-as", type=click.Choice(("service", "listener")), default="service", show_default=True,
              help="With PROVIDER_WEBHOOK_SECRET, or the secret of `tenantry listen`.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the event instead of sending it.")
@click.option("--list", "as_list", is_flag=True, help="Show the types and the stories.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document; for a story one line a scene.")
def trigger(
    *,
    what: str | None,
    tenant: str | None,
    plan: str,
    status: str | None,
    overrides: tuple[str, ...],
    times: int | None,
    shape: str,
    chaos: str | None,
    seed: int | None,
    forward_to: str | None,
    remote: bool,
    sign_as: str,
    dry_run: bool,
    as_list: bool,
    as_json: bool,
) -> None:
    """Send the service here a signed provider event, and show what became of the tenant.

    TYPE is one of the five types that are handled; `--list` shows them and the stories. A story, such as
    story:failed-renewal, plays weeks on a simulated clock and shows the tenant after each step. With --chaos a history
    (of TYPE, of a story, or a long one of its own) is sent duplicated, in any order, and among forgeries, and the
    command says whether the tenant came to the state that it should have.

    Stories and --chaos without --tenant take a tenant of their own where OPERATOR_TOKEN is at hand, as in the demo.
    The tenant is read with TENANTRY_API_KEY or OPERATOR_TOKEN; without them events are sent all the same.

    Exits with 0 when the service took what it should; with 1 if not, or if the state did not converge; with 4 if it
    refuses the credential, with 5 if there is no such tenant for a story, and with 6 if it does not answer.
    """
    mischief = _mischief(chaos)
    if not as_list:
        _check(what, mischief, status, overrides, times, seed, dry_run=dry_run)
    # slow to import, and --help needs none of it
    from tenantry_devkit.trigger.run import run, show_list  # noqa: PLC0415
    from tenantry_devkit.trigger.session import TriggerOptions  # noqa: PLC0415

    if as_list:
        show_list(as_json=as_json)
        return
    run(
        TriggerOptions(
            what=what,
            tenant=tenant,
            plan=plan,
            status=status,
            overrides=overrides,
            times=times,
            shape=shape,
            mischief=mischief,
            seed=seed,
            forward_to=forward_to,
            remote=remote,
            sign_as=sign_as,
            dry_run=dry_run,
            as_json=as_json,
        )
    )


def _mischief(chaos: str | None) -> frozenset[str]:
    kinds = frozenset(part for each in (chaos or "").split(",") if (part := each.strip()))
    if chaos is not None and (not kinds or kinds - {*FAULTS, "all"}):
        raise click.BadParameter(f"must be some of {', '.join(FAULTS)}, or all", param_hint="--chaos")
    return frozenset(FAULTS) if "all" in kinds else kinds


def _check(
    what: str | None,
    mischief: frozenset[str],
    status: str | None,
    overrides: tuple[str, ...],
    times: int | None,
    seed: int | None,
    *,
    dry_run: bool,
) -> None:
    """Refuse what cannot be meant."""
    is_story = what is not None and what.startswith(STORY)
    if what is None and not mischief:
        raise click.UsageError("Missing argument: a type or a story. `tenantry trigger --list` shows them.")
    if what is not None and not is_story and what not in HANDLED_TYPES:
        raise click.UsageError(f"{what!r} is neither one of the five types nor a story. `--list` shows them.")
    if status is not None and what != SUBSCRIPTION_UPDATED:
        raise click.UsageError(f"--status is for {SUBSCRIPTION_UPDATED}: no other type has one to choose.")
    if overrides and (is_story or what is None or mischief):
        raise click.UsageError("--override is for events of a TYPE, and not for --chaos.")
    if mischief and times is not None and times > _MOST_CHAOS:
        raise click.UsageError(f"--times is {_MOST_CHAOS:,} at most with --chaos.")
    if times is not None and is_story:
        raise click.UsageError("--times is not for stories: they have the events that they have.")
    if seed is not None and not mischief:
        raise click.UsageError("--seed is for --chaos.")
    if dry_run and (is_story or mischief):
        raise click.UsageError("--dry-run is for events of a TYPE.")
