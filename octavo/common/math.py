"""Small integer arithmetic."""


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """The least power of two that is at least ``n`` (1 for n <= 1)."""
    return 1 << max(n - 1, 0).bit_length()
