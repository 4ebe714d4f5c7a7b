"""The pages of one API key: show, create, edit, rotate, revoke."""

from datetime import timedelta
from typing import Final

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath
from msgspec import UNSET

from tenantry.api.guards import AnyRequest
from tenantry.audit.trail import AuditFilter
from tenantry.auth.api_keys import NewKey
from tenantry.dashboard import api_key_form, forms
from tenantry.dashboard.api_key_form import KeyForm
from tenantry.dashboard.audit_entries import ShownEntry, names_of_users, shown_entries
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import ORG, is_head, is_navigation, is_prefetch, needs
from tenantry.dashboard.key_metadata_form import parse_metadata
from tenantry.dashboard.usage_charts import usage_chart
from tenantry.db.numbered_pages import PageRequest
from tenantry.domain import errors
from tenantry.domain.api_keys import ApiKey, KeyStatus
from tenantry.domain.permissions import Mode
from tenantry.domain.scopes import is_scope

PATH: Final = ORG + "/settings/api-keys"
_KEY: Final = PATH + "/{key_id:str}"
_MOST_CHANGES: Final = 10
_OVERLAPS: Final = (
    ("0", "Revoke it now"),
    ("3600", "1 hour"),
    ("86400", "24 hours"),
    ("604800", "7 days"),
)
"""Choices for the overlap of a rotation, in seconds."""
_LAST_OWNER_KEY: Final = errors.LastOwnerError(
    "This is the last OWNER key. Create another OWNER key, rotate this one, or make a member the owner first. "
    "Otherwise only the operator of this service could create an OWNER key."
)
_REJECTIONS: Final = (
    forms.InvalidFormError,
    errors.KeyLimitReachedError,
    errors.KeyNotActiveError,
    errors.ScopeEscalationError,
    errors.ValidationError,
)
"""The errors that the form shows."""

KeyId = FromPath[str]
_reader = needs("api-keys:read")
_writer = needs("api-keys:write")


@get(_KEY, guards=[_reader])
async def show_key(ctx: Context, key_id: KeyId) -> Response[str]:
    keys = ctx.services.api_keys
    key = await keys.get(ctx.principal, key_id)
    old = await keys.get(ctx.principal, key.rotated_from) if key.rotated_from else None
    expected = _confirmation_of(key)
    changes = await _newest_changes(ctx, key)
    return ctx.render(
        "api_key.html",
        key=key,
        old=old,
        expected=expected,
        overlaps=_OVERLAPS,
        chart=await usage_chart(ctx, key.id),
        entries=changes,
        users=await names_of_users(ctx, changes),
    )


async def _newest_changes(ctx: PageContext, key: ApiKey) -> list[ShownEntry]:
    """Return the latest entries about a key; none for users who may not see the trail."""
    if not ctx.user.may("audit:read"):
        return []
    about = AuditFilter(target_id=key.id)
    newest = PageRequest(_MOST_CHANGES)
    page, names = await ctx.services.trail.search_page(ctx.principal, about, newest)
    return shown_entries(page.data, names)


@get(_KEY + "/first-use", guards=[_reader])
async def show_first_use(ctx: Context, key_id: KeyId) -> Response[str]:
    return ctx.render(
        "api_key_first_use.html", key=await ctx.services.api_keys.get(ctx.principal, key_id)
    )


@get(PATH + "/new", guards=[_writer])
async def show_new_key(ctx: Context) -> Response[str]:
    return await _new_page(ctx, None, ctx.query("replaces"))


@post(PATH + "/new", guards=[_writer])
@waits_for_duplicate
async def create_key(ctx: Context) -> Response[str]:
    values = api_key_form.submitted_values(ctx.form)
    replaces = ctx.form.text("replaces")
    denied = _denied_scopes(ctx, values)
    try:
        expires_at = api_key_form.check(values, ctx.services.clock(), further=denied)
        made = await ctx.services.api_keys.create(
            ctx.principal,
            ctx.author,
            name=values.name,
            scopes=values.scopes,
            access_level=None,
            mode=Mode(values.mode),
            expires_at=expires_at or None,
            claim=await ctx.claim(),
            replaces=replaces or None,
            external_id=values.external_id or None,
            metadata=parse_metadata(values.metadata),
        )
    except _REJECTIONS as error:
        return await _new_page(ctx, values, replaces, error)
    return _redirect_to_secret(ctx, made)


