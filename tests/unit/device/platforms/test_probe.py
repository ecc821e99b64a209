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


def test_a_processor_is_read_from_what_the_kernel_tells():
    intel = probe._cpu(
        "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\nflags\t: x"
    )
    assert intel == ("A CPU", {"fpu", "avx2", "amx_bf16"})
    arm = probe._cpu("processor\t: 0\nFeatures\t: asimd bf16\n")
    assert arm.flags == {"asimd", "bf16"}
    assert arm.name
    assert probe._cpu("").flags == frozenset()
    assert probe.cpu().name
