"""The APIs of Svix and Outpost that docs/how-to/webhooks-for-your-customers.md uses, as their
documentation describes them: ``python -m tests.support.webhook_services``.

It prints its address. Looked up in November 2026: Svix's OpenAPI document (Create Message), and
Outpost's (Publish Event) with its handler.
"""

import json
import re
import sys
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition
from typing import Any, Final, NamedTuple

TOKEN: Final = "token-of-the-service"
MOST_SECONDS: Final = 60.0
_SVIX_PATH: Final = re.compile(r"/api/v1/app/([a-zA-Z0-9_.-]{1,256})/msg")
_SVIX_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,256}")
_OUTPOST_PATH: Final = "/publish"
_OUTPOST_TOPIC: Final = re.compile(r"(?:api_key|member)\.[a-z_]+")
"""What `TOPICS` of this Outpost lists."""


class Accepted(NamedTuple):
    """A message that the service has: the tenant, the id, the type, and the body for customers."""

    tenant: str
    id: str
    type: str
    body: Mapping[str, Any]


class State:
    """What the service has, and how it fails next: ``failures`` are used up, one by each message.

    A failure is a status; ``reset`` closes the connection before the message is kept. With ``lost``
    and ``silent`` it is kept, and then the connection is closed, or no answer comes.
    """

    def __init__(self) -> None:
        self.changed = Condition()
        self.accepted: list[Accepted] = []
        self.applications: set[str] = set()
        self.failures: deque[str] = deque()
        self.requests = 0

    def keep(self, message: Accepted) -> bool:
        """Keep a message; whether its id is new."""
        with self.changed:
            is_new = all(message.id != each.id for each in self.accepted)
            if is_new:
                self.accepted.append(message)
            self.changed.notify_all()
        return is_new

    def next_failure(self) -> str:
        with self.changed:
            self.requests += 1
            return self.failures.popleft() if self.failures else ""


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    state: State

    def do_GET(self) -> None:
        """Answer a test with what there is, once it is at least this many messages."""
        least = int(self.path.removeprefix("/accepted/"))
        state = self.state
        with state.changed:
            state.changed.wait_for(lambda: len(state.accepted) >= least, MOST_SECONDS)
            found = {"accepted": state.accepted, "requests": state.requests}
        self._answer(200, found)

    def do_PUT(self) -> None:
        """Set the next failures, for a test."""
        with self.state.changed:
            self.state.failures.extend(self._body())
        self._answer(200, {})

    def do_POST(self) -> None:
        failure, body = self.state.next_failure(), self._body()
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"detail": "Invalid token"})
        elif failure.isdigit():
            self._answer(int(failure), {"detail": "for the test"})
        elif failure == "reset":
            self._hang_up()
        else:
            status, answer = self._accept(body)
            self._finish(failure, status, answer)

    def _accept(self, body: Any) -> tuple[int, object]:
        if self.path == _OUTPOST_PATH:
            return _accept_for_outpost(self.state, body)
        application = _SVIX_PATH.fullmatch(self.path)
        if application is None:
            return 404, {"detail": "Not found"}
        return _accept_for_svix(self.state, application[1], body)

    def _finish(self, failure: str, status: int, answer: object) -> None:
        if failure == "lost":
            self._hang_up()
        elif failure == "silent":
            self.rfile.read(1)  # until the client is gone
            self.close_connection = True
        else:
            self._answer(status, answer)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _hang_up(self) -> None:
        self.close_connection = True

    def _answer(self, status: int, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def _accept_for_svix(state: State, uid: str, body: dict[str, Any]) -> tuple[int, object]:
    if uid not in state.applications:
        application = body.get("application")
        if application is None:
            return 404, {"code": "not_found", "detail": "Application not found"}
        if application.get("uid") != uid or not application.get("name"):
            return 422, {"detail": "Application UID in the path and body must match"}
        state.applications.add(uid)
    names = body.get("eventType"), body.get("eventId")
    if not all(isinstance(name, str) and _SVIX_NAME.fullmatch(name) for name in names):
        return 422, {"detail": "eventType, eventId"}
    if not isinstance(body.get("payload"), dict):
        return 422, {"detail": "payload"}
    message = Accepted(uid, body["eventId"], body["eventType"], body["payload"])
    if not state.keep(message):
        return 409, {"code": "conflict", "detail": "A message with this eventId exists"}
    return 202, {"id": "msg_1srOrx2ZWZBpBUvZwXKQmoEYga2", **body}


def _accept_for_outpost(state: State, body: dict[str, Any]) -> tuple[int, object]:
    if not body.get("tenant_id") or not isinstance(body.get("data"), dict):
        return 422, {"message": "validation error", "data": ["data must be a valid JSON object"]}
    if not _OUTPOST_TOPIC.fullmatch(body.get("topic", "")):
        return 422, {"message": "validation error", "data": ["topic is invalid"]}
    message = Accepted(body["tenant_id"], body["id"], body["topic"], body["data"])
    is_new = state.keep(message)
    return 202, {"id": message.id, "duplicate": not is_new, "destination_ids": ["des_1"]}


def main() -> None:
    """Serve until the process ends."""
    handler = type("BoundHandler", (Handler,), {"state": State()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
