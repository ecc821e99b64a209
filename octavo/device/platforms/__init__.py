"""What a device can do."""
