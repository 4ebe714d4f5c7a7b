"""The pages of API keys: list, show, create, edit, rotate, revoke."""

import json
import shlex
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, QueryParameter
from litestar.types import ExceptionHandlersMap
from msgspec import UNSET

from tenantry.api.guards import AnyRequest
from tenantry.api.parameters import Cursor
from tenantry.auth.api_keys import NewKey
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.dashboard import api_key_form, forms
from tenantry.dashboard.api_key_form import KeyForm
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.forms import InvalidFormError
from tenantry.dashboard.guards import ORG, SubmittedForm, needs
from tenantry.dashboard.labels import SCOPE_GROUPS, FlashMessage
from tenantry.domain.access import Mode
from tenantry.domain.api_keys import SOON, ApiKey, KeyState, KeyStatus
from tenantry.domain.errors import (
    DomainError,
    IdempotencyInFlightError,
    IdempotencyReplayError,
    KeyLimitReachedError,
    KeyNotActiveError,
    LastOwnerError,
    ModeMismatchError,
    ScopeEscalationError,
    ValidationError,
)
from tenantry.server.problems import STATUSES

PATH: Final = ORG + "/settings/api-keys"
_KEY: Final = PATH + "/{key_id:str}"
_PAGE_SIZE: Final = 25
_FORM_FIELDS: Final[Mapping[str, str]] = {"scopes": "scope", "expiresAt": "until"}
"""The form's fields by those of the API, where they differ."""
_MODES: Final = (("", "Both"), ("live", "Live"), ("test", "Test"))
_STATES: Final = (
    ("", "All"),
    (KeyState.ACTIVE, "Active"),
    (KeyState.EXPIRING, f"Expiring within {SOON.days} days"),
    (KeyState.REPLACED, "Replaced, still working"),
    (KeyState.EXPIRED, "Expired"),
    (KeyState.REVOKED, "Revoked"),
    (KeyState.LEAKED, "Leaked"),
)
_OVERLAPS: Final = (("0", "Revoke it now"), ("3600", "1 hour"), ("86400", "24 hours"), ("604800", "7 days"))
"""Choices for the overlap of a rotation, in seconds."""


_ERRORS: Final[dict[type[DomainError], tuple[str, str]]] = {
    ScopeEscalationError: ("Permission denied", "{} Ask an owner of the organization."),
    ModeMismatchError: ("Permission denied", "{} Ask a user who acts in live mode."),
    KeyLimitReachedError: ("Key limit reached", "{} Revoke an unused key, or change to a larger plan."),
    KeyNotActiveError: ("This key can't be changed", "{} See its status on the key's page."),
    LastOwnerError: (
        "This is the last OWNER key",
        (
            "Create another OWNER key, rotate this one, or make a member the owner first. Otherwise only the operator "
            "of this service could create an OWNER key."
        ),
    ),
    IdempotencyInFlightError: (
        "Submitted twice",
        "The first submission is still being processed. Check the list of keys in a moment.",
    ),
}
"""Titles of error pages, and next steps. ``{}`` is the error's own text."""

KeyId = FromPath[str]
_reader = needs("api-keys:read")
_writer = needs("api-keys:write")


@get(PATH, guards=[_reader])
async def show_keys(
    ctx: Context,
    status: Annotated[str, QueryParameter(name="status", max_length=20)] = "",
    mode: Annotated[str, QueryParameter(name="mode", max_length=20)] = "",
    search: Annotated[str, QueryParameter(name="search", max_length=200)] = "",
    cursor: Cursor = None,
) -> Response[str]:
    wanted = KeyFilter(
        state=KeyState(status) if status in set(KeyState) else None,
        mode=Mode(mode) if mode in set(Mode) else None,
        search=search.strip().replace("\x00", "") or None,
    )
    fields = {"status": wanted.state, "mode": wanted.mode, "search": wanted.search}
    query = "".join(f"{field}={quote(value)}&" for field, value in fields.items() if value)
    page = await ctx.services.api_keys.list_page(ctx.principal, wanted, _PAGE_SIZE, cursor, bounded=True)
    room, replaced = await ctx.services.api_keys.count(ctx.principal)
    return ctx.render(
        "api_keys.html",
        page=page,
        room=room,
        replaced=replaced,
        plan=ctx.plan_name,
        wanted=wanted,
        states=_STATES,
        modes=_MODES,
        query=query,
        filtered=bool(query) or cursor is not None,
        is_first=cursor is None,
    )


