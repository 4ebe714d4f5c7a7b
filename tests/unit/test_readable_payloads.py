"""Formatting of event payloads."""

from tenantry.dashboard.events import readable_payload


def test_payload_has_a_line_for_each_value() -> None:
    assert readable_payload(b'{"a":[1,{"b":"[]{}"}]}').count("\n") == 7


def test_payload_of_any_depth_is_not_blown_up() -> None:
    body = b"[" * 500 + b",".join([b"1"] * 10_000) + b"]" * 500
    assert len(readable_payload(body)) < 2 * len(body)


def test_payload_that_is_no_json_is_shown_as_it_is() -> None:
    assert readable_payload(b"\xff}") == "\ufffd}"
