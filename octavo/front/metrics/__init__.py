"""Numbers for people: Prometheus and the log line."""
