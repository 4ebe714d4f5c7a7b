"""Requests whose body takes long to arrive."""

import json
from collections.abc import Mapping

from tests.support.http_line import Line


class SlowRequest:
    """A request on a separate connection, of which the headers and half of the body were sent."""

    def __init__(self, line: Line, rest: bytes) -> None:
        self._line = line
        self._rest = rest

    @classmethod
    async def begin(
        cls, address: str, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> "SlowRequest":
        """Send the head and half of the body to a server; it has read them where it is in this
        event loop.
        """
        line = await Line.to(address)
        sent = {"Host": "tenantry.test", **headers, "Content-Length": str(len(body))}
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {text}" for name, text in sent.items()),
            "",
            "",
        ]
        middle = len(body) // 2
        await line.send("\r\n".join(lines).encode(), body[:middle])
        return cls(line, body[middle:])

    async def finish(self, *, send_rest: bool = True) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and body of the answer, once the rest was sent."""
        if send_rest:
            await self._line.push(self._rest)
        answer = await self._line.answer()
        self._line.close()
        return answer

    async def refused(self, *, send_rest: bool = True) -> tuple[int, str | None]:
        """The status and code of the answer; None where it is no problem document."""
        status, headers, body = await self.finish(send_rest=send_rest)
        is_problem = headers.get("content-type") == "application/problem+json"
        return status, json.loads(body)["code"] if is_problem else None
