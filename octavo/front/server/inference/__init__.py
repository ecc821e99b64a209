"""Tokens in, tokens out; and the two halves of the OpenAI routes around it: render and derender."""
