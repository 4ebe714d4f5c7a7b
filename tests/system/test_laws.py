"""The laws of `tests/laws` for more examples than `make test` has time for."""

from hypothesis import settings

from tests.laws import test_billing_laws, test_confirming_answers, test_event_laws, test_every_order, test_refold_laws
from tests.laws.test_key_containment import KeysMakingKeys
from tests.laws.test_member_laws import run_member_operations

_thorough = settings(max_examples=500, deadline=None)

test_every_order_of_delivery = _thorough(
    test_billing_laws.test_every_order_of_delivery_leads_to_the_state_that_the_history_leads_to
)
test_failures_are_told_once = _thorough(
    test_billing_laws.test_a_failure_is_told_at_most_once_and_exactly_once_unless_its_invoice_was_paid
)
test_history_in_order = _thorough(test_billing_laws.test_the_history_in_order_is_told_in_full)
test_batches = _thorough(test_billing_laws.test_batches_and_checkpoints_make_no_difference)
test_two_endpoints = _thorough(
    test_every_order.test_both_shapes_of_any_history_from_two_endpoints_end_as_the_history_in_order
)
test_fold_as_it_is_read = _thorough(test_refold_laws.test_a_fold_as_it_is_read_is_the_fold_of_the_whole)
test_order_of_the_fold = _thorough(test_refold_laws.test_events_come_out_in_the_order_of_the_fold)
test_replay = _thorough(test_refold_laws.test_what_is_stored_is_what_a_replay_comes_to)
test_replaced_answers = _thorough(
    test_confirming_answers.test_with_and_without_the_answers_that_were_replaced_the_state_is_the_same
)
test_any_object_of_an_event = _thorough(
    test_event_laws.test_any_object_and_previous_attributes_make_an_event_or_are_refused
)


TestKeysMakingKeys = KeysMakingKeys.TestCase
TestKeysMakingKeys.settings = settings(max_examples=500, stateful_step_count=15, deadline=None)


def test_members(conninfo: str) -> None:
    run_member_operations(conninfo, sequences=100)
