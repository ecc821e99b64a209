"""Who runs next: plans out of requests, tokens out of results."""
