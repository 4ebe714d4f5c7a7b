"""The database engine, and a session for each request."""

import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+asyncpg")
engine = create_async_engine(url, pool_size=20, max_overflow=0)
new_session = async_sessionmaker(engine, expire_on_commit=False)


async def get_session() -> AsyncIterator[AsyncSession]:
    """A session that is closed after the request."""
    async with new_session() as session:
        yield session


Session = Annotated[AsyncSession, Depends(get_session)]
