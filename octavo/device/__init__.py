"""Floor 3, the machine: tensors. Knows nothing of HTTP or queues."""

import os

# Read by OpenMP when torch is loaded. A thread that waits at a barrier spins for a moment, then sleeps. At its default
# of 300,000 turns a step takes 10 times as long once other work wants the cores, at 2,000 still a fifth longer than at
# 1,000, which an idle machine does not notice; sleeping at once costs a tenth there.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
