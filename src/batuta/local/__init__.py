"""Language models of this machine: found, fetched, checked, and served by llama.cpp."""
