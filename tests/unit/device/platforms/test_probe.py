from octavo.common import probe


def test_a_container_has_what_its_cgroup_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_CGROUP", tmp_path)
    plain = probe.memory()
    assert 0 < plain.free <= plain.total
    assert probe.cores() >= 1
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 300000\n")
    assert probe.cores() == 1
    assert probe.memory() == (1000000, 400000)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert probe.memory().total == plain.total
