"""Floor 3, the machine: tensors. Knows nothing of HTTP or queues."""

import os

# Read by OpenMP when torch is loaded. A thread that waits at a barrier spins for a moment, then sleeps:
# by default it spins so long that a machine with other work on its cores gets a tenth of its speed, and sleeping at
# once makes every barrier a system call.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
