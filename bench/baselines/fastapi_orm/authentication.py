"""Who a request comes from."""

import hashlib
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import select

from .database import Session
from .models import ApiKey


async def get_api_key(
    credentials: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())], session: Session
) -> ApiKey:
    """The valid API key that a request carries; without one the answer is 401."""
    digest = hashlib.sha256(credentials.credentials.encode()).hexdigest()
    key = await session.scalar(select(ApiKey).where(ApiKey.digest == digest))
    if key is None or key.revoked_at is not None:
        raise HTTPException(401, "Invalid API key")
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        raise HTTPException(401, "API key has expired")
    return key


CurrentKey = Annotated[ApiKey, Depends(get_api_key)]
