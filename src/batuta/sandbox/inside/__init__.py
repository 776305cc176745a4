"""The code that runs inside a sandbox, without the rest of Batuta, on Python 3.11 or later.

It imports only the standard library, and little of it: every import slows each cold start, so even
`typing` and `pathlib` are left out, except in `notebook`, which the sandbox runs as a program. The
supervisor itself never runs a line of a program.
"""
