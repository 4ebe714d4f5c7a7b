"""Benchmarks, fault injection and fuzzing."""
