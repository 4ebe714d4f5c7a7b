"""What the clients of every load share: they repeat a request until its answer is definite."""

import asyncio
import contextlib
import itertools
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, NamedTuple

from bench.events import sign
from bench.support import SECRET
from bench.torture.client import NO_ANSWER, OK, ClientAnswer, LoadClient
from bench.torture.deployment import Deployment

UNAVAILABLE: Final = 503
BY_BALANCER: Final = (502, 504)
"""A balancer's answers for a host that does not answer."""
INDEFINITE: Final = (NO_ANSWER, UNAVAILABLE, *BY_BALANCER)
"""After these a client does not know whether the request took effect."""
NO_CONTENT: Final = 204
LIST: Final = "/api/v1/projects"
KEYS: Final = "/api/v1/api-keys"
MEMBERS: Final = "/api/v1/members"
TENANTS: Final = "/api/v1/tenants"
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
RETRY_PAUSE: Final = 0.1
TIMEOUT: Final = 15.0


Work = Callable[[LoadClient, int], Awaitable[None]]
"""What a client does in a turn; it gets the number of the turn."""


class ApiRequest(NamedTuple):
    """A request to the API of a client with a credential."""

    kind: str
    """Its name in counts."""
    method: str
    path: str
    credential: str
    document: Mapping[str, object] | None = None
    """The body; None for none."""
    idempotency_key: str = ""


class AnsweredRequest(NamedTuple):
    """One request, when its answer came on the monotonic clock, and how long it took in seconds."""

    at: float
    kind: str
    status: int
    took: float
    has_retry_after: bool
    is_success: bool
    """Whether the status is one that this kind of request expects."""

    @property
    def is_retryable(self) -> bool:
        """Whether it is a 503 with ``Retry-After``."""
        return self.status == UNAVAILABLE and self.has_retry_after


class Answer(NamedTuple):
    """A status, and the answered object: empty if the answer is none."""

    status: int
    content: dict[str, Any]


class Clients(ABC):
    """Clients that work until `end`."""

    successes: ClassVar[Mapping[str, Collection[int]]] = {}
    """The statuses that count as success, by kind of request."""

    def __init__(self, site: Deployment, chance: random.Random, pause: float) -> None:
        """``pause`` is the mean of seconds between a client's requests."""
        self.is_over = False
        self.requests: list[AnsweredRequest] = []
        """Every request, in order."""
        self._site = site
        self._chance = chance
        self._pause = pause

    @abstractmethod
    def _work(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return what each client does."""

    async def run(self) -> None:
        """Run all clients until `end`."""
        await asyncio.gather(*self._work())

    def end(self) -> None:
        """Begin nothing new."""
        self.is_over = True

    def _note(self, kind: str, answer: ClientAnswer, began: float) -> None:
        """Note a request that began at a moment of the monotonic clock."""
        now, is_success = time.monotonic(), answer.status in self.successes.get(kind, ())
        self.requests.append(
            AnsweredRequest(
                now, kind, answer.status, now - began, answer.has_retry_after, is_success
            )
        )

    def client(self, patience: float = TIMEOUT) -> AbstractContextManager[LoadClient]:
        """Return a client of any set of servers."""
        client = LoadClient(self._site.ports, self._chance, patience, host=self._site.host)
        return contextlib.closing(client)

    async def repeat(
        self,
        work: Work,
        *,
        patience: float = TIMEOUT,
        pause: float | None = None,
    ) -> None:
        """Do something until `end`, with the number of the turn, and rest after each turn.

        ``patience`` is how many seconds each request may take.
        """
        with self.client(patience) as client:
            for number in itertools.count():
                if self.is_over:
                    return
                await work(client, number)
                await self.rest(pause)

    async def rest(self, pause: float | None = None) -> None:
        """Wait for the mean pause, or another one, more or less."""
        await asyncio.sleep(self._chance.expovariate(1 / (pause or self._pause)))

    async def request(self, client: LoadClient, request: ApiRequest) -> Answer:
        """Send a request once."""
        header = f"Authorization: Bearer {request.credential}"
        if request.idempotency_key:
            header += f"\r\nIdempotency-Key: {request.idempotency_key}"
        body = b"" if request.document is None else json.dumps(request.document).encode()
        began = time.monotonic()
        answer = await client.send(request.method, request.path, header, body)
        self._note(request.kind, answer, began)
        is_object = answer.body.startswith(b"{")  # a load balancer's own answer is a page
        return Answer(answer.status, json.loads(answer.body) if is_object else {})

    async def request_until_definite(self, client: LoadClient, request: ApiRequest) -> Answer:
        """Repeat a request until its answer is definite."""
        while True:
            answer = await self.request(client, request)
            is_pending = answer.content.get("code") == "idempotency_in_flight"
            if answer.status not in INDEFINITE and not is_pending:
                return answer
            await asyncio.sleep(RETRY_PAUSE)

    async def deliver(self, kind: str, client: LoadClient, body: bytes) -> bool:
        """Send an event of the provider, signed now; return whether it is acknowledged."""
        began = time.monotonic()
        signature = f"Provider-Signature: {sign(body, SECRET)}"
        answer = await client.send("POST", WEBHOOK, signature, body)
        self._note(kind, answer, began)
        return answer.status == OK
