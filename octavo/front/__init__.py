"""Floor 1, the people's side: text and media in, text out. Never imports torch."""
