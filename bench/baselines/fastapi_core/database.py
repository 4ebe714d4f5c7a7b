"""The database engine."""

import os

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+asyncpg")
engine = create_async_engine(url, pool_size=20, max_overflow=0)
reading = engine.execution_options(isolation_level="AUTOCOMMIT")
"""For single queries, which need no transaction around them."""
