"""Attacks on the sandbox, by programs that it runs; measured by `python -m support.attacks.measure`, see docs/sandbox.py.

They are for the sandbox that the tests start, and nothing else: they signal or look into no process but those below the
test and a dummy that it started, write nowhere but into its own directory, and take back what they could get.
"""
