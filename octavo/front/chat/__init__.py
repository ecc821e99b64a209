"""Conversations to prompts: messages, and the template that writes them."""
