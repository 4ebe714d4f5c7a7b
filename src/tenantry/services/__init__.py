"""Use cases: one async function each, which owns the transaction."""
