"""Floor 2, the accountant: who runs next, in which pages. numpy and ints, no torch."""
