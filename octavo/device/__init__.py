"""Floor 3, the machine: tensors. Knows nothing of HTTP or queues."""

import os

# Read by OpenMP when torch is loaded. A thread that waits at a barrier spins so many turns, then sleeps. It has to
# outlast the gaps between a step's small parallel regions, or each of them wakes a sleeping thread: at 1,000 turns
# a step of 8 rows took 1.4 times as long on idle cores. The default of 300,000 gained nothing clear over this, and
# spins ten times as long wherever other work has taken a core.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")
