"""octavo bench grammar: every schema is counted, as measured or as refused."""

import json

from octavo.bench.grammar import TYPICAL, GrammarLoad, grammar
from octavo.bench.workloads import WORKLOADS
from octavo.cli import bench
from octavo.testing.served import fake_model


def test_masks_of_typical_schemas_are_measured(tmp_path):
    records = grammar(GrammarLoad(model=str(fake_model(tmp_path)), walks=1, tokens=4))
    typical = records[0]
    assert typical["workload"] == "typical"
    assert (typical["schemas"], typical["refused"]) == (len(TYPICAL), 0)
    assert typical["masks"] == 4 * len(TYPICAL)
    assert 0 < typical["mask_us_p50"] <= typical["mask_us_p99"] <= typical["mask_us_max"]
    for record in records:
        assert record["schemas"] + len(record["reasons"]) >= len(TYPICAL)
        json.dumps(record)


def test_every_hostile_grammar_of_a_flood_is_answered_and_the_neighbour_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("octavo.core.grammar.trial.DEADLINE", 0.3)
    monkeypatch.setattr("octavo.core.grammar.compiler.COMMON", 0.2)
    monkeypatch.setattr("octavo.bench.flood._ALONE", 0.1)
    load = GrammarLoad(model=str(fake_model(tmp_path)), flood=7, step_ms=1.0)
    alone, beside = grammar(load)
    assert alone["gaps"] > 0
    assert beside["gaps"] > 0
    assert beside["refused"] + beside["failed"] + beside["answered"] == beside["sent"] == 7
    assert beside["refused"] >= 2  # one is no regex, one too deep
    json.dumps([alone, beside])


def test_structured_workloads_come_in_pairs(monkeypatch):
    groups = []

    def measure(works, engine, repeats, label):
        groups.append([(work.name, work.structured) for work in works])
        return []

    monkeypatch.setattr("octavo.bench.offline.throughput", measure)
    assert bench.main(["throughput", "--workload", "c1", "c8", "--structured", "json"]) == 0
    assert groups == [[("c1", ""), ("c1-json", "json")], [("c8", ""), ("c8-json", "json")]]
    groups.clear()
    assert bench.main(["throughput", "--workload", "c1", "c8", "--one-engine"]) == 0
    assert groups == [[("c1", ""), ("c8", "")]]
    assert not any(work.structured for work in WORKLOADS.values())
