"""``tenantry listen``: the payment provider's events, relayed to this machine."""

import click

from tenantry.domain.billing.events import HANDLED_TYPES


@click.command("listen")
@click.option(
    "--forward-to", metavar="ADDRESS", help="Where to: an address, host:port, or a port. Default: the service here."
)
@click.option(
    "--events", "types", multiple=True, metavar="TYPE,...",
    help="Which types; '*' may stand in them. Default: the five that are handled. '*' alone: all.",
)  # fmt: skip
@click.option("--since", metavar="AGO", help="Begin with the events since then: 30m, 2h, 7d, or a time.")
@click.option("--exec", "command", metavar="COMMAND", help="Start this with the secret set, and end with it.")
@click.option(
    "--concurrency", type=click.IntRange(1, 32), default=1, show_default=True,
    help="Send so many at once, in any order; 1 keeps the order.",
)  # fmt: skip
@click.option(
    "--retries", type=click.IntRange(0, 100), default=6, show_default=True,
    help="Send an event again so often that could not be taken.",
)  # fmt: skip
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS",
    help="How often to look for events.",
)  # fmt: skip
@click.option("--print-secret", is_flag=True, help="Only print the signing secret, alone, on stdout.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each delivery.")
def listen(
    *,
    forward_to: str | None,
    types: tuple[str, ...],
    since: str | None,
    command: str | None,
    concurrency: int,
    retries: int,
    interval: float,
    print_secret: bool,
    as_json: bool,
) -> None:
    """Relay the payment provider's events to a service on this machine.

    The provider's list of events is read with PROVIDER_SECRET_KEY at PROVIDER_API_BASE (the running demo's, where
    there is one). What happens from now on is sent on, signed with a secret that stays the same on this machine. Start
    the service with it, or let --exec do so:

    \b
      PROVIDER_WEBHOOK_SECRET="$(tenantry listen --print-secret)" tenantry serve
      tenantry listen --exec "tenantry serve"

    Events arrive in their order. Where nobody takes connections they wait; a request that fails is made again. What is
    refused (4xx) is shown and passed over. Ctrl-C ends it with a summary.

    Exits with 0 if every event was taken, else with 1; with the command's own exit code where --exec started one; with
    4 if the provider refuses the key, and with 6 if it cannot be reached at the start.
    """
    # slow to import, and --help needs none of it
    from tenantry_devkit.listen.run import Wishes, print_signing_secret, run  # noqa: PLC0415

    if print_secret:
        print_signing_secret()
        return
    wanted = frozenset(part for text in types for each in text.split(",") if (part := each.strip()))
    run(
        Wishes(
            forward_to=forward_to,
            types=wanted or HANDLED_TYPES,
            since=since,
            command=command,
            concurrency=concurrency,
            retries=retries,
            interval=interval,
            as_json=as_json,
        )
    )
