"""The pages of API keys: list, show, create, rotate, revoke."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Final
from urllib.parse import quote

from litestar import Response, Router, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from litestar.types import ExceptionHandlersMap
from msgspec import UNSET

from tenantry.api.guards import AnyRequest, principal_author
from tenantry.api.parameters import Cursor
from tenantry.auth.api_keys import ApiKeyService
from tenantry.auth.api_keys_store import Filter
from tenantry.common.clock import Clock
from tenantry.dashboard.api_key_forms import (
    DAYS,
    SUBJECTS,
    Faults,
    Subject,
    Typed,
    Wanted,
    as_shown,
    as_typed,
    understand,
)
from tenantry.dashboard.api_key_pages import (
    ONE,
    PATH,
    REFUSALS,
    Desk,
    KeyId,
    Replaced,
    in_words,
    secret_page,
    shown_before,
    status_of,
    use_pages,
)
from tenantry.dashboard.flash_messages import Notice
from tenantry.dashboard.forms import edits, form_claim, marks, once_token, retry_while_in_flight, to_be_typed
from tenantry.dashboard.guards import Sent, SessionGuard, SignedIn, Visitor, current_visitor
from tenantry.dashboard.renderer import Renderer
from tenantry.domain.access import AccessLevel, Mode
from tenantry.domain.api_keys import SOON, ApiKey, KeyState
from tenantry.domain.errors import (
    DomainError,
    IdempotencyReplayError,
    KeyLimitReachedError,
    KeyNotActiveError,
    LastOwnerError,
    ScopeEscalationError,
    ValidationError,
)
from tenantry.domain.plans import Catalog

_ON_A_PAGE: Final = 25
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


def list_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The route of the list."""

    @get(PATH, guards=[desk.door.needs("api-keys:read")])
    async def show_keys(
        visitor: SignedIn,
        status: Annotated[str, QueryParameter(name="status", max_length=20)] = "",
        mode: Annotated[str, QueryParameter(name="mode", max_length=20)] = "",
        search: Annotated[str, QueryParameter(name="search", max_length=200)] = "",
        cursor: Cursor = None,
    ) -> Response[str]:
        wanted = Filter(
            state=KeyState(status) if status in set(KeyState) else None,
            mode=Mode(mode) if mode in set(Mode) else None,
            search=search.strip().replace("\x00", "") or None,
        )
        fields = {"status": wanted.state, "mode": wanted.mode, "search": wanted.search}
        asked = {field: value for field, value in fields.items() if value}
        page, room, replaced = await desk.keys.seek_page(visitor.principal, wanted, _ON_A_PAGE, cursor)
        return desk.page(
            "api_keys.html",
            visitor,
            page=page,
            room=room,
            replaced=replaced,
            plan=desk.catalog.name(visitor.principal.plan),
            wanted=wanted,
            states=_STATES,
            modes=_MODES,
            query="".join(f"{field}={quote(value)}&" for field, value in asked.items()),
            filtered=bool(asked) or cursor is not None,
            is_first=cursor is None,
        )

    return [show_keys]


