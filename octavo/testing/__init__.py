"""Doubles and small real things for tests of octavo and of programs that use it."""
