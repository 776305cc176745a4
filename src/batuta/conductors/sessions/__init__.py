"""Sessions, such as a coding agent's: many requests with the client's tools, conducted as one."""