@get(_KEY + "/created", guards=[needs("api-keys:write", follows_form=True)])
async def show_created_key(ctx: Context, key_id: KeyId) -> Response[str]:
    keys = ctx.services.api_keys
    key = await keys.get(ctx.principal, key_id)
    old = await keys.get(ctx.principal, key.rotated_from) if key.rotated_from else None
    # Last: if a query failed now, the secret would be lost.
    secret = await _take_secret(ctx, key_id)
    page = ctx.render(
        "api_key_created.html",
        key=key,
        old=old,
        is_rotation=_is_rotation(key, old),
        secret=secret,
    )
    if secret is not None:
        page.set_cookie(ctx.cookies.without_secret(_created_path(ctx, key_id), key_id))
    return page


@get(_KEY + "/edit", guards=[_writer])
async def show_edit_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await _changeable_key(ctx, key_id)
    return _edit_page(ctx, key, api_key_form.values_of(key))


@post(_KEY + "/edit", guards=[_writer])
async def edit_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await _changeable_key(ctx, key_id)
    values = api_key_form.submitted_values(ctx.form)
    current = api_key_form.values_of(key).editable
    changed, conflicts = forms.find_edits(ctx.form, values.editable, current)
    values = api_key_form.only_changed(values, changed, key)
    try:
        denied = _denied_scopes(ctx, values) if "scope" in changed else {}
        expires_at = api_key_form.check(
            values,
            ctx.services.clock(),
            key,
            {**denied, **conflicts},
        )
        await ctx.services.api_keys.update(
            ctx.principal,
            ctx.author,
            key_id,
            name=values.name if "name" in changed else UNSET,
            scopes=values.scopes if "scope" in changed else UNSET,
            expires_at=expires_at,
            external_id=(values.external_id or None) if "externalId" in changed else UNSET,
            metadata=parse_metadata(values.metadata) if "metadata" in changed else UNSET,
        )
    except errors.LastOwnerError:
        return _edit_page(ctx, key, values, _LAST_OWNER_KEY)
    except _REJECTIONS as error:
        return _edit_page(ctx, key, values, error)
    return ctx.redirect_with(FlashMessage.KEY_SAVED, _path_of(ctx, key_id))


@get(_KEY + "/rotate", guards=[_writer])
async def show_rotate_key(ctx: Context, key_id: KeyId) -> Response[str]:
    return _rotate_page(ctx, await _changeable_key(ctx, key_id))


@post(_KEY + "/rotate", guards=[_writer])
@waits_for_duplicate
async def rotate_key(ctx: Context, key_id: KeyId) -> Response[str]:
    seconds = ctx.form.text("overlap")
    if seconds not in dict(_OVERLAPS):
        error = forms.InvalidFormError({"overlap": "Choose how long the old key keeps working."})
        return _rotate_page(ctx, await _changeable_key(ctx, key_id), error)
    try:
        made = await ctx.services.api_keys.rotate(
            ctx.principal,
            ctx.author,
            key_id,
            overlap=timedelta(seconds=int(seconds)),
            claim=await ctx.claim(),
        )
    except errors.KeyLimitReachedError as limit:
        return _rotate_page(ctx, await ctx.services.api_keys.get(ctx.principal, key_id), limit)
    return _redirect_to_secret(ctx, made)


@get(_KEY + "/revoke", guards=[_writer])
async def show_revoke_key(ctx: Context, key_id: KeyId) -> Response[str]:
    return _revoke_page(ctx, await _changeable_key(ctx, key_id))


@post(_KEY + "/revoke", guards=[_writer])
async def revoke_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await _writable_key(ctx, key_id)
    typed = ctx.form.text("word")
    force = ctx.form.checked("force")
    if mismatch := forms.confirmation_errors(typed, "word", _confirmation_of(key)):
        return _revoke_page(
            ctx,
            key,
            errors=mismatch,
            typed=typed,
            force=force,
        )
    try:
        await ctx.services.api_keys.revoke(
            ctx.principal,
            ctx.author,
            key_id,
            force=force,
        )
    except errors.LastOwnerError:
        return _revoke_page(
            ctx,
            key,
            error=_LAST_OWNER_KEY,
            typed=typed,
        )
    return ctx.redirect(_path_of(ctx, key_id))


async def _writable_key(ctx: PageContext, key_id: str) -> ApiKey:
    """Return a key that the user's role may change. Raises `NotFoundError` and
    `ScopeEscalationError`.
    """
    key = await ctx.services.api_keys.get(ctx.principal, key_id)
    ctx.principal.require_holding((), key.access_level)
    return key


async def _changeable_key(ctx: PageContext, key_id: str) -> ApiKey:
    """Return an active key. Raises as `_writable_key` does, and `KeyNotActiveError`."""
    key = await _writable_key(ctx, key_id)
    if key.status is not KeyStatus.ACTIVE:
        raise errors.KeyNotActiveError(f"The key is {key.status}.")
    return key


