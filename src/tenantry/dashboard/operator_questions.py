"""What the operator's pages ask before a change of a tenant, and its reason."""

from collections.abc import Sequence
from typing import Self

import msgspec
from litestar import Response

from tenantry.dashboard.context import PageContext
from tenantry.dashboard.labels import isolated
from tenantry.domain.audit import Author


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A page that says what a change does, and asks for its reason."""

    title: str
    effects: Sequence[str]
    button: str
    busy: str
    """The button's text in progress."""
    page: tuple[str, str]
    """The title of the page that leads here, and its path: below that of the tenant, or that of the
    operator where the page is of no tenant.
    """
    reason_help: str = "The customer sees it in the audit trail."
    needs_reason: bool = False
    is_danger: bool = False

    def about(self, name: str) -> Self:
        """Return the question with this name in its title."""
        return msgspec.structs.replace(self, title=self.title.format(isolated(name)))


def ask(
    ctx: PageContext,
    question: Question,
    error: Exception | None = None,
    template: str = "operator_question.html",
    **further: object,
) -> Response[str]:
    """Render the page of a question."""
    return ctx.render(template, error, question=question, **further)


def author_with_reason(ctx: PageContext) -> Author:
    """Return the operator with the reason of a form, which may be empty. Raises
    `ValidationError`.
    """
    return ctx.author.because(ctx.form.text("reason") or None)
