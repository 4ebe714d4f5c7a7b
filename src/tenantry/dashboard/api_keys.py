"""The pages of one API key: show, create, edit, rotate, revoke."""

from datetime import timedelta
from typing import Final

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath

from tenantry.api.guards import AnyRequest
from tenantry.audit.trail import AuditFilter
from tenantry.auth.api_keys import NewKey
from tenantry.dashboard import api_key_form, forms
from tenantry.dashboard.api_key_form import KeyForm
from tenantry.dashboard.audit_entries import ShownEntry, names_of_users, shown_entries
from tenantry.dashboard.context import Context, PageContext, waits_for_duplicate
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.dashboard.guards import ORG, PageGuard, is_head, is_navigation, is_prefetch
from tenantry.dashboard.key_text_fields import TEXT_FIELDS, read_texts
from tenantry.dashboard.rejections import latest_rejections
from tenantry.dashboard.usage_charts import usage_chart
from tenantry.db.numbered_pages import PageRequest
from tenantry.domain import errors
from tenantry.domain.api_keys import ApiKey, KeyChanges, KeyStatus, KeyTerms
from tenantry.domain.permissions import Mode
from tenantry.domain.scopes import is_scope

PATH: Final = ORG + "/settings/api-keys"
_KEY: Final = PATH + "/{key_id:str}"
_MOST_CHANGES: Final = 10
_LATEST_REJECTIONS: Final = 5
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
_reader = PageGuard("api-keys:read")
_writer = PageGuard("api-keys:write")


@get(_KEY, guards=[_reader])
async def show_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await ctx.services.api_keys.get(ctx.principal, key_id)
    changes = await _newest_changes(ctx, key)
    return ctx.render(
        "api_key.html",
        key=key,
        fields=TEXT_FIELDS,
        old=await _replaced_by(ctx, key),
        overlaps=_OVERLAPS,
        chart=await usage_chart(ctx, key.id),
        entries=changes,
        users=await names_of_users(ctx, changes),
        rejections=await latest_rejections(ctx, _LATEST_REJECTIONS, key.id),
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
            KeyTerms(
                name=values.name,
                scopes=values.scopes,
                mode=Mode(values.mode),
                expires_at=expires_at or None,
                **read_texts(values.texts),
            ),
            claim=ctx.claim(),
            replaces=replaces or None,
        )
    except _REJECTIONS as error:
        return await _new_page(ctx, values, replaces, error)
    return _redirect_to_secret(ctx, made)


@get(_KEY + "/created", guards=[PageGuard("api-keys:write", follows_form=True)])
async def show_created_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await ctx.services.api_keys.get(ctx.principal, key_id)
    old = await _replaced_by(ctx, key)
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
    return _edit_page(ctx, key, api_key_form.values_of(key, ctx.services.catalog))


@post(_KEY + "/edit", guards=[_writer])
async def edit_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await _changeable_key(ctx, key_id)
    values = api_key_form.submitted_values(ctx.form)
    current = api_key_form.values_of(key, ctx.services.catalog)
    edits = forms.find_edits(ctx.form, values.editable, current.editable)
    changed = edits.changed
    values = api_key_form.only_changed(values, edits, current)
    try:
        denied = _denied_scopes(ctx, values) if "scope" in changed else {}
        further = {**denied, **edits.conflicts}
        expires_at = api_key_form.check(values, ctx.services.clock(), key, further)
        await ctx.services.api_keys.update(
            ctx.principal,
            ctx.author,
            key_id,
            KeyChanges(
                name=edits.value("name", values.name),
                scopes=edits.value("scope", values.scopes),
                expires_at=expires_at,
                **read_texts({name: values.texts[name] for name in changed & values.texts.keys()}),
            ),
        )
    except errors.LastOwnerError:
        return _edit_page(ctx, key, values, _LAST_OWNER_KEY)
    except _REJECTIONS as error:
        return _edit_page(ctx, key, values, error)
    return ctx.redirect_with(FlashMessage.KEY_SAVED, _path_of(ctx, key_id))


