"""Make the tables and fill them; prints the webhook's path. ``python -m dj_stripe.seed TENANTS
WEBHOOK_SECRET``.

Tenant n is the customer ``cus_<n>`` with the subscription ``sub_<n>`` to the price ``price_free``.
"""

import sys
from typing import Any

import django
from django.core.management import call_command
from django.urls import reverse

FREE = {"id": "price_free", "object": "price", "product": "prod_bench"}


def main(tenants: int, webhook_secret: str) -> None:
    """Store what dj-stripe would have after a first synchronisation with the provider."""
    django.setup()
    from django.conf import settings  # noqa: PLC0415  # models can be had once Django is set up
    from djstripe import models  # noqa: PLC0415

    # the tables as they are now, without their history: its hundreds of steps take minutes
    settings.MIGRATION_MODULES = dict.fromkeys(("auth", "contenttypes", "djstripe"))
    call_command("migrate", run_syncdb=True, verbosity=0)
    account = models.Account.objects.create(id="acct_bench", livemode=True)
    owned: dict[str, Any] = {"djstripe_owner_account": account, "livemode": True}
    models.APIKey.objects.create(type="secret", secret=settings.STRIPE_LIVE_SECRET_KEY, **owned)
    endpoint = models.WebhookEndpoint.objects.create(
        id="we_bench",
        secret=webhook_secret,
        enabled_events=["*"],
        status="enabled",
        url="",
        **owned,
    )
    product = models.Product.objects.create(id="prod_bench", **owned)
    prices = [
        models.Price(id=price, product=product, active=True, **owned)
        for price in ("price_free", "price_pro")
    ]
    models.Price.objects.bulk_create(prices)
    customers = [models.Customer(id=f"cus_{n}", **owned) for n in range(tenants)]
    models.Customer.objects.bulk_create(customers)
    subscriptions = [
        models.Subscription(
            id=f"sub_{n}", customer=customers[n], stripe_data=subscription(n), **owned
        )
        for n in range(tenants)
    ]
    models.Subscription.objects.bulk_create(subscriptions)
    models.SubscriptionItem.objects.bulk_create(
        models.SubscriptionItem(
            id=f"si_{n}",
            subscription=subscriptions[n],
            price=prices[0],
            stripe_data=item(n),
            **owned,
        )
        for n in range(tenants)
    )
    print(reverse("djstripe:djstripe_webhook_by_uuid", kwargs={"uuid": endpoint.djstripe_uuid}))


def subscription(number: int) -> dict[str, Any]:
    """A tenant's subscription before the first event."""
    return {
        "id": f"sub_{number}",
        "object": "subscription",
        "customer": f"cus_{number}",
        "status": "active",
        "items": {"object": "list", "data": [item(number)]},
    }


def item(number: int) -> dict[str, Any]:
    """What that subscription is for."""
    return {
        "id": f"si_{number}",
        "object": "subscription_item",
        "subscription": f"sub_{number}",
        "price": FREE,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
