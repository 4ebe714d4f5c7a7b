"""Billing state: provider events, the ledger, reconciliation and replay, with their SQL."""
