"""Formatting of event payloads."""

from tenantry.dashboard.event_payload import readable_payload


def test_payload_has_one_value_a_line() -> None:
    assert readable_payload(b'{"a":[1,{"b":"[]{}"}]}').count("\n") == 7


def test_deeply_nested_payload_stays_small() -> None:
    body = b"[" * 500 + b",".join([b"1"] * 10_000) + b"]" * 500
    assert len(readable_payload(body)) < 2 * len(body)


def test_payload_without_json_is_shown_unchanged() -> None:
    assert readable_payload(b"\xff}") == "\ufffd}"