def _denied_scopes(ctx: PageContext, values: KeyForm) -> dict[str, str]:
    """Return the error of scopes that the user does not hold."""
    missing = [scope for scope in values.scopes if is_scope(scope) and not ctx.user.may(scope)]
    return (
        {"own": f"You don't hold these scopes: {', '.join(missing)[:200]}. Remove them."}
        if missing
        else {}
    )


def _path_of(ctx: PageContext, key_id: str) -> str:
    return f"{ctx.user.base}/settings/api-keys/{key_id}"


def _confirmation_of(key: ApiKey) -> str:
    return forms.confirmation_text(key.name, key.last4)


async def _new_page(
    ctx: PageContext, values: KeyForm | None, replaces: str, error: Exception | None = None
) -> Response[str]:
    replaced = await _writable_key(ctx, replaces) if replaces else None
    if replaced and (replaced.leak_reported_at is None or replaced.superseded_by is not None):
        return ctx.redirect_with(FlashMessage.KEY_NOT_REPLACED, _path_of(ctx, replaces))
    presets = api_key_form.offered_presets(ctx.user)
    first = api_key_form.first_values(presets)
    if values is None and replaced:
        old = api_key_form.values_of(replaced)
        values = msgspec.structs.replace(old, expiry=first.expiry)
    values = values or first
    is_unfolded = _is_unfolded(values, first, error)
    choices = api_key_form.expiry_choices(ctx.services.clock())
    return ctx.render(
        "api_key_new.html",
        error,
        values=values,
        choices=choices,
        kept=(),
        presets=presets,
        is_unfolded=is_unfolded,
        replaced=replaced,
    )


def _is_unfolded(values: KeyForm, first: KeyForm, error: Exception | None) -> bool:
    """Whether the form shows its further fields: a user filled them in, or one has a fault."""
    names = ("mode", "expiry", "until", "external_id", "metadata")
    is_filled = any(getattr(values, name) != getattr(first, name) for name in names)
    return is_filled or not api_key_form.FOLDED.isdisjoint(forms.field_errors(error))


def _edit_page(
    ctx: PageContext, key: ApiKey, values: KeyForm, error: Exception | None = None
) -> Response[str]:
    digests = forms.field_digests(api_key_form.values_of(key).editable)
    choices = api_key_form.expiry_choices(ctx.services.clock(), key)
    return ctx.render(
        "api_key_edit.html",
        error,
        values=values,
        choices=choices,
        kept=key.scopes,
        key=key,
        digests=digests,
    )


def _rotate_page(ctx: PageContext, key: ApiKey, error: Exception | None = None) -> Response[str]:
    return ctx.render(
        "api_key_rotate.html",
        error,
        key=key,
        overlaps=_OVERLAPS,
    )


def _revoke_page(
    ctx: PageContext, key: ApiKey, error: Exception | None = None, **context: object
) -> Response[str]:
    context = {"force": False, **context}
    return ctx.render(
        "api_key_revoke.html",
        error,
        key=key,
        expected=_confirmation_of(key),
        **context,
    )


def _created_path(ctx: PageContext, key_id: str) -> str:
    return f"{_path_of(ctx, key_id)}/created"


def _redirect_to_secret(ctx: PageContext, made: NewKey) -> Response[str]:
    """Redirect to the page that shows the secret once; the answer carries it there, encrypted."""
    path = _created_path(ctx, made.record.id)
    response = ctx.redirect(path)
    response.set_cookie(
        ctx.cookies.with_secret(
            ctx.user.session,
            path,
            made.record.id,
            made.secret,
        )
    )
    return response


def _is_rotation(key: ApiKey, old: ApiKey | None) -> bool:
    """Whether the key took the place of one that a user rotated, not of one that was reported as
    leaked before.
    """
    return old is not None and (
        old.leak_reported_at is None or old.leak_reported_at > key.created_at
    )


async def _take_secret(ctx: PageContext, key_id: str) -> str | None:
    """Return a new key's secret, if a form of this session created the key just now and no page has
    shown it.
    """
    if is_head(ctx.request) or is_prefetch(ctx.request) or not is_navigation(ctx.request):
        return None
    secret = ctx.cookies.secret(ctx.request, ctx.user.session, key_id)
    if secret is None or not await ctx.services.sessions.use_secret(key_id):
        return None
    return secret


def repeated_form(request: AnyRequest, error: errors.IdempotencyReplayError) -> Response[str]:
    """Answer a form that created a key before."""
    ctx = PageContext(request)
    return ctx.redirect_with(FlashMessage.KEY_EXISTS, _created_path(ctx, error.object_id))
