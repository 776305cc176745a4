"""Bodies of the API's dialects to questions, and runs to bodies. Pure."""
