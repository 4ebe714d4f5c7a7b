"""The types of outbound events, and the page that explains them."""

import re
from pathlib import Path
from typing import Final

from tenantry.domain.audit import Action
from tenantry.domain.outbound_events import TYPE_OF_ACTION, EventType, TypeFilter
from tests.support.cases import cases

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "change-events.md"


def test_the_reference_explains_each_type_in_its_order() -> None:
    explained = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert explained == list(EventType)


@cases("action", Action)
def test_each_action_on_an_object_of_the_feed_is_an_event(action: Action) -> None:
    kind = action.partition(".")[0]
    told = TypeFilter([f"{kind}.*"]).types() if action in TYPE_OF_ACTION else []
    if kind in ("billing", "person", "project") or action is Action.TENANT_EXPORTED:
        assert told == []  # they change no object of the feed
    else:
        assert TYPE_OF_ACTION[action] in told
