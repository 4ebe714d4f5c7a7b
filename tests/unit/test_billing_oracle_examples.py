"""The oracle of billing gives the ends that the documentation states."""

from tests.support.billing_examples import BillingExample, billing_examples
from tests.support.billing_oracle import judge
from tests.support.billing_oracle_records import ExpectedTenant

NOW = 1_795_176_000


def _stated(record: ExpectedTenant, names: object) -> dict[str, object]:
    shown = vars(record) | {
        "access": (record.access.state, record.access.plan),
        "access_until": record.access.until,
    }
    assert isinstance(names, dict)
    return {name: shown[name] for name in names}


def _faults(example: BillingExample) -> list[str]:
    verdict = judge(example.history, NOW)
    found = []
    for tenant, ends in example.ends.items():
        if (judged := _stated(verdict.tenants[tenant], ends)) != ends:
            found.append(f"{example.name}: {judged}, not {ends}")
    for tenant, mails in example.mails.items():
        kinds = sorted(mail.kind for mail in verdict.mails.elements() if mail.tenant == tenant)
        if kinds != sorted(mails):
            found.append(f"{example.name}: mails {kinds}, not {mails}")
    return found


def test_the_oracle_gives_the_ends_that_the_documentation_states() -> None:
    examples = billing_examples(NOW)
    assert len({example.name for example in examples}) == len(examples)
    assert [fault for example in examples for fault in _faults(example)] == []
