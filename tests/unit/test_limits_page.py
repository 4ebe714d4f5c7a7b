"""docs/reference/limits.md says what the code has."""

from pathlib import Path

from tenantry.auth import rejection_throttle
from tenantry.common.clock import DEFAULT_TIMEOUTS
from tenantry.dashboard.cookies import MOST_READ
from tenantry.integrations.oidc import sign_in
from tenantry.integrations.oidc.claim_checks import MAX_TOKEN_BYTES
from tenantry.integrations.stripe.signature import MOST_SIGNATURES
from tenantry.server import asgi_types, client_limits, repeated_items
from tenantry.server.load_shedding import MAX_WAIT, MIN_CONCURRENT
from tenantry.settings import Settings
from tests.support.cases import cases

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
LIMITS = client_limits.ClientLimits()


@cases(
    ("limit", "value"),
    [
        ("the first request's head, since the client connected", f"{LIMITS.head:g} s"),
        ("each further request's head, since its first byte", f"{LIMITS.head:g} s"),
        ("a body, since its head, or since the answers before it", f"{LIMITS.body:g} s"),
        ("an answer that the client stops reading", f"{LIMITS.reading:g} s"),
        (
            "the service's own answer, since the request was received",
            f"{DEFAULT_TIMEOUTS.request:g} s",
        ),
        (
            "a request's head: target, names and values of fields",
            f"{client_limits.MAX_HEAD_BYTES} bytes",
        ),
        ("a credential", f"{MAX_TOKEN_BYTES} bytes"),
        ("fields in a head", f"{client_limits.MAX_HEADERS}"),
        ("target: path and query", f"{client_limits.MAX_TARGET_BYTES} bytes"),
        ("a body, on every route", f"{asgi_types.MAX_BODY} bytes"),
        ("a body of unknown length, in chunks", f"{client_limits.MAX_CHUNKS} chunks"),
        ("the rest of a body after its answer", f"{client_limits.MAX_DISCARDED_BYTES} bytes"),
        ("connections of a process, `MAX_CONNECTIONS`", f"{Settings.max_connections.default}"),
        (
            "pipelined requests on a connection that wait for an earlier answer",
            f"{client_limits.MAX_PIPELINED}",
        ),
        (
            "requests in progress",
            f"as many as are answered in {MAX_WAIT:g} s, at least {MIN_CONCURRENT}",
        ),
        ("rejected credentials per second", f"{rejection_throttle.CREDENTIALS_PER_SECOND}"),
        (
            "other rejected anonymous requests per second: unknown addresses, wrong signatures, malformed bodies",
            f"{rejection_throttle.ANONYMOUS_PER_SECOND}",
        ),
        (
            "list items, parameters and cookies, in all header values together",
            f"{repeated_items.MAX_LIST_ITEMS}",
        ),
        (
            "addresses in `X-Forwarded-For`, behind a trusted proxy",
            f"{client_limits.MAX_FORWARDED}",
        ),
        ("parameters of a query", f"{repeated_items.MAX_PARAMETERS}"),
        ("segments of a path", f"{repeated_items.MAX_SEGMENTS}"),
        ("fields of a form", f"{repeated_items.MAX_FIELDS}"),
        (
            "members of objects and items of lists in a JSON body, at any depth",
            f"{repeated_items.MAX_MEMBERS}",
        ),
        (
            "the same in an [import of keys](../how-to/import-keys.md), which needs the operator's token",
            f"{repeated_items.MAX_IMPORT_MEMBERS}",
        ),
        ("signatures in the header of an event", f"{MOST_SIGNATURES}"),
        ("cookies of sign-ins in progress", f"{MOST_READ}"),
        (
            "sign-ins of a process whose authorization code is being redeemed",
            f"{sign_in.MOST_REDEMPTIONS}",
        ),
    ],
)
def test_limit_matches_the_page(limit: str, value: str) -> None:
    assert f"\n| {limit} | {value} |" in PAGE
