"""``tenantry status``: the service, the credential, the tenant, and the use of its limits."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

import click
import msgspec

from tenantry_cli.api_command import ServiceCommand, exiting_on_failure
from tenantry_cli.client_configuration import ClientConfiguration, ServiceOptions, Target
from tenantry_cli.output import (
    OUT_OF_REACH,
    CommandError,
    access_words,
    print_record,
    shown,
    subscription_words,
)
from tenantry_sdk import (
    Health,
    Limits,
    Pager,
    Plan,
    Secret,
    Tenant,
    Tenantry,
    Whoami,
    record_responses,
)
from tenantry_sdk.errors import (
    APIError,
    PermissionDeniedError,
    TenantryError,
    UnreadableAnswerError,
)

_SECONDS: Final = 10.0
_MOST_COUNTED: Final = 1000
_PAGE: Final = 100
_RATE: Final = re.compile(r'"(tenant|key)";([qr])=(\d{1,9})')
_READY: Final = "ok"
_UNKNOWN: Final = "unknown"
_LIMITS: Final = {
    "requestsPerMinute": "requests a minute",
    "requestsPerMinutePerKey": "of this credential",
    "apiKeys": "API keys",
    "projects": "projects",
    "members": "members",
}
_NO_KEY: Final = Secret("none")
"""The health check sends no credential, whatever the environment has."""


class LimitUse(msgspec.Struct, rename="camel"):
    """The use of a limit. ``used`` is None if the credential may not see it, and ``is_least`` if
    there is more.
    """

    limit: int | None
    used: int | None = None
    is_least: bool = False

    @property
    def words(self) -> str:
        """Describe it for people."""
        if self.limit is None:
            return "no limit"
        used = "?" if self.used is None else f"{self.used:,}{' or more' if self.is_least else ''}"
        return f"{used} of {self.limit:,}"


@click.command(
    "status",
    cls=ServiceCommand,
    json_help="As one JSON document; after a failure with what is known until then.",
)
def status(service: ServiceOptions, *, as_json: bool) -> None:
    """Show whether the service is ready, who you are there, and how much of the limits is used.

    \b
      tenantry status
      tenantry status --json --profile staging

    Limits without add-ons; "?" where your credential may not count. Exits with 0 if the service is
    ready and accepts the credential, with 4 if there is no credential or it is rejected, and with 6
    if the service does not answer or is not ready.
    """
    configuration = ClientConfiguration(service, os.environ)
    address, demo = configuration.address()
    probe = Target(
        configuration.name,
        address,
        None,
        _NO_KEY,
        None,
        "",
        demo,
    )
    with exiting_on_failure(probe, as_json=as_json):
        health = _health(probe)
    known: dict[str, Any] = {
        "service": address.value,
        "profile": configuration.name,
        "health": health,
    }
    rows = [
        ("service", f"{address.value} (from {address.source})"),
        ("health", _health_words(health)),
        ("profile", configuration.name),
    ]
    with _printing_on_failure(known, rows, as_json=as_json):
        if health.status not in {_READY, _UNKNOWN}:
            message = f"The service at {address.value} is {_health_words(health)}."
            raise CommandError(message, OUT_OF_REACH)
        target = configuration.target()
    known["credential"] = target.credential
    rows.append(("credential", f"from {target.credential}"))
    with (
        exiting_on_failure(target, as_json=as_json),
        _printing_on_failure(known, rows, as_json=as_json),
        target.client(timeout=_SECONDS) as client,
    ):
        who, limits = _whoami(client)
        plan = list(plan_rows(client, who, with_limits=False))
    rows[-1] = ("credential", f"{principal_words(who)} from {target.credential}")
    rows += [
        ("expires", expiry_words(who, target)),
        ("may", scope_words(who)),
        ("organization", f"{who.org_id}, {who.mode} mode"),
        *plan,
        *((_LIMITS[name], use.words) for name, use in limits.items()),
    ]
    document = {**known, **msgspec.to_builtins(who), "limits": limits}
    print_record(document, rows, as_json=as_json)


@contextmanager
def _printing_on_failure(
    known: dict[str, Any], rows: list[tuple[str, str]], *, as_json: bool
) -> Iterator[None]:
    """Print what is known until then if the block fails."""
    try:
        yield
    except (CommandError, TenantryError):
        print_record(known, rows, as_json=as_json)
        raise


def _health(probe: Target) -> Health:
    """Ask the service whether it is ready; unknown if a proxy answers. Raises `TenantryError` if
    nothing does.
    """
    with probe.client(timeout=_SECONDS, retries=0) as client, record_responses() as responses:
        try:
            return client.health.ready()
        except (APIError, UnreadableAnswerError):
            if not responses:  # its body was too large
                raise
            is_unavailable = responses[-1].status_code == HTTPStatus.SERVICE_UNAVAILABLE
            return Health(status="unavailable" if is_unavailable else _UNKNOWN)


def _health_words(health: Health) -> str:
    if health.status == _READY:
        return "ready"
    waiting = f", waiting for {', '.join(health.waiting_for)}" if health.waiting_for else ""
    return f"{health.status}{waiting}"


def effective_plan(client: Tenantry, of: Whoami | Tenant) -> Plan | None:
    """Fetch the plan whose limits count; None if it has left the catalog. Raises
    `TenantryError`.
    """
    return next((plan for plan in client.plans.list() if plan.id == of.access.plan), None)


def plan_rows(
    client: Tenantry, of: Whoami | Tenant, *, with_limits: bool = True
) -> Iterator[tuple[str, str]]:
    """Describe plan and access; for a tenant on the fallback plan, that plan and its limits. Raises
    `TenantryError`.
    """
    from tenantry_cli._plan_words import limit_words  # noqa: PLC0415  # not every command needs it

    status = subscription_words(of.subscription_status)
    access = of.access
    if access.state == "none" and access.plan == of.plan:
        plan = effective_plan(client, of)
        if plan is not None:
            yield "plan", f"{plan.name} plan, {status}"
            if with_limits:
                yield "limits", limit_words(plan.limits)
            return
    yield "plan", f"{of.plan}, {status}"
    yield "access", access_words(access)


def _whoami(client: Tenantry) -> tuple[Whoami, dict[str, LimitUse]]:
    with record_responses() as responses:
        who = client.auth.whoami()
    rates = _rates(responses[-1].headers)
    plan = effective_plan(client, who)
    limits = plan.limits if plan is not None else Limits()
    sees_all = who.mode == "live"  # a test key does not see the keys of live mode, nor members
    uses = {
        "apiKeys": _use(limits.api_keys, _keys(client), visible=sees_all),
        "projects": _use(limits.projects, _items(client.projects.list)),
        "members": _use(limits.members, _members(client), visible=sees_all),
    }
    return who, {**rates, **uses}


def _rates(headers: Any) -> dict[str, LimitUse]:  # noqa: ANN401  # any mapping
    """Read the RateLimit headers: the requests of the last minute, for the organization and for the
    credential.
    """
    found = {
        (policy, kind): int(number)
        for name in ("ratelimit-policy", "ratelimit")
        for policy, kind, number in _RATE.findall(headers.get(name, ""))
    }
    names = {"tenant": "requestsPerMinute", "key": "requestsPerMinutePerKey"}
    return {
        name: LimitUse(found[policy, "q"], max(0, found[policy, "q"] - found[policy, "r"]))
        for policy, name in names.items()
        if (policy, "q") in found and (policy, "r") in found
    }


def _use(limit: int | None, items: Iterator[object], *, visible: bool = True) -> LimitUse:
    """Count the items, which are fetched only if there is a limit, up to 1,000."""
    if limit is None or not visible:
        return LimitUse(limit)
    try:
        number = sum(1 for _ in islice(items, _MOST_COUNTED))
    except PermissionDeniedError:
        return LimitUse(limit)
    return LimitUse(limit, number, is_least=number == _MOST_COUNTED)


def _items(find: Callable[..., Pager[Any]], **filters: str) -> Iterator[Any]:
    return iter(find(limit=_PAGE, **filters))


def _keys(client: Tenantry) -> Iterator[object]:
    """Yield the keys that count: the active ones that were not replaced."""
    return (
        key for key in _items(client.api_keys.list, status="active") if key.superseded_by is None
    )


def _members(client: Tenantry) -> Iterator[object]:
    return (member for member in _items(client.members.list) if member.removed_at is None)


def principal_words(who: Whoami) -> str:
    """Say who the caller is."""
    return f"{who.id} ({'API key' if who.kind == 'api_key' else who.kind})"


def scope_words(who: Whoami) -> str:
    """Say what the caller may do."""
    return (
        "everything (OWNER)" if who.access_level == "OWNER" else " ".join(who.scopes) or "nothing"
    )


def expiry_words(who: Whoami, target: Target) -> str:
    """Say when the credential expires."""
    if who.expires_at is None:
        return "never"
    note = ", renewed automatically" if target.tokens is not None else ""
    return f"{shown(who.expires_at)}{note}"
