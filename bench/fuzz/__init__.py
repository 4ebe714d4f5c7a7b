"""Throwing bytes at every parser that meets those of others."""
