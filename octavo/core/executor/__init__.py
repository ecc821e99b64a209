"""How the core reaches its workers."""
