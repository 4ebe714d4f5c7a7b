"""Making a key, and changing one: the pages with the form of what it may do."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from msgspec import UNSET

from tenantry.api.author import principal_author
from tenantry.api.guards import AnyRequest
from tenantry.dashboard.api_keys.desk import ONE, PATH, Desk, KeyId, status_of
from tenantry.dashboard.api_keys.form import DAYS, Faults, Typed, Wanted, as_shown, as_typed, understand
from tenantry.dashboard.api_keys.refusals import REFUSALS, in_words
from tenantry.dashboard.api_keys.scopes import SUBJECTS, Subject
from tenantry.dashboard.api_keys.secret import secret_page
from tenantry.dashboard.inputs import edits, form_claim, marks, once_token, patiently
from tenantry.dashboard.notices import Notice
from tenantry.dashboard.visitor import Sent, SignedIn, Visitor
from tenantry.domain.access import AccessLevel
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.errors import (
    DomainError,
    KeyLimitReachedError,
    KeyNotActiveError,
    LastOwnerError,
    ScopeEscalationError,
    ValidationError,
)

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
            made = await patiently(
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
