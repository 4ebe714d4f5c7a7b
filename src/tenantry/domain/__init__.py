"""The rules, as plain values and functions: no I/O, no clock, no randomness, no framework."""
