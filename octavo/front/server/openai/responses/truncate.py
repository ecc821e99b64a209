"""``truncation`` auto: the oldest turns of a conversation that is too long for the model are left out."""

from collections.abc import Awaitable, Callable, Sequence

from octavo.front.server.openai.responses.convert import Placed
from octavo.front.server.openai.responses.schema import MessageItem


async def shortened(items: Sequence[Placed], fits: Callable[[Sequence[Placed]], Awaitable[bool]]) -> Sequence[Placed]:
    """``items`` without as many turns from the start as must go; a turn begins with a user's message, and what stands
    before the first one stays. ``fits`` is asked some log2(turns) times. The last turn stays, whether it fits or not.
    """
    starts = [place for place, (_, item) in enumerate(items) if isinstance(item, MessageItem) and item.role == "user"]
    if len(starts) < 2 or await fits(items):
        return items
    head = items[: starts[0]]
    low, high = 1, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if await fits([*head, *items[starts[middle] :]]):
            high = middle
        else:
            low = middle + 1
    return [*head, *items[starts[low] :]]
