"""Signed provider events, signed by the provider's own package.

Run it to send events to a service: ``python -m tests.support.signing --type invoice.payment_failed
--secret whsec_... [--times 50 --same-id]``.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from typing import Any, Final

import httpx2
import stripe

from tests.support import events
from tests.support.app import WEBHOOK_SECRET

PATH: Final = "/api/v1/webhooks/payment-provider"
PROVIDER_SIGNATURE: Final = "Provider-Signature"
STRIPE_SIGNATURE: Final = "Stripe-Signature"


def v1(body: bytes, *, secret: str = WEBHOOK_SECRET, at: int | str = events.NOW) -> str:
    """One ``v1`` signature of a body."""
    # the package only signs text, which every body that can be signed in earnest is
    return stripe.WebhookSignature._compute_signature(f"{at}.{body.decode()}", secret)


def signature(body: bytes, *, secret: str = WEBHOOK_SECRET, at: int = events.NOW) -> str:
    """The signature header of a body, made at Unix time ``at``."""
    return str(stripe.WebhookSignature.generate_signature_header(body.decode(), secret, at))


async def deliver(
    client: httpx2.AsyncClient,
    event: dict[str, Any] | bytes,
    *,
    secret: str = WEBHOOK_SECRET,
    at: int = events.NOW,
    header: str = PROVIDER_SIGNATURE,
) -> httpx2.Response:
    """Send an event as the provider does."""
    body = event if isinstance(event, bytes) else events.body(event)
    headers = {
        header: signature(body, secret=secret, at=at),
        "Content-Type": "application/json; charset=utf-8",
    }
    return await client.post(PATH, content=body, headers=headers)


def sample(
    event_type: str, org: str, customer: str, event_id: str | None, created: int
) -> dict[str, Any]:
    """An event of one of the five types about a tenant."""
    match event_type:
        case "customer.subscription.updated":
            return events.updated(
                org=org,
                customer=customer,
                event_id=event_id,
                created=created,
                period_end=created + events.MONTH,
            )
        case "customer.subscription.deleted":
            return events.deleted(org=org, customer=customer, event_id=event_id, created=created)
        case "invoice.payment_failed":
            return events.failed(customer=customer, event_id=event_id, created=created)
        case "invoice.payment_succeeded":
            return events.succeeded(customer=customer, event_id=event_id, created=created)
        case "checkout.session.completed":
            return events.completed(org=org, customer=customer, event_id=event_id, created=created)
    return events.event(
        event_type, {"id": "obj_1", "object": "thing"}, event_id=event_id, created=created
    )


async def send(options: argparse.Namespace) -> Counter[tuple[int, str]]:
    """Send events at the same time; returns how often each answer came."""
    now = int(time.time())
    run = f"{now:x}{time.perf_counter_ns() % 10**9:09d}"
    ids = [
        f"evt_{run}" if options.same_id else f"evt_{run}_{number}"
        for number in range(options.times)
    ]
    sent = [sample(options.type, options.org, options.customer, event_id, now) for event_id in ids]
    async with httpx2.AsyncClient(base_url=options.url, timeout=30) as client:
        answers = await asyncio.gather(
            *(deliver(client, event, secret=options.secret, at=now) for event in sent)
        )
    return Counter((answer.status_code, answer.text) for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send signed provider events.")
    parser.add_argument("--type", default="customer.subscription.updated")
    parser.add_argument(
        "--org", default="demo", help="the tenant that subscription and checkout events name"
    )
    parser.add_argument("--customer", default="cus_demo", help="the customer that the events name")
    parser.add_argument("--secret", required=True, help="the webhook secret, whsec_...")
    parser.add_argument("--url", default="http://127.0.0.1:3001")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--same-id", action="store_true", help="the same event every time")
    for (status, text), count in sorted(asyncio.run(send(parser.parse_args())).items()):
        sys.stdout.write(f"{count} x {status} {text}\n")


if __name__ == "__main__":
    main()
