"""The path of a call through the server: preparing, admitting, running and delivering it."""
