"""The pager of numbered pages: which addresses it offers."""

from typing import Final

import msgspec

from tenantry.dashboard.context import TEMPLATES
from tenantry.db.numbered_pages import NumberedPage
from tenantry.domain.plans import Count
from tenantry.server.page_assets import page_templates

_TEMPLATE: Final = """
{% from "components/numbered_pager.html" import numbered_pager %}
{{ numbered_pager(page, "keys", "/keys", {"search": "a & b", "status": ""}) }}
"""
_MIDDLE: Final = NumberedPage(
    data=list(range(50)),
    size=50,
    total=Count(1000, and_more=True),
    first=101,
    newer="bmV3",
    older="b2xk",
)


def _rendered(page: NumberedPage[int]) -> str:
    environment = page_templates(TEMPLATES)
    environment.filters["time"] = str
    return " ".join(environment.from_string(_TEMPLATE).render(page=page).split())


def test_page_in_the_middle_leads_everywhere_and_keeps_the_filters() -> None:
    shown = _rendered(_MIDDLE)
    assert "101\u2013150</strong> of more than 1,000 keys" in shown
    for address in (
        "/keys?search=a+%26+b",
        "/keys?search=a+%26+b&amp;before=bmV3",
        "/keys?search=a+%26+b&amp;cursor=b2xk",
        "/keys?search=a+%26+b&amp;page=last",
    ):
        assert f'href="{address}"' in shown, shown
    assert 'name="search" value="a &amp; b"' in shown
    assert 'name="status"' not in shown
    assert 'value="3"' in shown


def test_first_page_offers_nothing_before_it() -> None:
    shown = _rendered(msgspec.structs.replace(_MIDDLE, first=1, newer=None))
    assert "before=" not in shown
    assert '<span class="button" aria-disabled="true">Previous</span>' in shown
    assert "cursor=b2xk" in shown


def test_only_page_has_no_pager() -> None:
    only = msgspec.structs.replace(_MIDDLE, total=Count(50), first=1, newer=None, older=None)
    assert _rendered(only) == ""
