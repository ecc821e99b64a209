"""Small integer arithmetic."""


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def round_up(a: int, to: int) -> int:
    """The least multiple of ``to`` that is at least ``a``."""
    return -(-a // to) * to


def next_power_of_two(n: int) -> int:
    """The least power of two that is at least ``n`` (1 for n <= 1)."""
    return 1 << max(n - 1, 0).bit_length()
