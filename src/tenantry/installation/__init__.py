"""The state of the installation, as the operator sees it: checks, each with what to do about a
problem.
"""
