"""What handlers of pages get: the services, the signed-in user, and the rendering of templates."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial, wraps
from importlib import resources
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import Environment
from litestar import MediaType, Response
from litestar.di import NamedDependency
from litestar.response import Stream

from tenantry.accounts.caller_address import UNVERIFIED, CallerAddress
from tenantry.api.guards import AnyRequest, author_of, claimant
from tenantry.api.services import UseCases
from tenantry.common.encoding import new_id
from tenantry.dashboard import chart_axes, forms, guards, key_text_fields, labels
from tenantry.dashboard.cookies import Cookies
from tenantry.dashboard.flash_messages import FlashMessage
from tenantry.db.idempotency_store import Claim
from tenantry.domain.access import limits_from, to_access
from tenantry.domain.api_keys import SOON
from tenantry.domain.audit import ActorKind, Author
from tenantry.domain.branding import Branding
from tenantry.domain.errors import DomainError, IdempotencyInFlightError, InvalidIdempotencyKeyError
from tenantry.domain.names import display_text
from tenantry.domain.operator_acts import NewAct, OperatorAction
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plan_words import limit_words, period_words
from tenantry.domain.tenants import Tenant
from tenantry.server.page_assets import PageAssets, page_templates
from tenantry.server.problems import RETRY_AFTER, STATUSES
from tenantry.server.security_headers import PAGE_HEADERS
from tenantry.server.service_app import state_of

TEMPLATES: Final = Path(__file__).parent / "templates"

Choice = TypeVar("Choice", bound=StrEnum)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_SHORTEST_ONCE: Final = 16
"""In bytes of randomness when created, and in letters when checked."""
_MOST_TRIES: Final = 20
_BETWEEN_TRIES: Final = 0.1
"""Seconds."""


def dashboard_templates() -> Environment:
    """The templates of pages with their filters, without the variables of one service."""
    environment = page_templates(TEMPLATES)
    environment.filters.update(
        time=labels.show_time,
        second=partial(labels.show_time, text="%b %Y, %H:%M:%S UTC", attribute="data-seconds"),
        day=partial(labels.show_time, text="%b %Y", attribute="data-day"),
        distance=labels.show_distance,
        with_times=labels.with_times,
        with_code=labels.with_code,
        with_organizations=labels.with_organizations,
        amount=labels.show_amount,
        axis_top=chart_axes.axis_top,
        bar_paths=chart_axes.bar_paths,
        texts_below=chart_axes.texts_below,
        shown_access=to_access,
        limits_from=limits_from,
        query_string=forms.query_string,
        segment=partial(quote, safe=""),
        key_words=key_text_fields.words_of,
        called=lambda thing: labels.shown_name(thing.name, thing.id),
        confirmation=forms.confirmation_text,
        display_text=display_text,
        isolated=labels.isolated,
        limit_words=limit_words,
        period_words=period_words,
        browser_label=labels.browser_label,
        role_label=lambda user: labels.role_label(user.role, user.principal),
        rejection_label=lambda code: labels.labels().rejection_codes.get(code, labels.Label(code)),
        anomaly_label=lambda name: labels.labels().anomalies.get(name, labels.Label(name)),
    )
    return environment


class Renderer:
    """Renders templates as pages. Jinja escapes all values."""

    def __init__(self, cookies: Cookies, base_url: str, product: Branding, **names: object) -> None:
        """``names`` are further variables of all templates."""
        self.assets = PageAssets(resources.files(__package__) / "assets", _files_of(product))
        self._cookies = cookies
        self._templates = dashboard_templates()
        self._templates.globals.update(
            assets=self.assets.address,
            base_url=base_url,
            changes=labels.changes,
            product=product,
            labels=labels.labels(),
            soon=SOON,
            **names,
        )

    def page(
        self,
        template: str,
        status_code: int = 200,
        *,
        user: guards.DashboardUser | None = None,
        **context: object,
    ) -> Response[str]:
        """Render a page. It shows the user's flash message once."""
        content = self._templates.get_template(template).render(context, user=user)
        headers = {**PAGE_HEADERS, **({"Retry-After": RETRY_AFTER} if status_code == 503 else {})}  # noqa: PLR2004
        response = Response(
            content,
            status_code=status_code,
            media_type=MediaType.HTML,
            headers=headers,
        )
        if user is not None and user.flash is not None:
            response.set_cookie(self._cookies.without_flash())
        return response

    def file(
        self, content: bytes | AsyncIterator[bytes], name: str, media_type: str
    ) -> Response[Any]:
        """Return a download. ``name`` must consist of ASCII letters, digits, dots, dashes and
        underscores.
        """
        headers = {**PAGE_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        if isinstance(content, bytes):
            return Response(content, media_type=media_type, headers=headers)
        return Stream(content, media_type=media_type, headers=headers)

    def redirect(self, location: str) -> Response[str]:
        return Response(
            "",
            status_code=303,
            media_type=MediaType.TEXT,
            headers={**PAGE_HEADERS, "Location": location},
        )


_ACCENT: Final = """\
:root {{
  --accent: light-dark({accent.light}, {accent.dark});
  --on-accent: light-dark({accent.on_light}, {accent.on_dark});
}}
"""


def _files_of(product: Branding) -> dict[str, bytes]:
    """Return the logo, and the style sheet with the accent color, if the operator set them."""
    files = {}
    if product.accent is not None:
        files["product.css"] = _ACCENT.format(accent=product.accent).encode()
    if product.logo is not None:
        files["product.png"] = product.logo
    return files


class PageComponents(msgspec.Struct, frozen=True):
    """What the requests for pages share: ``pages`` in the application's state."""

    services: UseCases
    cookies: Cookies
    sessions: guards.SessionGuard
    renderer: Renderer


def page_components(request: AnyRequest) -> PageComponents:
    """Return the page components of the request's service."""
    components: PageComponents = state_of(request.scope)["pages"]
    return components


class PageContext:
    """One request for a page."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        components = page_components(request)
        self.services = components.services
        self.cookies = components.cookies
        self.sessions = components.sessions
        self.renderer = components.renderer
        self.redirect = self.renderer.redirect

    @property
    def user(self) -> guards.DashboardUser:
        """The user that the route's guard authorized. Raises `NotSignedInError`."""
        user = guards.current_user(self.request.scope)
        if user is None:
            raise guards.NotSignedInError
        return user

    @property
    def form(self) -> forms.Form:
        """The form that the user submitted. Raises `CsrfError` without one."""
        form = guards.current_form(self.request.scope)
        if form is None:
            raise guards.CsrfError
        return form

    @property
    def submitted(self) -> forms.Form:
        """The form that the user submitted; without one an empty form."""
        return guards.current_form(self.request.scope) or forms.Form()

    def query(self, name: str) -> str:
        """Return a parameter of the query, without surrounding blanks and NULs; empty if it is
        missing.
        """
        return forms.cleaned(self.request.query_params.get(name, ""))

    def choice(self, name: str, kind: type[Choice]) -> Choice | None:
        """Return a parameter of the query that is one of the values of ``kind``; None for any other
        text.
        """
        text = self.query(name)
        return kind(text) if text in set(kind) else None

    @property
    def principal(self) -> RequestPrincipal:
        return self.user.principal

    async def tenant(self) -> Tenant:
        """Return the tenant of the address."""
        return await self.services.tenants.get(self.principal, self.principal.org_id)

    @property
    def author(self) -> Author:
        """The user as the author of a change."""
        user = self.user
        if user.person is None:
            return author_of(self.request, ActorKind.USER, user.claims.subject)
        by_operator = author_of(self.request, ActorKind.OPERATOR)
        return msgspec.structs.replace(by_operator, person=user.person)

    async def record_act(self, action: OperatorAction, target_id: str) -> None:
        """Add what the user did with the tenant's data to the operator's trail; nothing on pages of
        customers.
        """
        if self.user.acts_as_operator and not guards.is_head(self.request):
            now, org_id = self.services.clock(), self.principal.org_id
            act = NewAct(new_id("act"), now, action, org_id, target_id)
            await self.services.operator_trail.record(self.author, act)

    @property
    def address(self) -> CallerAddress:
        """The user's verified address; the operator has none."""
        return UNVERIFIED if self.user.acts_as_operator else CallerAddress(self.user.claims)

    @property
    def _claimant(self) -> str:
        """The owner of the idempotency claims of the user's forms, also outside of tenants."""
        user = self.user
        person = f"{user.session.issuer}:{user.session.subject}"
        if user.caller is None:
            return f"user:{person}"
        # two people are the same operator
        return claimant(user.caller) + (f":{person}" if user.acts_as_operator else "")

    def claim(self) -> Claim:
        """Return the form's idempotency claim, which makes a double submission have one effect.

        It covers all fields but the CSRF token: a user may go back and change some, or sign in
        again. Raises
        `InvalidIdempotencyKeyError` for a form without a ``once`` token.
        """
        if len(self.form.text("once")) < _SHORTEST_ONCE:
            raise InvalidIdempotencyKeyError(
                "The form is incomplete. Reload the page and submit it again."
            )
        digest = hashlib.sha256(urlencode(self.form.entries()).encode())
        route = f"POST {self.request.url.path}"
        return Claim(
            self._claimant,
            route,
            f"form:{digest.hexdigest()}",
            digest.digest(),
        )

    def render(
        self, template: str, outcome: int | Exception | None = None, /, **context: object
    ) -> Response[str]:
        """Render a page; ``outcome`` is its status, or the error that rejected a form.

        The page shows an error beside its field, or as its ``problem``. The default status is 422
        if the context has ``errors`` of fields, else 200.
        """
        errors = forms.field_errors(outcome)
        problem = outcome if isinstance(outcome, DomainError) and not errors else None
        shown = {
            "errors": errors,
            "problem": problem.detail if problem else "",
            "submitted": self.submitted,
            "once": secrets.token_urlsafe(_SHORTEST_ONCE),
            "is_first": "cursor" not in self.request.query_params,
            "now": self.services.clock(),
            **context,
        }
        status = 422 if shown["errors"] else 200
        if problem:
            status = STATUSES[type(problem)]
        return self.renderer.page(
            template,
            outcome if isinstance(outcome, int) else status,
            user=guards.current_user(self.request.scope),
            **shown,
        )

    def redirect_with(self, message: FlashMessage, path: str, query: str = "") -> Response[str]:
        """Redirect to the page at ``path``, which shows the message once."""
        response = self.redirect(path + query)
        response.set_cookie(self.cookies.with_flash(self.user.session, path, message))
        return response


Context = NamedDependency[PageContext]
"""The type of a handler's argument ``ctx``."""


def waits_for_duplicate(
    handler: Callable[Arguments, Awaitable[Result]],
) -> Callable[Arguments, Awaitable[Result]]:
    """Decorate the handler of a form with a claim: after a double click, wait up to 2 s for the
    result of the first submission.
    """

    @wraps(handler)
    async def answer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for _ in range(_MOST_TRIES):
            with suppress(IdempotencyInFlightError):
                return await handler(*args, **kwargs)
            await asyncio.sleep(_BETWEEN_TRIES)
        raise IdempotencyInFlightError(
            "This form is still being processed. Look for its result in a moment."
        )

    return answer
