"""`octavo bench front`, `soak` and `parsers`: small runs tell what they should."""

from octavo.bench import parsers
from octavo.bench.front import FrontLoad, front
from octavo.bench.soak import SoakLoad, _api_killed, soak


def test_what_the_front_adds_is_measured():
    record = front(FrontLoad(connections=4, rounds=2, outputs=24, step_ms=2.0))
    assert record["tokens"] == 4 * 2 * 24
    assert 0 < record["added_ms_p50"] <= record["added_ms_p99"] <= record["added_ms_max"]


def test_a_small_soak_leaves_nothing():
    record = soak(SoakLoad(requests=150, connections=8))
    assert (record["done"] + record["given_up"], record["broken"], record["failed"]) == (150, 0, 0)
    assert record["received"] == 150
    assert record["balanced"]
    assert record["at_rest"]
    assert record["ended"]["aborted"] > 0


def test_a_small_soak_of_two_api_processes():
    load = SoakLoad(requests=100, connections=8, apis=2)
    record = soak(load)
    assert (record["received"], record["failed"], record["api_server_count"]) == (100, 0, 2)
    assert _api_killed(load) == dict.fromkeys(("started_again", "at_rest", "balanced", "aborted"), True)


def test_every_format_streams_a_long_argument(monkeypatch):
    monkeypatch.setattr(parsers, "SIZE", 2000)
    records = parsers.parsers(repeats=1)
    assert {"parser hermes", "parser gemma4", "parser mistral"} <= {record["workload"] for record in records}
