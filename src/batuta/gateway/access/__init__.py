"""Callers and their limits: authentication, sign-in, rates and concurrency of keys."""