@get(_KEY, guards=[_reader])
async def show_key(ctx: Context, key_id: KeyId) -> Response[str]:
    keys = ctx.services.api_keys
    key = await keys.get(ctx.principal, key_id)
    old = await keys.get(ctx.principal, key.rotated_from) if key.rotated_from else None
    expected = _confirmation_of(key)
    return ctx.render("api_key.html", key=key, old=old, expected=expected, overlaps=_OVERLAPS)


@get(_KEY + "/first-use", guards=[_reader])
async def show_first_use(ctx: Context, key_id: KeyId) -> Response[str]:
    return ctx.render("api_key_first_use.html", key=await ctx.services.api_keys.get(ctx.principal, key_id))


@get(PATH + "/new", guards=[_writer])
async def show_new_key(
    ctx: Context, replaces: Annotated[str, QueryParameter(name="replaces", max_length=200)] = ""
) -> Response[str]:
    return await _new_page(ctx, None, replaces)


@post(PATH + "/new", guards=[_writer])
async def create_key(ctx: Context, form: SubmittedForm) -> Response[str]:
    values, replaces = api_key_form.submitted_values(form), form.text("replaces")
    claim = await ctx.claim(form)
    try:
        valid = api_key_form.parse(values, ctx.services.clock())
        made = await forms.retry_while_in_flight(
            lambda: ctx.services.api_keys.create(
                ctx.principal,
                ctx.author,
                name=valid.name,
                scopes=valid.scopes,
                access_level=None,
                mode=valid.mode,
                expires_at=None if valid.expires_at is UNSET else valid.expires_at,
                claim=claim,
                replaces=replaces or None,
            )
        )
    except (InvalidFormError, ScopeEscalationError, KeyLimitReachedError, ValidationError) as error:
        return await _new_page(ctx, values, replaces, error)
    return _secret_page(ctx, made)


@get(_KEY + "/edit", guards=[_writer])
async def show_edit_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await _changeable_key(ctx, key_id)
    return _edit_page(ctx, key, api_key_form.values_of(key))


@post(_KEY + "/edit", guards=[_writer])
async def edit_key(ctx: Context, key_id: KeyId, form: SubmittedForm) -> Response[str]:
    key = await _changeable_key(ctx, key_id)
    values, current = api_key_form.submitted_values(form), api_key_form.current_fields(key)
    changed, conflicts = forms.find_edits(form, values.editable, current)
    values = api_key_form.only_changed(values, changed, key)
    if conflicts:
        return _edit_page(ctx, key, values, conflict=_conflict_text(current, conflicts))
    try:
        valid = api_key_form.parse(values, ctx.services.clock(), key)
        await ctx.services.api_keys.update(
            ctx.principal,
            ctx.author,
            key_id,
            name=valid.name if "name" in changed else UNSET,
            scopes=valid.scopes if "scopes" in changed else UNSET,
            expires_at=valid.expires_at,
        )
    except (InvalidFormError, ScopeEscalationError, KeyNotActiveError, LastOwnerError, ValidationError) as error:
        return _edit_page(ctx, key, values, error)
    return ctx.redirect_with(FlashMessage.KEY_SAVED, _path_of(ctx, key_id))


@get(_KEY + "/rotate", guards=[_writer])
async def show_rotate_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await _changeable_key(ctx, key_id)
    if key.superseded_by is not None:
        raise KeyNotActiveError("The key was already rotated.")
    return _rotate_page(ctx, key)


