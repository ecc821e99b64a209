"""The loop that joins requests, scheduler and device."""
