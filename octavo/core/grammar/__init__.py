"""Structured output: what a request may say next."""
