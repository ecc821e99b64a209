"""The numbers octavo quotes: built-in workloads, the way they are timed, and the records they leave."""
