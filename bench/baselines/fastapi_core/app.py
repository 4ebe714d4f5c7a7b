"""The provider's webhook, and a tenant's projects."""

import hashlib
import json
import os
from datetime import UTC, datetime
from typing import Annotated, Any

import stripe
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict
from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .database import engine, reading
from .models import api_keys, projects, stripe_events, tenants

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
    request: Request, stripe_signature: Annotated[str | None, Header()] = None
) -> dict[str, bool]:
    """Take in an event of the provider: verify it, store it once, and bring its tenant up to
    date.
    """
    try:
        payload = (await request.body()).decode()
        stripe.WebhookSignature.verify_header(
            payload, stripe_signature, WEBHOOK_SECRET, stripe.Webhook.DEFAULT_TOLERANCE
        )
        event = json.loads(payload)
    except (ValueError, stripe.SignatureVerificationError) as error:
        raise HTTPException(400, "Invalid payload or signature") from error

    async with engine.begin() as connection:
        is_new = await connection.scalar(
            insert(stripe_events)
            .values(id=event["id"], type=event["type"], payload=payload)
            .on_conflict_do_nothing()
            .returning(stripe_events.c.id)
        )
        if is_new and event["type"] == "customer.subscription.updated":
            await update_tenant(connection, event["data"]["object"])
    return {"received": True}


async def update_tenant(connection: AsyncConnection, subscription: dict[str, Any]) -> None:
    """Set a tenant's plan and status from its subscription."""
    item = subscription["items"]["data"][0]
    await connection.execute(
        update(tenants)
        .where(tenants.c.id == subscription["metadata"]["orgId"])
        .values(
            plan=PLANS.get(item["price"]["id"], "free"),
            subscription_status=subscription["status"],
            current_period_end=datetime.fromtimestamp(item["current_period_end"], UTC),
        )
    )


@app.get("/projects")
async def list_projects(
    credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())],
) -> list[ProjectOut]:
    """The newest 20 projects of the tenant whose API key the request carries; without a valid one
    the answer is 401.
    """
    digest = hashlib.sha256(credentials.credentials.encode()).hexdigest()
    query = (
        select(projects)
        .select_from(api_keys.outerjoin(projects, projects.c.tenant_id == api_keys.c.tenant_id))
        .where(
            api_keys.c.digest == digest,
            api_keys.c.revoked_at.is_(None),
            or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > func.now()),
        )
        .order_by(projects.c.created_at.desc())
        .limit(20)
    )
    async with reading.connect() as connection:
        rows = (await connection.execute(query)).all()
    if not rows:
        raise HTTPException(401, "Invalid API key")
    # a key without projects has one row
    return [ProjectOut.model_validate(row) for row in rows if row.id is not None]
