"""The mail that a development inbox has taken."""

import asyncio
from datetime import datetime
from typing import Final

import httpx2
import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.domain.names import display_text

_PATH: Final = "/inbox/messages.json"
_PATIENCE: Final = 10.0
_PACE: Final = 0.1


class Message(msgspec.Struct, frozen=True):
    """A message in the inbox."""

    id: str
    to: str
    subject: str
    date: datetime


class _InInbox(Message, frozen=True):
    text: str


class InboxWatch:
    """Tells of new mail in the inbox at ``base``; one that does not answer has none."""

    def __init__(self, client: httpx2.AsyncClient, base: str) -> None:
        self._client = client
        self._base = base
        self._known: set[str] = set()

    async def begin(self) -> None:
        """What is there by now is not new."""
        self._known |= {message.id for message in await self._messages()}

    async def fresh(self, about: str, *, wanted: int) -> list[Message]:
        """The new messages that name the tenant ``about``, oldest first, once there are as many as are wanted.

        After ten seconds those that are there; mail is sent by a job of the service's.
        """
        found: list[Message] = []
        quoted = f'"{display_text(about)}"'
        if not wanted:
            return found
        try:
            async with asyncio.timeout(_PATIENCE):
                while len(found) < wanted:
                    new = [message for message in await self._messages() if message.id not in self._known]
                    self._known |= {message.id for message in new}
                    fitting = sorted((each for each in new if quoted in each.text), key=lambda message: message.id)
                    found += [Message(each.id, each.to, each.subject, each.date) for each in fitting]
                    if len(found) < wanted:
                        await asyncio.sleep(_PACE)
        except TimeoutError:
            pass
        return found

    async def _messages(self) -> list[_InInbox]:
        try:
            answer = await self._client.get(f"{self._base}{_PATH}")
            return msgspec.json.decode(answer.content, type=list[_InInbox])
        except (httpx2.HTTPError, *NOT_JSON):
            return []
