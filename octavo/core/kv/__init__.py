"""The page ledger: who owns which page, what a page holds, what may be thrown away."""
