"""An oracle of billing: what a history of provider events must end in, and which mails it must
cause.

Written from SPEC 2 to 6, the interface contract (sections 6 and 8), and
docs/explanation/subscriptions.md, before the service's code was read. It knows the order in which
events happened, so it needs none of the rules that find an order. It folds all events that have
arrived anew at each arrival: slow, and hard to get wrong.

`billing_oracle_events`, `_placement`, `_records` and `_mails` are its steps, in this order; what
the events of one tenant come to is `subscription_oracle`'s.
"""

from collections import Counter
from dataclasses import dataclass

from tests.support.billing_oracle_mails import Arrivals, ExpectedMail, misleading_moves
from tests.support.billing_oracle_records import ExpectedTenant
from tests.support.provider_world import History


@dataclass(frozen=True)
class Verdict:
    """How a history must end.

    `optional` are mails of which the documentation says neither that they are sent nor that they
    are not.
    """

    tenants: dict[str, ExpectedTenant]
    mails: Counter[ExpectedMail]
    optional: set[ExpectedMail]


def judge(history: History, now: int) -> Verdict:
    """Return what a history must end in, if its arrivals come at `now`, with all notices turned
    on.
    """
    arrivals = Arrivals(history, now)
    for position in history.arrivals:
        arrivals.take(position)
    view = arrivals.view
    mails = Counter(
        ExpectedMail("payment_failed", tenant, history.events[position]["id"])
        for position, tenant in arrivals.failure_mails.items()
    )
    mails.update(arrivals.notices)
    mails.update(arrivals.ends)
    arrivals.optional |= {
        ExpectedMail("subscription_ended", tenant.id, subscription)
        for subscription in misleading_moves(history)
        for tenant in history.tenants
    }
    return Verdict(view.tenants, mails, arrivals.optional)
