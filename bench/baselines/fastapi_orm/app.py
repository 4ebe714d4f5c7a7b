"""The provider's webhook, and a tenant's projects."""

import os
from datetime import UTC, datetime
from typing import Annotated

import stripe
from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel, ConfigDict
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from .authentication import CurrentKey
from .database import Session
from .models import Project, StripeEvent, Tenant

WEBHOOK_SECRET = os.environ["STRIPE_WEBHOOK_SECRET"]
PLANS = {"price_free": "free", "price_pro": "pro"}

app = FastAPI()


class ProjectOut(BaseModel):
    """A project as the API shows it."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    tenant_id: str
    name: str
    description: str | None
    created_at: datetime
    updated_at: datetime


@app.post("/webhooks/stripe")
async def receive_event(
    request: Request, session: Session, stripe_signature: Annotated[str | None, Header()] = None
) -> dict[str, bool]:
    """Take in an event of the provider: verify it, store it once, and bring its tenant up to
    date.
    """
    try:
        payload = (await request.body()).decode()
        event = stripe.Webhook.construct_event(payload, stripe_signature, WEBHOOK_SECRET)
    except (ValueError, stripe.SignatureVerificationError) as error:
        raise HTTPException(400, "Invalid payload or signature") from error

    async with session.begin():
        is_new = await session.scalar(
            insert(StripeEvent)
            .values(id=event.id, type=event.type, payload=payload)
            .on_conflict_do_nothing()
            .returning(StripeEvent.id)
        )
        if is_new and event.type == "customer.subscription.updated":
            await update_tenant(session, event.data.object)
    return {"received": True}


async def update_tenant(session: AsyncSession, subscription: stripe.Subscription) -> None:
    """Set a tenant's plan and status from its subscription."""
    tenant = await session.get(Tenant, subscription.metadata["orgId"], with_for_update=True)
    if tenant is None:
        return
    item = subscription["items"].data[0]
    tenant.plan = PLANS.get(item.price.id, "free")
    tenant.subscription_status = subscription.status
    tenant.current_period_end = datetime.fromtimestamp(item.current_period_end, UTC)


@app.get("/projects")
async def list_projects(key: CurrentKey, session: Session) -> list[ProjectOut]:
    """The newest 20 projects of the caller's tenant."""
    projects = await session.scalars(
        select(Project)
        .where(Project.tenant_id == key.tenant_id)
        .order_by(Project.created_at.desc())
        .limit(20)
    )
    return [ProjectOut.model_validate(project) for project in projects]
