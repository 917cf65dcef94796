"""The benchmarks measure what they say, and print it in the promised shape. How fast it is isn't tested here."""

import json
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner

from slipstream import Engine, kernels
from slipstream.cli import cli
from slipstream.kernels import _native, reference
from slipstream.tools import bench_kernels, timing
from slipstream.tools.bench_pass import bench_pass


def test_interleaved_medians() -> None:
    order: list[str] = []
    done: list[tuple[int, int]] = []
    medians = timing.interleaved_medians(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, lambda *at: done.append(at)
    )
    assert sorted(zip(order[::2], order[1::2], strict=True)) == [("a", "a")] * 4 + [("b", "b")] * 4  # one to warm up
    assert all(set(order[at : at + 4]) == {"a", "b"} for at in range(0, 16, 4))  # each round has both
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert set(medians) == {"a", "b"}
    assert all(0 <= seconds < 1 for seconds in medians.values())


@pytest.mark.parametrize("size", [0, 127, 128, 4096, 3 * 2**20 + 5])
def test_the_probe_reads_everything(size: int) -> None:
    assert _native.ReadProbe(size).read() == reference.ReadProbe(size).read()


def test_bench_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kernels, "OUTPUTS", 64)
    monkeypatch.setattr(bench_kernels, "INPUTS", 256)
    monkeypatch.setattr(bench_kernels, "last_level_cache_bytes", lambda: 0)
    monkeypatch.setattr(bench_kernels, "SMALLEST_FOOTPRINT", 10**6)
    outcome = CliRunner().invoke(cli, ["bench", "kernels", "--json", "--repeats", "1"])
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout)
    assert result["read_bandwidth_gbps"] > 0
    assert set(result["types"]) == {"f32", "bf16", "int8", "int4"}
    for points in result["types"].values():
        assert [point["rows"] for point in points] == [1, 2, 3, 4, 6, 8, 12, 16, 32, 64]
        assert points[0]["ratio_to_one_row"] == 1
        for point in points:
            assert point["gmacs"] == pytest.approx(point["rows"] * 64 * 256 / point["seconds"] / 1e9)
            assert point["ratio_to_one_row"] == pytest.approx(point["seconds"] / points[0]["seconds"])


def test_bench_pass(tmp_path: Path) -> None:
    model = tiny.make(tmp_path / "model", max_position_embeddings=600)
    plot = tmp_path / "plot.png"
    arguments = ["bench", "pass", "--model", str(model), "--json", "--repeats", "1", "--plot", str(plot)]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout)
    assert [part["context"] for part in result["contexts"]] == [256]  # 2048 is more than the model holds
    assert [point["rows"] for point in result["contexts"][0]["passes"]] == [1, 2, 3, 4, 6, 8, 12, 16, 32, 64]
    assert result["prefill_tokens_per_second"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_pass_counts_the_bytes_that_it_reads(tmp_path: Path) -> None:
    untied = Engine.load(tiny.make(tmp_path / "untied"), dtype="f32").target
    tied = Engine.load(tiny.make(tmp_path / "tied", tie_word_embeddings=True), dtype="f32").target
    assert untied.pass_bytes == tied.pass_bytes == tied.weight_bytes
    assert untied.weight_bytes - untied.pass_bytes == untied.embedding.nbytes
    result = bench_pass(tied, repeats=1, rows=(1,), contexts=(16,))
    assert result["pass_bytes"] == tied.pass_bytes
    assert kernels.threads() >= 1


@pytest.mark.parametrize(("file", "message"), [("plot.gif", ".png, .svg or .pdf"), ("no/where.png", "doesn't exist")])
def test_bad_plot_files(tmp_path: Path, file: str, message: str) -> None:
    outcome = CliRunner().invoke(cli, ["bench", "kernels", "--plot", str(tmp_path / file)])
    assert message in str(outcome.exception)
