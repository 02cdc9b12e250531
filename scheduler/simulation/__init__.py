"""Engines, clients and rival routers in virtual time, around the scheduler's own decision code. No clock, no I/O."""
