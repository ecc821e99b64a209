"""octavo bench grammar --forced: pairs of engines that say the same, one of them in fewer steps."""

import json

from octavo.bench.forced import ForcedLoad, forced
from octavo.testing import tiny, tokenizer
from octavo.testing.served import PATIENCE


def test_answers_are_the_same_with_drafts_of_what_is_forced_and_take_fewer_steps(tmp_path, monkeypatch):
    for limit in ("DEAR", "DEAR_MEAN", "STEP"):  # however long this machine takes
        monkeypatch.setattr(f"octavo.core.grammar.cost.{limit}", PATIENCE)
    folder = tokenizer.write(tiny.write_hf(tmp_path, "LlamaForCausalLM", max_position_embeddings=2048), size=320)
    records = forced(ForcedLoad(rows=(1, 3), pairs=2, engine={"model": str(folder), "dtype": "float32", "threads": 1}))
    assert [(one["workload"], one["rows"]) for one in records] == [
        ("record", 1),
        ("record", 3),
        ("call", 1),
        ("call", 3),
    ]
    for one in records:
        json.dumps(one)
        assert one["same"] == one["rows"]
        assert 0 < one["accepted"] <= one["drafted"]
        assert one["tokens"] > one["accepted"]
        assert len(one["gains"]) == one["pairs"] == 2
        if one["rows"] == 1:  # of several requests each may be ready at another time
            assert one["steps"] < one["steps_without"]
            assert one["steps"] <= one["first_steps"]