@post(_KEY + "/rotate", guards=[_writer])
async def rotate_key(ctx: Context, key_id: KeyId, form: SubmittedForm) -> Response[str]:
    claim, keys = await ctx.claim(form), ctx.services.api_keys
    seconds = form.text("overlap")
    if seconds not in dict(_OVERLAPS):
        error = {"overlap": "Choose how long the old key keeps working."}
        return _rotate_page(ctx, await _changeable_key(ctx, key_id), errors=error)
    overlap = timedelta(seconds=int(seconds))
    old = await keys.get(ctx.principal, key_id)
    try:
        made = await forms.retry_while_in_flight(
            lambda: keys.rotate(ctx.principal, ctx.author, key_id, overlap=overlap, claim=claim)
        )
    except KeyLimitReachedError as limit:
        return _rotate_page(ctx, old, STATUSES[type(limit)], problem=_error_text(limit))
    # No more queries: if one failed now, the secret would be lost.
    ends = made.record.created_at + overlap if overlap else None
    if ends is not None and old.expires_at is not None:
        ends = min(ends, old.expires_at)
    return _secret_page(ctx, made, old_id=key_id, old_ends=ends)


@get(_KEY + "/revoke", guards=[_writer])
async def show_revoke_key(ctx: Context, key_id: KeyId) -> Response[str]:
    return _revoke_page(ctx, await _changeable_key(ctx, key_id))


@post(_KEY + "/revoke", guards=[_writer])
async def revoke_key(ctx: Context, key_id: KeyId, form: SubmittedForm) -> Response[str]:
    key = await _writable_key(ctx, key_id)
    typed, force = form.text("word"), form.checked("force")
    if forms.confirmation_text(typed, "") != _confirmation_of(key):
        errors = {"word": "This is not the key's name. Type it again."}
        return _revoke_page(ctx, key, errors=errors, typed=typed, force=force)
    try:
        await ctx.services.api_keys.revoke(ctx.principal, ctx.author, key_id, force=force)
    except LastOwnerError as error:
        return _revoke_page(ctx, key, STATUSES[type(error)], typed=typed, problem=_error_text(error))
    return ctx.redirect(_path_of(ctx, key_id))


async def _writable_key(ctx: PageContext, key_id: str) -> ApiKey:
    """Return a key that the user's role may change. Raises `NotFoundError` and `ScopeEscalationError`."""
    key = await ctx.services.api_keys.get(ctx.principal, key_id)
    ctx.principal.require_holding((), key.access_level)
    return key


async def _changeable_key(ctx: PageContext, key_id: str) -> ApiKey:
    """Return an active key. Raises as `_writable_key` does, and `KeyNotActiveError`."""
    key = await _writable_key(ctx, key_id)
    if key.status is not KeyStatus.ACTIVE:
        raise KeyNotActiveError(f"The key is {key.status}.")
    return key


def _path_of(ctx: PageContext, key_id: str) -> str:
    return f"{ctx.user.base}/settings/api-keys/{key_id}"


def _confirmation_of(key: ApiKey) -> str:
    return forms.confirmation_text(key.name, key.last4)


async def _new_page(
    ctx: PageContext, values: KeyForm | None, replaces: str, error: Exception | None = None
) -> Response[str]:
    replaced = await _writable_key(ctx, replaces) if replaces else None
    if replaced and (replaced.leak_reported_at is None or replaced.superseded_by is not None):
        raise KeyNotActiveError("The key was not reported as leaked, or it already has a replacement.")
    if values is None:
        old = api_key_form.values_of(replaced) if replaced else KeyForm()
        values = msgspec.structs.replace(old, expiry=KeyForm().expiry)
    return _form_page(ctx, "api_key_new.html", values, error, replaced=replaced)


def _edit_page(
    ctx: PageContext, key: ApiKey, values: KeyForm, error: Exception | None = None, conflict: str = ""
) -> Response[str]:
    digests = forms.field_digests(api_key_form.current_fields(key))
    return _form_page(
        ctx, "api_key_edit.html", values, error, kept=key.scopes, conflict=conflict, key=key, digests=digests
    )