@post(_KEY + "/flags", guards=[_writer])
async def turn_flags(ctx: Context, key_id: KeyId) -> Response[str]:
    """Turn the fields off that the form has with their word, and on those without."""
    key = await _changeable_key(ctx, key_id)
    flags = {field.name for field in TEXT_FIELDS if field.flag}
    texts = {name: text for name, text in ctx.form.entries() if name in flags}
    try:
        await ctx.services.api_keys.update(
            ctx.principal, ctx.author, key_id, KeyChanges(**read_texts(texts))
        )
    except errors.LastOwnerError:
        values = api_key_form.values_of(key, ctx.services.catalog)
        return _edit_page(ctx, key, values, _LAST_OWNER_KEY)
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
            claim=ctx.claim(),
        )
    except errors.KeyLimitReachedError as limit:
        return _rotate_page(ctx, await ctx.services.api_keys.get(ctx.principal, key_id), limit)
    return _redirect_to_secret(ctx, made)


@get(_KEY + "/revoke", guards=[_writer])
async def show_revoke_key(ctx: Context, key_id: KeyId) -> Response[str]:
    return ctx.render("api_key_revoke.html", key=await _changeable_key(ctx, key_id))


@post(_KEY + "/revoke", guards=[_writer])
async def revoke_key(ctx: Context, key_id: KeyId) -> Response[str]:
    key = await _writable_key(ctx, key_id)
    if mismatch := forms.confirmation_errors(ctx.form, "word", key):
        return ctx.render("api_key_revoke.html", forms.InvalidFormError(mismatch), key=key)
    try:
        await ctx.services.api_keys.revoke(
            ctx.principal,
            ctx.author,
            key_id,
            force=ctx.form.checked("force"),
        )
    except errors.LastOwnerError:
        return ctx.render("api_key_revoke.html", _LAST_OWNER_KEY, key=key)
    return ctx.redirect(_path_of(ctx, key_id))


async def _replaced_by(ctx: PageContext, key: ApiKey) -> ApiKey | None:
    """Return the key whose place a key took; None if it took none."""
    if key.rotated_from is None:
        return None
    return await ctx.services.api_keys.get(ctx.principal, key.rotated_from)


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


async def _new_page(
    ctx: PageContext, values: KeyForm | None, replaces: str, error: Exception | None = None
) -> Response[str]:
    replaced = await _writable_key(ctx, replaces) if replaces else None
    if replaced and (replaced.leak_reported_at is None or replaced.superseded_by is not None):
        return ctx.redirect_with(FlashMessage.KEY_NOT_REPLACED, _path_of(ctx, replaces))
    presets = api_key_form.offered_presets(ctx.user)
    first = api_key_form.first_values(presets)
    if values is None and replaced:
        old = api_key_form.values_of(replaced, ctx.services.catalog)
        values = msgspec.structs.replace(old, expiry=first.expiry)
    values = values or first
    is_unfolded = _is_unfolded(values, first, error)
    choices = api_key_form.expiry_choices(ctx.services.clock())
    return ctx.render(
        "api_key_new.html",
        error,
        values=values,
        choices=choices,
        fields=TEXT_FIELDS,
        kept=(),
        presets=presets,
        is_unfolded=is_unfolded,
        replaced=replaced,
    )


def _is_unfolded(values: KeyForm, first: KeyForm, error: Exception | None) -> bool:
    """Whether the form shows its further fields: a user filled them in, or one has a fault."""
    names = ("mode", "expiry", "until", "texts")
    is_filled = any(getattr(values, name) != getattr(first, name) for name in names)
    return is_filled or not api_key_form.FOLDED.isdisjoint(forms.field_errors(error))


def _edit_page(
    ctx: PageContext, key: ApiKey, values: KeyForm, error: Exception | None = None
) -> Response[str]:
    digests = forms.field_digests(api_key_form.values_of(key, ctx.services.catalog).editable)
    choices = api_key_form.expiry_choices(ctx.services.clock(), key)
    return ctx.render(
        "api_key_edit.html",
        error,
        values=values,
        choices=choices,
        fields=TEXT_FIELDS,
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
