"""Metrics of several processes: sums of all, that outlive each of them."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.front.metrics import strips as rooms
from octavo.front.metrics.prometheus import OUTCOMES, Prometheus
from octavo.front.metrics.strips import Sheet, Strips


def values(metrics):
    """Samples of the text, but what the processes take."""
    lines = [line for line in metrics.text().decode().splitlines() if line[0] != "#"]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("process")}


def three():
    strips = Strips(3)
    return [Prometheus("m", 64, {"pages": 8}, strips=strips, own=own) for own in range(3)]


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(("received", *OUTCOMES)), st.floats(0, 3000)))


@given(STEPS)
def test_whoever_is_asked_tells_what_one_process_would(steps):
    alone, several = Prometheus("m", 64, {"pages": 8}), three()
    for own, what, seconds in steps:
        for metrics in (alone, several[own]):
            if what == "received":
                metrics.received()
                metrics.http("/v1/x", "GET", 200 + int(seconds) % 300, seconds)
            else:
                metrics.ended(what)
                metrics.more_tokens(seconds, 3)
    wanted = values(alone)
    for metrics in several:
        assert values(metrics) == pytest.approx(wanted)


def test_who_comes_after_one_that_ended_goes_on():
    strips = Strips(2)
    watcher, first = (Prometheus("m", 64, {}, strips=strips, own=own) for own in range(2))
    for _ in range(3):
        first.received()
    first.ended("succeeded")
    first.http("/v1/x", "GET", 200, 0.5)
    watcher.bury(1)
    after = values(watcher)
    received = 'octavo:requests_received_total{engine="0",model_name="m"}'
    ended = {
        name: after[f'octavo:requests_ended_total{{engine="0",model_name="m",outcome="{name}"}}'] for name in OUTCOMES
    }
    assert (after[received], ended["succeeded"], ended["aborted"]) == (3, 1, 2)
    second = Prometheus("m", 64, {}, strips=strips, own=1)
    assert values(second) == after
    second.received()
    assert values(watcher)[received] == 4
    watcher.bury(1)
    assert sum(value for name, value in values(watcher).items() if "requests_ended" in name) == 4


def test_processor_time_of_ended_processes_stays():
    strips = Strips(2)
    watcher = Prometheus("m", 64, {}, strips=strips, own=0)
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        strips[1].row(("pid",), 1)[0] = child.pid

        def told():
            return float(watcher.text().decode().partition("\nprocess_cpu_seconds_total ")[2].split()[0])

        before = told()
        child.kill()
        watcher.bury(1)
        assert told() >= before
    finally:
        child.kill()
        child.wait(240)
    assert told() >= before


def test_another_process_sees_the_same_numbers():
    fd = Strips.share(2)
    strips = Strips(2, fd)
    mine = Sheet(strips, 0).add("counter", "x", "text", ("a",))
    mine.number("b").inc(2)
    code = (
        f"from octavo.front.metrics.strips import *; s = Sheet(Strips(2, {fd}), 1);"
        "s.add('counter', 'x', 'text', ('a',)).number('b').inc(3); s.strip.row(('x', 'é\"'), 1)[0] = 1"
    )
    subprocess.run([sys.executable, "-c", code], pass_fds=(fd,), check=True, timeout=240)
    assert {name: row[0] for name, row in strips[1].rows().items()} == {("x", "b"): 3, ("x", 'é"'): 1}


def test_a_strip_that_is_full_harms_nobody(monkeypatch, caplog):
    monkeypatch.setattr(rooms, "SIZE", 1 << 10)
    family = Sheet(Strips(), 0).add("counter", "x", "text", ("a",))
    for at in range(100):
        family.number(f"value {at}").inc()
    assert len(family._strip.rows()) < 100
    assert caplog.text.count("no room for more metrics") <= 1
