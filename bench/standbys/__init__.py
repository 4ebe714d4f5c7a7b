"""Strict checks on standbys: what faults, regions and the number of standbys do to them."""
