"""Answers have times in UTC, whatever the database's time zone."""

import re

import psycopg
from psycopg import sql

from tests.support.service import KEYS, PROJECTS, TENANTS, WHOAMI, running_service


async def test_every_time_ends_with_z(conninfo: str) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        name = sql.Identifier(connection.info.dbname)
        await connection.execute(
            sql.SQL("ALTER DATABASE {} SET timezone = 'Asia/Kathmandu'").format(name)
        )
    async with running_service(conninfo) as service:
        org = await service.organization()
        project = (await org.owner.post(PROJECTS, {"name": "a"})).json()
        key = await service.key(org.owner, org.id, "a:b", expiresAt="2026-06-01T12:00:00+02:00")
        answers = [
            await org.owner.get(path)
            for path in (
                PROJECTS,
                f"{PROJECTS}/{project['id']}",
                KEYS,
                key.path,
                TENANTS,
                org.path,
                WHOAMI,
            )
        ]
        answers += [
            await key.caller.get(WHOAMI),
            await service.operator.get(f"{org.path}/export"),
            await org.owner.patch(f"{PROJECTS}/{project['id']}", {"name": "b"}),
            await org.owner.post(f"{key.path}/rotate", {"overlapSeconds": 60}),
        ]
    for answer in answers:
        assert answer.status_code in (200, 201)
        for moment in re.findall(r'"(\d{4}-\d\d-\d\dT[^"]*)"', answer.text):
            assert moment.endswith("Z"), (answer.request.url, moment)
