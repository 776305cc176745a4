"""Logs, Prometheus metrics and OpenTelemetry spans of the server."""
