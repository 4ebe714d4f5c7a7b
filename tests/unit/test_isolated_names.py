"""Names of right-to-left scripts where pages have no markup for them."""

from markupsafe import Markup

from tenantry.dashboard.labels import ShownCatalog, isolated
from tenantry.domain.plans import parse_catalog
from tests.support.cases import cases

NAME = "شركة النور"


@cases("text", ["", "Acme", "Zürich 2030", "株式会社"])
def test_text_without_right_to_left_letters_stays_as_it_is(text: str) -> None:
    assert isolated(text) == text


@cases("text", [NAME, "Acme שלום", "\u202eabc"])
def test_right_to_left_text_is_isolated(text: str) -> None:
    assert isolated(text) == f"\u2068{text}\u2069"


def test_markup_stays_markup() -> None:
    title = Markup("<b>") + NAME + "&"
    assert isolated(title) == f"\u2068<b>{NAME}&amp;\u2069"
    assert isinstance(isolated(title), Markup)


def test_plans_and_addons_have_isolated_names() -> None:
    addon = f'[[addons]]\nid = "more"\nname = "{NAME}"\nstripe_price_id = "price_more"\n[addons.limits]\nprojects = 1\n'
    shown = ShownCatalog(parse_catalog(f'[[plans]]\nid = "free"\nname = "{NAME}"\n{addon}'))
    assert shown.name("free") == shown.addon_name("more") == f"\u2068{NAME}\u2069"
    assert (shown.name("gone"), [plan.id for plan in shown.plans]) == ("gone", ["free"])