def _form_page(
    ctx: PageContext,
    template: str,
    values: KeyForm,
    error: Exception | None,
    *,
    kept: Collection[str] = (),
    conflict: str = "",
    **context: object,
) -> Response[str]:
    """Render the form. It offers the scopes that the user holds, and those that the key already has (``kept``)."""
    errors: dict[str, str] = {}
    problem, status_code = conflict, 409 if conflict else 0
    if isinstance(error, InvalidFormError):
        errors = error.errors
    elif isinstance(error, ValidationError):
        errors = {_FORM_FIELDS.get(field, field): f"{text[:1].upper()}{text[1:]}." for field, text in error.faults}
    elif isinstance(error, DomainError):
        problem, status_code = _error_text(error), STATUSES[type(error)]
    now, may = ctx.services.clock(), ctx.user.may
    groups = [
        (name, {scope: text for scope, text in group.items() if may(scope) or scope in kept})
        for name, group in SCOPE_GROUPS.items()
    ]
    return ctx.render(
        template,
        status_code,
        values=values,
        errors=errors,
        problem=problem,
        scope_groups=[(name, scopes) for name, scopes in groups if scopes],
        days=[(count, now + timedelta(days=int(count))) for count in api_key_form.DAYS],
        today=now.date(),
        **context,
    )


def _rotate_page(ctx: PageContext, key: ApiKey, status_code: int = 0, **context: object) -> Response[str]:
    return ctx.render("api_key_rotate.html", status_code, key=key, overlaps=_OVERLAPS, **context)


def _revoke_page(
    ctx: PageContext, key: ApiKey, status_code: int = 0, *, force: bool = False, **context: object
) -> Response[str]:
    return ctx.render(
        "api_key_revoke.html", status_code, key=key, expected=_confirmation_of(key), force=force, **context
    )


def _secret_page(
    ctx: PageContext, made: NewKey, old_id: str | None = None, old_ends: datetime | None = None
) -> Response[str]:
    """Render the only page that shows the secret. ``old_ends`` is None if the replaced key has ended."""
    samples = _sample_requests(ctx.services.base_url, ctx.services.command, made.secret)
    return ctx.render(
        "api_key_secret.html", key=made.record, secret=made.secret, samples=samples, old_id=old_id, old_ends=old_ends
    )


def _conflict_text(current: dict[str, str], fields: set[str]) -> str:
    """Say what another user changed of a key while a form was open."""
    now = "; ".join(f"{name}: {current[name]}" for name in ("name", "scopes", "expiry") if name in fields)
    return f"Another user changed this key. Current {now}. Save again to replace it."


def _sample_requests(base_url: str, command: str, secret: str) -> dict[str, str]:
    """Return a key's first request for several tools, by label; ``command`` runs ``tenantry``."""
    url = shlex.quote(f"{base_url}/api/v1/auth/whoami")
    base = shlex.quote(base_url)
    program = f"with Tenantry(base_url={json.dumps(base_url)}) as tenantry:\n    print(tenantry.auth.whoami())"
    return {
        "curl": f'curl -H "Authorization: Bearer {secret}" {url}',
        "Command line": f"export TENANTRY_BASE_URL={base}\nexport TENANTRY_API_KEY={secret}\n{command} whoami",
        "Python, with the secret in TENANTRY_API_KEY": f"from tenantry_sdk import Tenantry\n\n{program}",
    }


def _error_text(error: DomainError) -> str:
    return _ERRORS[type(error)][1].format(error.detail)


def _error_page(request: AnyRequest, error: DomainError) -> Response[str]:
    return PageContext(request).render(
        "api_key_error.html",
        status_code=STATUSES[type(error)],
        title=_ERRORS[type(error)][0],
        message=_error_text(error),
        key_id=request.path_params.get("key_id"),
    )


def _duplicate_page(request: AnyRequest, error: IdempotencyReplayError) -> Response[str]:
    status_code = STATUSES[type(error)]
    return PageContext(request).render("api_key_duplicate.html", status_code=status_code, key_id=error.object_id)


EXCEPTION_HANDLERS: Final[ExceptionHandlersMap] = {
    **dict.fromkeys(_ERRORS, _error_page),
    IdempotencyReplayError: _duplicate_page,
}
