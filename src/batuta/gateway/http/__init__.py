"""HTTP: connections, request bodies, middleware, limits and idempotency."""
