import pytest

from vitling.data.host import container_cores, container_memory, count_cores, has_bf16, read_number
from vitling.errors import UserError


@pytest.mark.parametrize("version", [1, 2])
def test_container_memory_is_limit_minus_usage(tmp_path, version):
    limit, usage = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    own = tmp_path / ("memory" if version == 1 else "") / "user" / "job"
    own.mkdir(parents=True)
    assert container_memory(tmp_path, {}) == []
    (own / limit).write_text("5000\n")
    (own / usage).write_text("3000\n")
    (own / "memory.stat").write_text("anon 10\ninactive_file 500\ntotal_inactive_file 500\n")
    assert container_memory(tmp_path, {"memory" if version == 1 else "": "/user/job"}) == [2500]
    assert container_memory(tmp_path, {"memory" if version == 1 else "": "/user/job/deeper"}) == [2500]
    (own / limit).write_text("max\n")
    assert container_memory(tmp_path, {"memory" if version == 1 else "": "/user/job"}) == []


@pytest.mark.parametrize("version", [1, 2])
def test_container_cores_follow_the_cpu_quota(tmp_path, version):
    controller = "cpu" if version == 1 else ""
    own = tmp_path / controller / "user" / "job"
    own.mkdir(parents=True)

    def limited(time: str) -> list[float]:
        if version == 1:
            (own / "cpu.cfs_quota_us").write_text(f"{time}\n")
            (own / "cpu.cfs_period_us").write_text("100000\n")
        else:
            (own / "cpu.max").write_text(f"{time} 100000\n")
        return container_cores(tmp_path, {controller: "/user/job/deeper"})

    assert container_cores(tmp_path, {controller: "/user/job"}) == []
    assert limited("250000") == [2.5]
    assert limited("-1" if version == 1 else "max") == []
    assert limited("nonsense") == []


@pytest.mark.parametrize(("shares", "expected"), [([], 8), ([2.5], 2), ([0.5], 1), ([64.0, 4.0], 4)])
def test_cores_are_rounded_down_to_at_least_one(monkeypatch, shares, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("vitling.data.host.container_cores", lambda root, groups: shares)
    assert count_cores() == expected


def test_bf16_is_read_from_the_flags_of_the_cpu(tmp_path):
    for flags, expected in (
        ("flags\t\t: fpu avx2 avx512_bf16", True),
        ("Features : asimd bf16", True),
        ("flags : avx2", False),
    ):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\nbugs\t\t:\n")
        assert has_bf16(tmp_path / "cpuinfo") == expected
    assert not has_bf16(tmp_path / "missing")


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf"])
def test_environment_variables_that_are_no_number_are_named(monkeypatch, text):
    monkeypatch.setenv("VITLING_CACHE_GB", text)
    with pytest.raises(UserError, match=f"VITLING_CACHE_GB is '{text}'"):
        read_number("VITLING_CACHE_GB", 20)
    monkeypatch.setenv("VITLING_CACHE_GB", "")
    assert read_number("VITLING_CACHE_GB", 20) == 20
