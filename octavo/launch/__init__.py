"""Builds the floors and joins them: the only place, with `llm` and `async_llm`, that knows more than one."""
