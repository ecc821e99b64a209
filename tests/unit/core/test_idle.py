"""What a device makes ready while nothing runs: it is asked for only then, as often as it wants, and never asleep."""

from core.test_engine import ask, finish, make


def watched(core, answers):
    """Note each ``idle`` and whether a step was in flight or wanted then."""
    seen = []

    def idle():
        seen.append(bool(core.outstanding or core.runnable))
        return answers.pop(0) if answers else None

    core.worker.idle = idle
    return seen


def test_a_device_is_asked_again_until_it_has_nothing_more():
    core = make(depth=2)
    seen = watched(core, [0.0, 0.0, 0.001])
    for _ in range(4):
        core.poll(3600.0 if len(seen) < 3 else 0.0)
    core.poll(0.01)
    assert seen == [False] * 4
    core.close()


def test_requests_come_first():
    core = make(depth=2)
    seen = watched(core, [0.0] * 1000)
    core.add([ask(handle) for handle in range(5)])
    told = finish(core)
    assert all(len(one.tokens) == 5 for one in told.values())
    assert not any(seen)
    core.close()


def test_a_device_that_sleeps_is_left_alone():
    core = make()
    core.asleep = 1
    seen = watched(core, [0.0])
    core.poll(0.001)
    assert not seen
    core.close()
