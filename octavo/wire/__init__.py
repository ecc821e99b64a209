"""Every value that crosses a process or a floor. msgspec structs and numpy arrays; no torch."""
