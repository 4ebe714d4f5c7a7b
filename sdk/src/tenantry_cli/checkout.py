"""``tenantry billing checkout``: an address at the payment provider to subscribe at."""

import click

from tenantry_cli.api_command import ApiCommand, ApiContext


def _addon_quantity(text: str) -> tuple[str, int]:
    """Return the id and the quantity of ``storage=2``. Raises `click.BadParameter`."""
    addon_id, _, quantity = text.rpartition("=")
    if not (addon_id and quantity.isascii() and quantity.isdigit()):
        raise click.BadParameter(f"{text!r} is not an add-on and a quantity, such as storage=2")
    return addon_id, int(quantity)


@click.command("checkout", cls=ApiCommand, json_help="The address as one JSON document.")
@click.argument("plan", metavar="PLAN")
@click.option("--price", metavar="PRICE", help="One of the plan's prices. By default its first.")
@click.option("--quantity", type=click.IntRange(min=1), help="How many of the plan. [1]")
@click.option(
    "--addon",
    "addons",
    type=_addon_quantity,
    multiple=True,
    metavar="ID=QUANTITY",
    help="An add-on with its quantity; repeatable.",
)
@click.option("--currency", metavar="CODE", help="Pay in this currency, such as usd.")
def checkout(
    api: ApiContext,
    *,
    plan: str,
    price: str | None,
    quantity: int | None,
    addons: tuple[tuple[str, int], ...],
    currency: str | None,
) -> None:
    """Begin a checkout of a plan, and print its address, alone, on stdout. Open it in a browser.

    Anyone with the address can subscribe for your organization.

    \b
      tenantry billing checkout pro --quantity 5 --addon storage=2
    """
    chosen = dict(addons)
    if len(chosen) < len(addons):
        raise click.BadParameter("names an add-on twice", param_hint="--addon")
    session = api.client.billing.checkout_sessions.create(
        plan=plan,
        price=price,
        quantity=quantity,
        addons=chosen,
        currency=currency,
    )
    api.done(session, f"Open this address to subscribe to {plan}.", session.url)