def key_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The route of a key."""

    @get(ONE, guards=[desk.door.needs("api-keys:read")])
    async def show_key(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        key = await desk.keys.get(visitor.principal, key_id)
        old = await desk.keys.get(visitor.principal, key.rotated_from) if key.rotated_from else None
        return desk.page(
            "api_key.html", visitor, key=key, old=old, word=word_of(key), overlaps=OVERLAPS, once=once_token()
        )

    return [show_key]


_FIELDS: Final[Mapping[str, str]] = {"scopes": "scope", "expiresAt": "until"}
_IN_WORDS: Final = {"name": "its name is", "scopes": "its scopes are", "expiry": "it expires"}


def making_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The routes that make a key."""

    async def page(
        visitor: Visitor, typed: Typed | None, replaces: str, error: DomainError | Faults | None = None
    ) -> Response[str]:
        replaced = await desk.replaceable(visitor, replaces) if replaces else None
        typed = typed or (Typed.of_replacement(replaced) if replaced else Typed())
        return _form_page(desk, "api_key_new.html", visitor, typed, error, once=once_token(), replaced=replaced)

    @get(PATH + "/new", guards=[desk.door.needs("api-keys:write")])
    async def show_new_key(
        visitor: SignedIn, replaces: Annotated[str, QueryParameter(name="replaces", max_length=200)] = ""
    ) -> Response[str]:
        return await page(visitor, None, replaces)

    @post(PATH + "/new", guards=[desk.door.needs("api-keys:write")])
    async def create_key(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
        typed = Typed.of_form(form)
        replaces = form.text("replaces")
        claim = await form_claim(request, visitor.principal, form)
        wanted = understand(typed, desk.clock())
        if not isinstance(wanted, Wanted):
            return await page(visitor, typed, replaces, wanted)
        try:
            made = await retry_while_in_flight(
                lambda: desk.keys.create(
                    visitor.principal,
                    principal_author(request, visitor.principal),
                    org_id=visitor.principal.org_id,
                    name=wanted.name,
                    scopes=wanted.scopes,
                    access_level=None,
                    mode=wanted.mode,
                    expires_at=None if wanted.expires_at is UNSET else wanted.expires_at,
                    claim=claim,
                    replaces=replaces or None,
                )
            )
        except (ScopeEscalationError, KeyLimitReachedError, ValidationError) as error:
            return await page(visitor, typed, replaces, error)
        return secret_page(desk, visitor, made)

    return [show_new_key, create_key]


def changing_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The routes that change a key."""

    def page(
        visitor: Visitor, key: ApiKey, typed: Typed, error: DomainError | Faults | None = None, overtaken: str = ""
    ) -> Response[str]:
        return _form_page(
            desk,
            "api_key_edit.html",
            visitor,
            typed,
            error,
            kept=key.scopes,
            overtaken=overtaken,
            key=key,
            marks=marks(as_shown(key)),
        )

    @get(ONE + "/edit", guards=[desk.door.needs("api-keys:write")])
    async def show_change(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        key = await desk.changeable(visitor, key_id)
        return page(visitor, key, Typed.of_key(key))

    @post(ONE + "/edit", guards=[desk.door.needs("api-keys:write")])
    async def change_key(request: AnyRequest, visitor: SignedIn, key_id: KeyId, form: Sent) -> Response[str]:
        key = await desk.changeable(visitor, key_id)
        present = as_shown(key)
        typed = Typed.of_form(form)
        made, overtaken = edits(form, as_typed(typed), present)
        typed = typed.only(made, key)
        if overtaken:
            return page(visitor, key, typed, overtaken=_overtaken(present, overtaken))
        wanted = understand(typed, desk.clock(), key)
        if not isinstance(wanted, Wanted):
            return page(visitor, key, typed, wanted)
        try:
            await desk.keys.update(
                visitor.principal,
                principal_author(request, visitor.principal),
                key_id,
                name=wanted.name if "name" in made else UNSET,
                scopes=wanted.scopes if "scopes" in made else UNSET,
                expires_at=wanted.expires_at,
            )
        except (ScopeEscalationError, KeyNotActiveError, LastOwnerError, ValidationError) as error:
            return page(visitor, key, typed, error)
        return desk.look.tell(visitor, Notice.KEY_SAVED, desk.path_of(visitor, key_id))

    return [show_change, change_key]


def _overtaken(present: Mapping[str, str], fields: frozenset[str]) -> str:
    """What somebody else changed, as a paragraph."""
    now = "; ".join(f"{words}: {present[field]}" for field, words in _IN_WORDS.items() if field in fields)
    return f"Somebody else changed this key meanwhile. Now {now}. Save again to have what is chosen here instead."


def _form_page(
    desk: Desk,
    template: str,
    visitor: Visitor,
    typed: Typed,
    error: DomainError | Faults | None,
    *,
    kept: Collection[str] = (),
    overtaken: str = "",
    **more: object,
) -> Response[str]:
    """The page with the form; with an error it is told where it belongs.

    ``kept`` are scopes that are offered to whoever does not hold them, too: those that a key has. ``overtaken`` says
    what somebody else changed meanwhile.
    """
    faults: Faults = error if isinstance(error, dict) else {}
    if isinstance(error, ValidationError):
        faults = {_FIELDS.get(where, where): f"{what[:1].upper()}{what[1:]}." for where, what in error.faults}
    status = status_of(error) if isinstance(error, DomainError) else 422 if faults else 409 if overtaken else 200
    now = desk.clock()
    return desk.page(
        template,
        visitor,
        status,
        typed=typed,
        faults=faults,
        problem=in_words(error) if isinstance(error, REFUSALS) else overtaken,
        subjects=[one for one in map(partial(_offered, visitor, kept), SUBJECTS) if one.scopes],
        days=[(count, now + timedelta(days=int(count))) for count in DAYS],
        today=now.date(),
        offers_owner=visitor.principal.access_level is AccessLevel.OWNER,
        **more,
    )


def _offered(visitor: Visitor, kept: Collection[str], subject: Subject) -> Subject:
    """A subject with those scopes that the visitor could give or leave."""
    return subject._replace(
        scopes=tuple(known for known in subject.scopes if visitor.may(known.scope) or known.scope in kept)
    )


OVERLAPS: Final = (
    ("0", "Not at all: it ends at once"),
    ("3600", "For 1 hour"),
    ("86400", "For 24 hours"),
    ("604800", "For 7 days"),
)
_LENGTHS: Final = {seconds: timedelta(seconds=int(seconds)) for seconds, _ in OVERLAPS}


def rotating_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The routes that rotate a key."""

    def page(visitor: Visitor, key: ApiKey, status_code: int = 200, **more: object) -> Response[str]:
        shown = {"fault": None, "problem": None, **more}
        return desk.page(
            "api_key_rotate.html", visitor, status_code, key=key, overlaps=OVERLAPS, once=once_token(), **shown
        )

    @get(ONE + "/rotate", guards=[desk.door.needs("api-keys:write")])
    async def show_rotation(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        key = await desk.changeable(visitor, key_id)
        if key.superseded_by is not None:
            raise KeyNotActiveError("The key was rotated before.")
        return page(visitor, key)

    @post(ONE + "/rotate", guards=[desk.door.needs("api-keys:write")])
    async def rotate_key(request: AnyRequest, visitor: SignedIn, key_id: KeyId, form: Sent) -> Response[str]:
        claim = await form_claim(request, visitor.principal, form)
        overlap = _LENGTHS.get(form.text("overlap"))
        if overlap is None:
            key = await desk.changeable(visitor, key_id)
            return page(visitor, key, 422, fault="Choose how long the old key goes on.")
        author = principal_author(request, visitor.principal)
        old = await desk.keys.get(visitor.principal, key_id)
        try:
            made = await retry_while_in_flight(
                lambda: desk.keys.rotate(visitor.principal, author, key_id, overlap=overlap, claim=claim)
            )
        except KeyLimitReachedError as error:
            return page(visitor, old, status_of(error), problem=in_words(error))
        # nothing is asked of the database any more: if it failed now, the secret would be lost
        ends = made.record.created_at + overlap if overlap else None
        if ends is not None and old.expires_at is not None:
            ends = min(ends, old.expires_at)
        return secret_page(desk, visitor, made, Replaced(key_id, ends))

    return [show_rotation, rotate_key]


def ending_pages(desk: Desk) -> list[HTTPRouteHandler]:
    """The routes that revoke a key."""

    def page(visitor: Visitor, key: ApiKey, status_code: int = 200, **more: object) -> Response[str]:
        shown = {"faults": {}, "typed": "", "force": False, "problem": None, **more}
        return desk.page("api_key_revoke.html", visitor, status_code, key=key, word=word_of(key), **shown)

    @get(ONE + "/revoke", guards=[desk.door.needs("api-keys:write")])
    async def show_revocation(visitor: SignedIn, key_id: KeyId) -> Response[str]:
        return page(visitor, await desk.changeable(visitor, key_id))

    @post(ONE + "/revoke", guards=[desk.door.needs("api-keys:write")])
    async def revoke_key(request: AnyRequest, visitor: SignedIn, key_id: KeyId, form: Sent) -> Response[str]:
        key = await desk.keys.get(visitor.principal, key_id)
        visitor.principal.require_holding((), key.access_level)
        typed, force = form.text("word"), form.checked("force")
        if to_be_typed(typed, "") != word_of(key):
            return page(visitor, key, 422, faults={"word": "This is not the key's name."}, typed=typed, force=force)
        author = principal_author(request, visitor.principal)
        try:
            await desk.keys.revoke(visitor.principal, author, key_id, force=force)
        except LastOwnerError as error:
            return page(visitor, key, status_of(error), typed=typed, problem=in_words(error))
        return desk.look.redirect(desk.path_of(visitor, key_id))

    return [show_revocation, revoke_key]


def word_of(key: ApiKey) -> str:
    """What has to be typed to revoke a key: its name, or its last characters where the name shows nothing."""
    return to_be_typed(key.name, key.last4)


__all__ = ["api_key_pages"]


def api_key_pages(
    keys: ApiKeyService, door: SessionGuard, look: Renderer, base_url: str, clock: Clock, catalog: Catalog
) -> list[Router]:
    """The routes of API keys."""
    desk = Desk(keys, door, look, base_url, clock, catalog)

    def on_refusal(request: AnyRequest, error: DomainError) -> Response[str]:
        return desk.refused(current_visitor(request), error, request.path_params.get("key_id"))

    def on_replay(request: AnyRequest, error: IdempotencyReplayError) -> Response[str]:
        return shown_before(desk, current_visitor(request), error)

    pages = [
        *list_pages(desk),
        *making_pages(desk),
        *changing_pages(desk),
        *key_pages(desk),
        *use_pages(desk),
        *rotating_pages(desk),
        *ending_pages(desk),
    ]
    handlers: ExceptionHandlersMap = {**dict.fromkeys(REFUSALS, on_refusal), IdempotencyReplayError: on_replay}
    return [Router("/", route_handlers=pages, exception_handlers=handlers)]
