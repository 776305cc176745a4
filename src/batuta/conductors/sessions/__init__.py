"""How the work of agents is conducted: sessions of many requests with the clients' tools."""
