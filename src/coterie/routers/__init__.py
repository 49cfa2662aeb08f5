"""Routers: who should answer this query. None of them holds a pool or knows a backend."""
