"""The API: keys, versions, idempotency, and the routes."""

import hmac
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tenantry_devkit.simulator.api.billing_routes import BillingRoutes
from tenantry_devkit.simulator.api.customer_routes import CustomerRoutes
from tenantry_devkit.simulator.api.event_routes import EventRoutes
from tenantry_devkit.simulator.api.parameters import Parameters
from tenantry_devkit.simulator.api.routes import Call, Handler, Route, expand
from tenantry_devkit.simulator.asgi import Answer, Request
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.errors import ApiError
from tenantry_devkit.simulator.rendering import render
from tenantry_devkit.simulator.shapes import Json, Shape

_FORM: Final = "application/x-www-form-urlencoded"
_SHOWN: Final = 4
_LONGEST_KEY: Final = 255


class Api:
    """Answers requests under ``/v1``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._account = engine.account
        self._routes: list[Route] = [
            *BillingRoutes(engine).routes(),
            *CustomerRoutes(engine).routes(),
            *EventRoutes(engine).routes(),
        ]
        self._kept: dict[str, tuple[object, str, Answer]] = {}

    def answer(self, request: Request) -> Answer:
        """The answer to a request; its ``Request-Id`` is what the events that it causes name."""
        request_id = self._account.ids.new("req")
        version = request.headers.get("stripe-version") or self._account.api_version
        try:
            answer = self._authorized(request, request_id, version)
        except ApiError as error:
            answer = Answer.json(error.body(), error.status)
            if error.status == 401:  # noqa: PLR2004
                answer.headers["WWW-Authenticate"] = 'Bearer realm="Stripe"'
        return replace(answer, headers={"Request-Id": request_id, "Stripe-Version": version, **answer.headers})

    def _authorized(self, request: Request, request_id: str, version: str) -> Answer:
        self._check_key(request.headers.get("authorization", ""))
        parameters = Parameters.parse(request.query, _form(request))
        key = request.headers.get("idempotency-key") if request.method == "POST" else None
        if key is None:
            return self._act(request, parameters, version, request_id, None)
        if len(key) > _LONGEST_KEY:
            raise ApiError(400, f"Idempotency keys have at most {_LONGEST_KEY} characters.", type="idempotency_error")
        fingerprint = (request.path, parameters.values)
        if key in self._kept:
            return self._again(key, fingerprint)
        answer = self._act(request, parameters, version, request_id, key)
        self._kept[key] = fingerprint, request_id, answer
        return answer

    def _check_key(self, authorization: str) -> None:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key:
            message = "You did not provide an API key. You need to provide it in the Authorization header, as a Bearer."
            raise ApiError(401, message)
        if not hmac.compare_digest(key.encode(), self._engine.secret_key.encode()):
            masked = "*" * max(0, len(key) - _SHOWN) + key[-_SHOWN:]
            raise ApiError(401, f"Invalid API Key provided: {masked}")

    def _again(self, key: str, fingerprint: object) -> Answer:
        first, request_id, answer = self._kept[key]
        if first != fingerprint:
            message = (
                "Keys for idempotent requests can only be used with the same parameters they were first used with. "
                f"Try using a key other than '{key}' if you meant to execute a different request."
            )
            raise ApiError(400, message, type="idempotency_error")
        return replace(answer, headers={"Idempotent-Replayed": "true", "Original-Request": request_id})

    def _act(self, request: Request, parameters: Parameters, version: str, request_id: str, key: str | None) -> Answer:
        handler, ids = self._find(request)
        shape = Shape.of(version)
        with self._account.request(request_id, key):
            try:
                body = handler(Call(request.path, ids, parameters, shape))
            except ApiError as error:
                # A charge that was declined did happen: it is an answer like others, and kept with the key.
                if error.status != 402:  # noqa: PLR2004
                    raise
                return Answer.json(error.body(), error.status)
        expand(body, parameters.texts("expand"), lambda field, wanted: self._related(field, wanted, shape))
        return Answer.json(body)

    def _find(self, request: Request) -> tuple[Handler, tuple[str, ...]]:
        for route in self._routes:
            ids = route.ids(request.method, request.path)
            if ids is not None:
                return route.handler, ids
        raise ApiError(404, f"Unrecognized request URL ({request.method}: {request.path}).")

    def _related(self, field: str, wanted: str, shape: Shape) -> Json | None:
        account = self._account
        tables: dict[str, Mapping[str, object]] = {
            "customer": account.customers,
            "subscription": account.subscriptions,
            "latest_invoice": account.invoices,
            "price": account.prices,
        }
        thing = tables.get(field, {}).get(wanted)
        return None if thing is None else render(thing, shape)


def _form(request: Request) -> str:
    content_type = request.headers.get("content-type", _FORM).partition(";")[0].strip().lower()
    if request.body and content_type != _FORM:
        raise ApiError(400, f"Invalid request: the body must be {_FORM}.")
    return request.body.decode("utf-8", "replace")
