"""Words that pages for customers do not use."""

import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from typing import Final

_DASHBOARD: Final = resources.files("tenantry.dashboard")
_MARKUP: Final = re.compile(r"<code>.*?</code>|\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", re.DOTALL)
_JARGON: Final = re.compile(r"\btenants?\b", re.IGNORECASE)
_TEXTS_IN_CODE: Final = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
_QUOTED: Final = re.compile(r'"([^"]*)"')


def _values(table: object) -> Iterator[str]:
    if isinstance(table, dict):
        for value in table.values():
            yield from _values(value)
    elif isinstance(table, list):
        for value in table:
            yield from _values(value)
    else:
        yield str(table)


def test_no_page_says_tenant() -> None:
    templates = [
        template
        for folder in (_DASHBOARD / "templates", _DASHBOARD / "templates" / "components")
        for template in folder.iterdir()
        if template.name.endswith(".html")
    ]
    assert len(templates) > 50
    for template in templates:
        source = template.read_text("utf-8")
        sentences = [
            text
            for code in _TEXTS_IN_CODE.findall(source)
            for text in _QUOTED.findall(code)
            if " " in text
        ]
        for text in (_MARKUP.sub(" ", source), *sentences):
            assert not _JARGON.search(text), (template.name, text)


def test_no_label_says_tenant() -> None:
    labels = tomllib.loads((_DASHBOARD / "labels.toml").read_text("utf-8"))
    said = [text for text in _values(labels) if _JARGON.search(text)]
    assert said == []
