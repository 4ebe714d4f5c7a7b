"""A page of the dashboard, as a browser without JavaScript shows it."""

import re
from functools import cached_property
from html import unescape
from typing import Final

import httpx2

_INLINE: Final = ("a", "b", "bdi", "code", "i", "span", "strong", "time")
_TICKED: Final = ("checkbox", "radio")
_TOKEN: Final = re.compile(
    r"""([^<]+)|<(/?)([a-z][a-z0-9]*)((?:\s+[a-z0-9-]+(?:="[^"]*")?)*)\s*/?>|<!doctype html>""",
    re.IGNORECASE,
)
"""A text, a tag with its attributes, or the declaration: what pages consist of."""
_ATTRIBUTE: Final = re.compile(r"""([a-zA-Z0-9-]+)(?:="([^"]*)")?""")


class Form:
    """A POST form: its action, the values of its fields, and the texts of its buttons."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.fields: dict[str, list[str]] = {}
        self.buttons: list[str] = []


class Page:
    """The text, links and forms of a page, parsed on first use."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self.status = answer.status_code
        self.headers = answer.headers
        self.path = answer.request.url.path
        self.html = answer.text

    @cached_property
    def text(self) -> str:
        """The text, with single blanks."""
        return " ".join("".join(self._content.words).split())

    @property
    def forms(self) -> list[Form]:
        """The POST forms."""
        return self._content.forms

    @property
    def links(self) -> list[str]:
        """The targets of its links."""
        return self._content.links

    @property
    def anchors(self) -> list[tuple[str, str]]:
        """The text, with single blanks, and target of each link."""
        return [(" ".join(text.split()), href) for text, href in self._content.anchors]

    def heading(self, fragment: str = "") -> str:
        """Return the first heading of level 1, or the heading with an id; fails if there is
        none.
        """
        for element_id, text in self._content.headings:
            if element_id == fragment:
                return " ".join(text.split())
        raise AssertionError(f"{self.path} has no heading {fragment or 'of level 1'}")

    @property
    def tags(self) -> list[str]:
        """The names of its elements."""
        return self._content.tags

    @property
    def focused(self) -> list[str]:
        """The ids of elements with autofocus."""
        return self._content.focused

    def form(self, action: str = "") -> Form:
        """Return the form with this action, by default the page's own path."""
        [found] = [form for form in self.forms if form.action == (action or self.path)]
        return found

    def form_of(self, button: str) -> Form:
        """Return the form that has a button with this text."""
        [found] = [form for form in self.forms if button in form.buttons]
        return found

    @cached_property
    def _content(self) -> "_Content":
        content = _Content(self.path)
        content.read(self.html)
        return content


class _Content:
    """The parts of a page at this path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.words: list[str] = []
        self.forms: list[Form] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.focused: list[str] = []
        self.anchors: list[tuple[str, str]] = []
        self.headings: list[tuple[str, str]] = []
        """The id, empty for level 1, and text of each heading."""
        self._begun: dict[str, tuple[str, int]] = {}
        self._fields: dict[str, list[str]] = {}
        self._buttons: list[str] = []
        self._control = ""
        self._typed: list[str] | None = None

    def read(self, html: str) -> None:
        """Read a page; fails at markup that no page needs, such as a comment or a lone ``<``."""
        end = 0
        for token in _TOKEN.finditer(html):
            assert token.start() == end, f"{self._path}: {html[end : end + 80]}"
            end = token.end()
            text, is_end, tag, attributes = token.groups()
            if text is not None:
                self._add_text(unescape(text))
            elif is_end:
                self._end(tag)
            elif tag is not None:
                self._begin(
                    tag, {name: unescape(value) for name, value in _ATTRIBUTE.findall(attributes)}
                )
        assert end == len(html), f"{self._path}: {html[end : end + 80]}"

    def _begin(self, tag: str, named: dict[str, str]) -> None:
        self.tags.append(tag)
        if tag not in _INLINE:
            self.words.append(" ")
        if tag in ("a", "h1", "h2", "h3", "button"):
            subject = (
                named.get("href", "") if tag == "a" else "" if tag == "h1" else named.get("id", tag)
            )
            self._begun[tag] = (subject, len(self.words))
        if tag == "a":
            self.links.append(named.get("href", ""))
        elif tag == "form":
            form = Form(named.get("action") or self._path)
            self._fields = form.fields
            self._buttons = form.buttons
            if named.get("method") == "post":
                self.forms.append(form)
        elif tag in ("input", "textarea", "select") and "name" in named:
            self._begin_control(tag, named)
        elif tag == "option" and "selected" in named:
            self._fields[self._control] = [named["value"]]
        if "autofocus" in named and "hidden" not in named:
            self.focused.append(named.get("id", ""))

    def _begin_control(self, tag: str, named: dict[str, str]) -> None:
        self._control = named["name"]
        if tag == "textarea":
            self._typed = []
        elif tag == "input" and (named.get("type") not in _TICKED or "checked" in named):
            self._fields.setdefault(self._control, []).append(named.get("value", ""))

    def _end(self, tag: str) -> None:
        if tag in self._begun:
            subject, begin = self._begun.pop(tag)
            text = "".join(self.words[begin:])
            if tag == "a":
                self.anchors.append((text, subject))
            elif tag == "button":
                self._buttons.append(" ".join(text.split()))
            else:
                self.headings.append((subject, text))
        if tag == "textarea" and self._typed is not None:
            self._fields[self._control] = ["".join(self._typed).removeprefix("\n")]
            self._typed = None

    def _add_text(self, data: str) -> None:
        self.words.append(data)
        if self._typed is not None:
            self._typed.append(data)
