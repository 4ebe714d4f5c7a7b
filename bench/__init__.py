"""Benchmarks, torture and fuzzing."""
