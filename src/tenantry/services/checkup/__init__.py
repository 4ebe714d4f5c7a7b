"""The check-up: what is wrong with a set-up, and how to mend it.

Each check gives findings, and judges in functions that ask nobody. No finding shows a secret, nor another
program's own words, which may repeat one.
"""
