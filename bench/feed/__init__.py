"""A follower of the feed of changes, under load and faults."""
