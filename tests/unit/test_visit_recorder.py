"""How often a process records the same user."""

from datetime import timedelta

import msgspec

from tenantry.auth.user_profiles import VisitRecorder, visit_writes
from tenantry.auth.user_profiles_store import SEEN_EVERY, UserVisit
from tenantry.db.database import Database
from tenantry.integrations.oidc.claims import Claims
from tests.support.issuer import NOW

CLAIMS = Claims(
    issuer="https://id.example",
    subject="ada",
    org_id=None,
    role=None,
    scopes=(),
    issued_at=NOW,
    expires_at=NOW,
    email="ada@acme.example",
    name="Ada",
)


def test_user_is_recorded_once_in_an_hour_for_each_tenant() -> None:
    now = NOW
    writes = visit_writes(Database("", pool_size=1))
    recorder = VisitRecorder(lambda: now, writes)
    for org_id in ("acme", "beta", "acme"):
        recorder.record(org_id, CLAIMS)
    assert list(writes.items.values()) == [
        UserVisit(org_id, "https://id.example", "ada", "Ada", "ada@acme.example", None, NOW)
        for org_id in ("acme", "beta")
    ]
    writes.items.clear()
    now = NOW + SEEN_EVERY - timedelta(seconds=1)
    recorder.record("acme", CLAIMS)
    assert writes.items == {}
    now = NOW + SEEN_EVERY
    recorder.record("acme", CLAIMS)
    assert [visit.seen_at for visit in writes.items.values()] == [NOW + SEEN_EVERY]


def test_user_is_recorded_again_with_another_address() -> None:
    writes = visit_writes(Database("", pool_size=1))
    recorder = VisitRecorder(lambda: NOW, writes)
    recorded = []
    for email in (None, "ada@acme.example", None, "ada@acme.example", "ada@beta.example"):
        recorder.record("acme", msgspec.structs.replace(CLAIMS, email=email))
        recorded += [visit.email for visit in writes.items.values()]
        writes.items.clear()
    assert recorded == [None, "ada@acme.example", "ada@beta.example"]


def test_remembered_users_are_bounded() -> None:
    writes = visit_writes(Database("", pool_size=1))
    recorder = VisitRecorder(lambda: NOW, writes, most=2)
    for subject in ("ada", "grace", "hedy"):
        recorder.record("acme", msgspec.structs.replace(CLAIMS, subject=subject))
    writes.items.clear()
    for subject in ("hedy", "ada"):
        recorder.record("acme", msgspec.structs.replace(CLAIMS, subject=subject))
    assert [visit.subject for visit in writes.items.values()] == ["ada"]
