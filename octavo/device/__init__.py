"""Floor 3, the machine: tensors. Knows nothing of HTTP or queues."""
