"""The payment provider's HTTP API, in the test's own event loop, as far as tenantry uses it."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tenantry_devkit.simulator import PRICES

KEY: Final = "sk_test_51ThisIsOnlyForTests"
DATE: Final = "Thu, 01 Jan 2026 12:00:00 GMT"
"""`tests.support.events.NOW` as the provider writes it into the headers of its answers."""
_PATIENCE: Final = 20.0
_PRICES: Final = "/v1/prices/"


class Request(NamedTuple):
    """A request as it came in; ``params`` are those of the form or the query, by their bracketed
    names.
    """

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]


class Answer(NamedTuple):
    status: int
    body: object
    headers: Mapping[str, str] = {}


def refusal(status: int, *, type: str = "invalid_request_error", **details: str) -> Answer:  # noqa: A002
    """An error as the provider words it; it asks the client not to retry."""
    return Answer(status, {"error": {"type": type, **details}}, {"Stripe-Should-Retry": "false"})


def endpoint(
    number: int, url: str, events: Sequence[str], status: str = "enabled"
) -> dict[str, Any]:
    """A webhook endpoint of the account."""
    return {
        "id": f"we_{number:04}",
        "object": "webhook_endpoint",
        "url": url,
        "enabled_events": list(events),
        "status": status,
    }


def monthly_price(amount: int) -> dict[str, Any]:
    """A price that is for sale, as far as tenantry reads it."""
    recurring = {"interval": "month"}
    return {"active": True, "currency": "eur", "unit_amount": amount, "recurring": recurring}


class ProviderServer:
    """Answers one API key; keeps idempotency keys and connections as the provider does.

    ``subscriptions`` are those of the customers that it knows, and ``events`` the account's, the
    newest first in both; ``sessions`` are completed checkout sessions, and ``checkouts`` has the
    status of those that it made, ``purchases`` the subscriptions that these made; ``prices`` are
    what it says of those that it knows. ``answers`` are used up before it answers for itself;
    ``hang_up`` many connections are cut instead of an answer; while ``open`` is not set, requests
    are taken but not answered; ``prices_open`` is that of requests for prices. The service reads
    prices by itself, so requests for them and answers
    to them are apart: ``price_requests`` and ``price_answers``. So are those of the Billing page,
    which asks about a customer: ``page_requests``, which ``page_answer`` answers if there is one.
    ``date`` is the header of every answer, or None.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.price_requests: list[Request] = []
        self.page_requests: list[Request] = []
        self.answers: deque[Answer] = deque()
        self.price_answers: deque[Answer] = deque()
        self.page_answer: Answer | None = None
        self.endpoints: list[dict[str, Any]] = []
        self.prices: dict[str, dict[str, Any]] = {
            price_id: monthly_price(amount) for price_id, amount in PRICES.items()
        }
        self.subscriptions: dict[str, list[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self.sessions: list[dict[str, Any]] = []
        self.checkouts: dict[str, str] = {}
        self.purchases: dict[str, dict[str, Any]] = {}
        self.date: str | None = DATE
        self.connections = 0
        self.hang_up = 0
        self.open = asyncio.Event()
        self.open.set()
        self.prices_open = asyncio.Event()
        self.prices_open.set()
        self._idempotent_answers: dict[str, tuple[Request, Answer | None]] = {}
        self._change = asyncio.Condition()
        self._connected: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Be away: kept connections are cut, new ones refused."""
        if self._server is not None:
            self._server.close()
            await self.cut()
            await self._server.wait_closed()
            self._server = None

    def forget(self) -> None:
        """Begin anew with no request and no answer prepared or kept; connections stay."""
        self.requests.clear()
        self.answers.clear()
        self.price_requests.clear()
        self.price_answers.clear()
        self.page_requests.clear()
        self.page_answer = None
        self.checkouts.clear()
        self.purchases.clear()
        self._idempotent_answers.clear()
        self.open.set()
        self.prices_open.set()

    async def cut(self) -> None:
        """Close every connection."""
        for writer in self._connected:
            writer.close()
        await self.until_left()

    async def until_requested(self, times: int) -> None:
        """Wait for request number ``times``."""
        async with asyncio.timeout(_PATIENCE), self._change:
            await self._change.wait_for(lambda: len(self.requests) >= times)

    async def until_asked_for_prices(self, times: int) -> None:
        """Wait for request number ``times`` for a price."""
        async with asyncio.timeout(_PATIENCE), self._change:
            await self._change.wait_for(lambda: len(self.price_requests) >= times)

    async def until_page_requested(self, times: int) -> None:
        """Wait for request number ``times`` of the Billing page."""
        async with asyncio.timeout(_PATIENCE), self._change:
            await self._change.wait_for(lambda: len(self.page_requests) >= times)

    async def until_left(self) -> None:
        """Wait until no client is connected."""
        async with asyncio.timeout(_PATIENCE), self._change:
            await self._change.wait_for(lambda: not self._connected)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._connected.add(writer)
        # The client may hang up at any time, which is its right.
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer):
                pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        async with self._change:
            self._connected.remove(writer)
            self._change.notify_all()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take a request and answer it; whether the connection is kept."""
        request = await _read(reader)
        kept = self._requests_like(request)
        async with self._change:
            kept.append(request)
            self._change.notify_all()
        if self.hang_up and kept is self.requests:
            self.hang_up -= 1
            return False
        answer = await self._answer(request)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        headers = {
            "Content-Length": len(body),
            "Request-Id": f"req_{len(self.requests)}",
            **({"Date": self.date} if self.date else {}),
            **answer.headers,
        }
        top = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        writer.write(f"HTTP/1.1 {answer.status} -\r\n{top}\r\n".encode() + body)
        await writer.drain()
        return answer.headers.get("Connection") != "close"

    def _requests_like(self, request: Request) -> list[Request]:
        """Return the list that a request belongs to."""
        if request.path.startswith(_PRICES):
            return self.price_requests
        return self.page_requests if _is_of_page(request) else self.requests

    async def _answer(self, request: Request) -> Answer:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            # The real one masks what it repeats; this one does not, to find code that passes it on.
            return refusal(
                401, message=f"Invalid API Key provided: {request.headers.get('authorization')}"
            )
        key = request.headers.get("idempotency-key")
        if request.method != "POST" or key is None:
            is_of_price = request.path.startswith(_PRICES)
            await (self.prices_open if is_of_price else self.open).wait()
            return self._act(request)
        if key not in self._idempotent_answers:
            self._idempotent_answers[key] = request, None
            await self.open.wait()
            answer = self._act(request)
            self._idempotent_answers[key] = request, answer
            if 400 <= answer.status < 500:  # nothing was begun, so nothing is kept
                del self._idempotent_answers[key]
            return answer
        first, kept = self._idempotent_answers[key]
        if (first.path, first.params) != (request.path, request.params):
            return refusal(
                400,
                type="idempotency_error",
                message="Keys can only be used with the same parameters.",
            )
        if kept is None:
            return refusal(
                409,
                code="idempotency_key_in_use",
                message="There is another request with this key.",
            )
        return kept

    def _act(self, request: Request) -> Answer:
        if request.path.startswith(_PRICES):
            return self.price_answers.popleft() if self.price_answers else self._price(request)
        if _is_of_page(request):
            return self.page_answer or self._of_customer(request)
        if self.answers:
            return self.answers.popleft()
        return self._make(request) if request.method == "POST" else self._list(request)

    def _of_customer(self, request: Request) -> Answer:
        if request.path == "/v1/subscriptions":
            return self._subscriptions_page(request)
        if request.path == "/v1/invoices":
            return _page(request, [])
        if request.method == "GET":
            return Answer(200, {"id": request.path.rpartition("/")[2], "object": "customer"})
        return refusal(404, code="invoice_upcoming_none", message="No upcoming invoices")

    def _make(self, request: Request) -> Answer:
        number = len(self.requests)
        match request.path:
            case "/v1/checkout/sessions":
                url = f"https://checkout.provider.example/c/{number}"
                session_id = f"cs_{len(self.checkouts) + 1}"
                self.checkouts[session_id] = "open"
                return Answer(200, {"id": session_id, "object": "checkout.session", "url": url})
            case "/v1/billing_portal/sessions":
                url = f"https://billing.provider.example/p/{number}"
                return Answer(
                    200, {"id": f"bps_{number}", "object": "billing_portal.session", "url": url}
                )
        if request.path.endswith("/expire"):
            return self._expire(request.path.split("/")[-2])
        return refusal(404, message="Unrecognized request URL")

    def _expire(self, session_id: str) -> Answer:
        status = self.checkouts.get(session_id)
        if status is None:
            return refusal(404, code="resource_missing", message=f"No such session: {session_id}")
        if status != "open":
            return refusal(400, message=f"This Session has a status of {status}.")
        self.checkouts[session_id] = "expired"
        return Answer(200, {"id": session_id, "object": "checkout.session", "status": "expired"})

    def _list(self, request: Request) -> Answer:
        match request.path:
            case "/v1/webhook_endpoints":
                return _page(request, self.endpoints)
            case "/v1/subscriptions":
                return self._subscriptions_page(request)
            case "/v1/events":
                return self._events_page(request)
            case "/v1/checkout/sessions":
                wanted = request.params["subscription"]
                return _page(
                    request, [one for one in self.sessions if one["subscription"] == wanted]
                )
        if request.path.startswith("/v1/checkout/sessions/"):
            session_id = request.path.rpartition("/")[2]
            session = {
                "id": session_id,
                "object": "checkout.session",
                "status": self.checkouts[session_id],
                "subscription": self.purchases.get(session_id),
            }
            return Answer(200, session)
        return refusal(404, message="Unrecognized request URL")

    def _price(self, request: Request) -> Answer:
        price_id = request.path.removeprefix(_PRICES)
        if price_id not in self.prices:
            return refusal(
                404,
                code="resource_missing",
                param="price",
                message=f"No such price: '{price_id}'",
            )
        return Answer(200, {"id": price_id, "object": "price", **self.prices[price_id]})

    def _subscriptions_page(self, request: Request) -> Answer:
        customer = request.params.get("customer")
        if customer is None:
            return _page(request, [one for listed in self.subscriptions.values() for one in listed])
        if customer not in self.subscriptions:
            return refusal(
                400,
                code="resource_missing",
                param="customer",
                message=f"No such customer: '{customer}'",
            )
        ended = request.params.get("status") == "all"
        return _page(
            request,
            [one for one in self.subscriptions[customer] if ended or one["status"] != "canceled"],
        )

    def _events_page(self, request: Request) -> Answer:
        types = [text for name, text in request.params.items() if name.startswith("types[")]
        since = int(request.params.get("created[gte]", "0"))
        return _page(
            request,
            [one for one in self.events if one["created"] >= since and one["type"] in types],
        )


def _is_of_page(request: Request) -> bool:
    """Whether the Billing page makes such requests, and nothing else."""
    is_expanded = any(name.startswith("expand") for name in request.params)
    is_of_customer = is_expanded and not request.path.startswith("/v1/checkout/")
    return is_of_customer or request.path.startswith("/v1/invoices")


def _page(request: Request, objects: Sequence[Mapping[str, Any]]) -> Answer:
    after, limit = request.params.get("starting_after"), int(request.params.get("limit", "10"))
    ids = [one["id"] for one in objects]
    if after is not None and after not in ids:
        return refusal(
            400,
            code="resource_missing",
            param="starting_after",
            message=f"No such object: '{after}'",
        )
    rest = objects[ids.index(after) + 1 :] if after is not None else objects
    return Answer(
        200,
        {
            "object": "list",
            "url": request.path,
            "data": rest[:limit],
            "has_more": len(rest) > limit,
        },
    )


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.splitlines()
    method, target, _ = line.split(" ")
    headers = {
        name.lower(): value for name, _, value in (field.partition(": ") for field in rest if field)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    if method == "POST" and body:
        assert headers["content-type"] == "application/x-www-form-urlencoded"
    params = dict(
        parse_qsl(
            body.decode() if method == "POST" else urlsplit(target).query, strict_parsing=bool(body)
        )
    )
    return Request(method, urlsplit(target).path, params, headers)


@asynccontextmanager
async def running_provider() -> AsyncIterator[ProviderServer]:
    """The provider, listening for the time of the block."""
    server = ProviderServer()
    await server.start()
    try:
        yield server
    finally:
        server.open.set()
        server.prices_open.set()
        await server.stop()
