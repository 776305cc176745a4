"""The programs that run inside a sandbox, alone, under any Python from 3.11 on.

Nothing but the standard library, and little of that: every import is paid at each cold start, so
even `typing` and `pathlib` are left out. The supervisor itself never runs a line of a program.
"""
