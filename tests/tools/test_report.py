"""Reports of made-up results say what the results say, wins and losses alike, and refuse what isn't one."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import results
import tiny
from click.testing import CliRunner

from slipstream import Engine
from slipstream.cli import cli, main
from slipstream.errors import OptionError
from slipstream.tools import bench_kernels
from slipstream.tools.bench_pass import bench_pass
from slipstream.tools.report import SECTIONS, headline, html_page, markdown_page, read_results
from slipstream.tools.report.plots import Dots, Lines, Value
from slipstream.tools.report.records import KINDS, Result

ROOT = Path(__file__).parents[2]
SAMPLES: dict[str, Callable[..., dict[str, Any]]] = {
    "generate": results.generate,
    "batch": results.batch,
    "peers": results.peers,
    "pass": results.bench_pass,
    "kernels": results.kernels,
    "load": results.load,
}


@pytest.fixture
def all_results(tmp_path: Path) -> list[Result]:
    return read_results(results.write(tmp_path, **{kind: sample() for kind, sample in SAMPLES.items()}))


def read(tmp_path: Path, **records: dict[str, Any]) -> list[Result]:
    return read_results(results.write(tmp_path, **records))


def plots(page: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r'<svg [^>]*class="plot".*?</svg>', page, re.DOTALL)]


class Page(HTMLParser):
    """The cells of each table; fails on tags that don't match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


# What is said ---------------------------------------------------------------------------------------------------------


def test_gains_and_losses_are_both_told(tmp_path: Path) -> None:
    [identical, words] = headline(read(tmp_path, generate=results.generate()))
    assert "Every output" in identical
    assert "The median of 120 prompts is faster than plain decoding with auto (1.48×), draft_model (1.42×)" in words
    assert "ngram on code_edit (3.10×)" in words
    losses = words.partition("Slower than plain decoding, drafting included: ")[2]
    told = ["draft_model on translation (0.95×, ", "; ngram on translation (0.88×, ", ", qa (0.93×, "]
    assert [part for part in told if part in losses] == told
    assert "auto" not in losses  # 1.00 at worst
    assert "stem" not in losses  # 0.99 is noise


def test_an_overall_loss_is_no_gain(tmp_path: Path) -> None:
    [_, words] = headline(
        read(
            tmp_path,
            generate=results.generate(
                overall={"ngram": results.figures(0.9), "auto": results.figures(1.01)},
                categories={"qa": {"ngram": results.figures(0.9)}},
            ),
        )
    )
    assert "is no faster than plain decoding with auto (1.01×). " in words
    assert "is SLOWER than plain decoding with ngram (0.90×). " in words
    assert "gain" not in words


def test_a_loss_has_its_reason(tmp_path: Path) -> None:
    """Half a token more a pass, for passes that take two thirds longer."""
    group = {"ngram": results.figures(0.9, mean_accepted_length=1.5)}
    [_, words] = headline(read(tmp_path, generate=results.generate(overall=group, categories={"qa": group})))
    assert "ngram on qa (0.90×, 1.50 tokens a pass, for 1.67 times its time)" in words


def test_no_losses(tmp_path: Path) -> None:
    group = {"ngram": results.figures(1.5)}
    [_, words] = headline(read(tmp_path, generate=results.generate(overall=group, categories={"qa": group})))
    assert words.endswith("No drafter is slower than plain decoding in any category.")


def test_a_difference_comes_first(tmp_path: Path) -> None:
    record = results.generate()
    at = {"prompt": 3, "position": 17, "plain": 5, "drafted": None}
    record["categories"]["qa"]["ngram"].update(identical=False, first_difference=at)
    found = read(tmp_path, generate=record, batch=results.batch())
    assert headline(found)[0] == f"NOT identical to plain decoding: ngram on qa ({results.MODEL}, bf16, avx2)."
    assert "NO: prompt 3, position 17" in html_page(found)
    assert "NO: prompt 3, position 17" in markdown_page(found)


def test_differences_of_batches_and_beside_peers_count_too(tmp_path: Path) -> None:
    batch, peers = results.batch(), results.peers()
    batch["sizes"]["4"]["ngram"]["identical"] = False
    peers["systems"]["slipstream"]["modes"]["ngram"]["overall"]["identical"] = False
    first = headline(read(tmp_path, batch=batch, peers=peers))[0]
    assert "ngram in a batch of 4" in first
    assert "slipstream ngram beside its peers" in first
    assert "llama.cpp" not in first  # that's for its own line


def test_a_busy_machine_is_told(tmp_path: Path) -> None:
    warnings = ["the machine was busy at the start: 3.1 processors were in use"]
    record = results.generate(environment=results.environment(quiet=False, warnings=warnings))
    [_, busy, _] = headline(read(tmp_path, generate=record))
    assert busy == f"Distrust the speeds in generate.json: {warnings[0]}."


def test_where_batches_cease_to_pay(tmp_path: Path) -> None:
    [_, words] = headline(read(tmp_path, batch=results.batch()))
    assert "1.12× at 4, 0.94× at 8, 0.71× at 16; slower than plain decoding at 8 and 16. " in words
    assert words.endswith("1.00× at 8, 0.98× at 16; never slower than plain decoding.")


def test_peers_are_compared_by_their_fastest_modes(tmp_path: Path) -> None:
    [_, words] = headline(read(tmp_path, peers=results.peers()))
    assert "fastest mode: slipstream 27.4 (ngram), llama.cpp 17.9 (plain) and openvino 8.7 (plain). " in words
    assert "Slower than their own plain decoding: llama.cpp ngram-simple (0.91×), llama.cpp draft (0.55×) and" in words
    assert "Other tokens than their own plain decoding: llama.cpp ngram-simple. " in words
    assert words.endswith("Failed: vllm plain.")


def test_when_a_peer_is_faster(tmp_path: Path) -> None:
    record = results.peers()
    record["systems"]["llama.cpp"]["modes"]["draft"] = results.peer(40.0, 2.2, True)
    found = read(tmp_path, peers=record)
    assert "fastest mode: llama.cpp 40.0 (draft), slipstream 27.4 (ngram) and" in headline(found)[1]
    [finding] = [finding for finding in SECTIONS["peers"](found[0]).findings if "fastest" in finding.text]
    assert finding.tone == "loss"


def test_errors_under_load_are_told(tmp_path: Path) -> None:
    [words] = headline(read(tmp_path, load=results.load()))
    assert "with 8 clients and 52% of the requests within the limits; 0 errors in all." in words
    assert words.endswith("; 2 errors in all.")


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(all_results: list[Result]) -> None:
    page = html_page(all_results)
    assert not re.search(r"<script|<link|<img|<iframe|\bsrc=|url\(|@import|href=\"[^#]", page)
    assert 'lang="en"' in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    for target in re.findall(r'href="#(.*?)"', page):
        assert f'id="{target}"' in page


def test_every_kind_has_plots_with_a_table(all_results: list[Result]) -> None:
    assert {result.kind for result in all_results} == set(KINDS) == set(SECTIONS)
    page = html_page(all_results)
    found = plots(page)
    assert all(plot.get("role") == "img" and plot.get("aria-label") for plot in found)
    titles = {plot.get("aria-label", "") for plot in found}
    for beginning in (
        "Speed-up, ",
        "Mean accepted length, ",
        "Acceptance by position, ",
        "Cost of a pass, ",
        "Cost of a linear layer",
        "Speed-up by batch size, ",
        "Plain and speculative decoding, ",
        "Time to first token, ",
        "Time between tokens, ",
        "Output, ",
        "Goodput, ",
    ):
        assert any(title.startswith(beginning) for title in titles), beginning
    tables = Page(page).tables
    blocks = [block for result in all_results for block in SECTIONS[result.kind](result).blocks]
    assert len(tables) == len(blocks) + 1
    for table, block in zip(tables[1:], blocks, strict=True):
        assert table == [[*block.table.header], *([cell.text for cell in row] for row in block.table.rows)]
        assert {len(row) for row in table} == {len(block.table.header)}


def test_the_tables_hold_the_figures(all_results: list[Result]) -> None:
    page = Page(html_page(all_results))
    tables = {(table[0][0], table[0][1]): table for table in reversed(page.tables)}
    speedups = tables["Category", "ngram"]
    assert speedups[0] == ["Category", "ngram", "draft_model", "auto"]
    assert ["translation", "0.88× ▼", "0.95× ▼", "1.00×"] in speedups
    assert speedups[-1] == ["overall", "1.11× ▲", "1.42× ▲", "1.48× ▲"]
    assert ["ngram", "62%", "71%", "78%", "80%", "82%"] in tables["Drafter", "1"]
    assert ["auto", "83%", "74%", "72%", "–", "–"] in tables["Drafter", "1"]
    assert tables["Batch", "Plain, tokens/s"][-1][3:7] == ["0.71× ▼", "0.64 to 0.78", "0.85× ▼", "yes"]
    systems = tables["System", "Version"]
    assert systems[5][:6] == ["llama.cpp", "b7100", "ngram-simple", "16.2", "0.91× ▼", "NO"]
    assert systems[-1][:4] == ["vllm", "0.32", "plain: failed: killed: out of memory", "–"]
    assert tables["Clients", "Tokens/s"][1][2:5] == ["200.0", "300.0", "500.0"]
    assert tables["Requests a second", "Tokens/s"][-1][-1] == "2"
    details = tables["Category", "Drafter"]
    assert details[1][:4] == ["code_edit", "ngram", "8", "1"]
    environment = tables["File", "Machine"]
    assert environment[1][1].endswith("avx2, 2 threads, Linux 6.1.0, read bandwidth 28.1 GB/s before, 27.6 after")
    assert environment[1][3:] == ["5d5c1f9", "2026-11-29 21:00:00 UTC", "yes"]


def test_what_files_bring_is_only_text(tmp_path: Path) -> None:
    nasty = "<script>alert('1')</script> & \"quoted\" | *bold* `code` [link](http://x) _em_\n# heading \ud800"
    record = results.generate(model=nasty, draft_model=nasty, environment=results.environment(processor=nasty))
    record["categories"] = {nasty: record["overall"]}
    peers = results.peers(systems={nasty: {"version": nasty, "modes": {nasty: results.peer(3.0, 1.0, True)}}})
    found = read(tmp_path, generate=record, peers=peers, load=results.load(model=nasty))
    page = html_page(found).encode(errors="replace").decode()
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page
    Page(page)
    assert plots(page)
    document = markdown_page(found)
    assert not re.search(r"(?<!\\)[<*[`]", re.sub(r"^( {4}.*|.*`make results`.*)$", "", document, flags=re.MULTILINE))
    assert document.count("\n# heading") == 0
    for table in re.findall(r"(?:^\|.*\n)+", document, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "generate.json"), "-o", str(out)]) == 0  # half a pair can't be encoded
    out.read_text(encoding="utf-8")


def test_figures_that_there_are_not(tmp_path: Path) -> None:
    """Categories without a timed prompt, drafters and modes without figures, nothing answered, nothing at all."""
    empty = results.figures(1.0, acceptance_by_position=[], mean_accepted_length=0.0, tokens_per_second=0.0)
    for measure in ("speedup", "speedup_quartiles", "speedup_with_prefill", "time_to_first_token"):
        empty[measure] = None
    nothing = results.generate(categories={"qa": {"ngram": empty}}, overall={"ngram": empty}, cost_curve=[], limit=None)
    silent = results.level("closed", 1, **dict.fromkeys(["time_to_first_token", "time_between_tokens"], NO_TIMES))
    silent["goodput"]["share"] = None
    silent["output_tokens_per_second"] = 0
    records = {
        "generate": nothing,
        "none": results.generate(categories={}, overall={}),
        "batch": results.batch(sizes={}),
        "peers": results.peers(systems={}),
        "pass": results.bench_pass(contexts=[]),
        "kernels": results.kernels(types={"f32": []}),
        "load": results.load(levels=[silent]),
        "idle": results.load(levels=[]),
    }
    found = read(tmp_path, **records)
    page = html_page(found)
    Page(page)
    assert "nan" not in page
    assert "nothing to compare" in page
    assert "There is nothing to compare" in markdown_page(found)


NO_TIMES = {"p50": None, "p90": None, "p99": None}


# Plots ----------------------------------------------------------------------------------------------------------------


def marks(svg: str) -> list[tuple[str, float, float]]:
    """(tooltip, x, y) of each marker."""
    found = []
    for path in ET.fromstring(svg).iter("path"):
        x, y = map(float, re.findall(r"[-\d.]+", path.get("transform", "")))
        found.append((path.findtext("title", ""), x, y))
    return found


def test_twice_and_half_as_fast_lie_equally_far_from_the_line() -> None:
    rows = ["a", "b", "c"]
    svg = Dots("title", "axis", rows, {"d": [Value(2.0), Value(1.0), Value(0.5, (0.4, 0.8))]}, ratio=True).svg()
    [line] = [line for line in ET.fromstring(svg).iter("line") if line.get("class") == "one"]
    [(name, double, top), (_, same, middle), (_, half, bottom)] = marks(svg)
    assert name == "a, d: 2"
    assert same == pytest.approx(float(line.get("x1", "")), abs=0.11)
    assert double - same == pytest.approx(same - half, abs=0.21)
    assert double > same
    assert bottom - middle == pytest.approx(middle - top, abs=0.11)
    [whisker] = [line for line in ET.fromstring(svg).iter("line") if line.get("class") == "whisker"]
    assert float(whisker.get("x1", "")) < half < float(whisker.get("x2", ""))


def test_series_differ_in_shape_and_leave_out_what_there_is_not() -> None:
    columns = {name: [Value(1.5), None if name == "c" else Value(0.0)] for name in "abcdef"}
    svg = Dots("title", "axis", ["one", "two"], columns, ratio=True).svg()
    assert len(marks(svg)) == 6  # 0 has no place on a logarithmic axis
    assert len({path.get("d") for path in ET.fromstring(svg).iter("path")}) == 6
    assert len(marks(Dots("title", "axis", ["one", "two"], columns).svg())) == 11


def test_a_curve_goes_through_its_points_and_the_guide_stays_inside() -> None:
    curve = [(1, 1.0), (4, 1.2), (16, 2.0)]
    plot = Lines(
        "t", "x", "y", {"a": curve}, log_y=True, including=(1, 4), guide=("each", [(r, r) for r in (1, 4, 16)])
    )
    svg = ET.fromstring(plot.svg())
    drawn = {line.get("class"): (line.get("points") or "").split() for line in svg.iter("polyline")}
    assert drawn["curve"] == [f"{x:.1f},{y:.1f}" for _, x, y in marks(plot.svg())]
    assert len(drawn["guide"]) == 2  # 16 is above the plot
    [(_, left, low), (_, middle, _), (_, right, high)] = marks(plot.svg())
    assert middle - left == pytest.approx(right - middle, abs=0.11)  # logarithmic
    assert low > high  # up is more
    texts = [text.text for text in svg.iter("text")]
    assert {"1", "4", "16", "x", "y", "each"} <= set(texts)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e14])
@pytest.mark.parametrize("log", [False, True])
def test_any_range_of_values_has_some_labels_that_fit(scale: float, log: bool) -> None:
    for values in ([1.0], [1.0, 1.1], [0.0, 3.0], [1.0, 1e6]):
        points = [(at, value * scale) for at, value in enumerate(values, 1)]
        svg = Lines("title", "x", "", {"a": points}, log_y=log).svg()
        labels = [text for text in ET.fromstring(svg).iter("text") if text.get("text-anchor") == "end"]
        assert 1 <= len(labels) <= 12, values
        assert all(0 <= y <= 270 for _, _, y in marks(svg))


# Files ----------------------------------------------------------------------------------------------------------------


def without(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    inner = record
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return record


def changed(record: dict[str, Any], value: object, *keys: str) -> dict[str, Any]:
    inner = record
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return record


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([], "has no kind"),
        ({}, "has no kind"),
        ({"kind": "weather"}, "has kind 'weather': give results of slipstream bench"),
        ({"kind": ["generate"]}, "has kind ['generate']"),
        (without(results.generate(), "environment"), "environment is missing"),
        (without(results.generate(), "environment", "processor"), "environment.processor is missing"),
        (without(results.generate(), "overall", "ngram", "identical"), "overall.ngram.identical is missing"),
        (changed(results.generate(), "fast", "overall", "auto", "speedup"), "overall.auto.speedup isn't a number"),
        (changed(results.generate(), True, "overall", "auto", "speedup"), "overall.auto.speedup isn't a number"),
        (changed(results.generate(), -1, "overall", "auto", "speedup"), "overall.auto.speedup isn't a number"),
        (changed(results.generate(), float("nan"), "overall", "auto", "speedup"), "isn't a number"),
        (changed(results.generate(), float("inf"), "overall", "auto", "speedup"), "isn't a number"),
        (changed(results.generate(), 10**400, "overall", "auto", "speedup"), "isn't a number"),
        (changed(results.generate(), [1], "overall", "auto", "speedup_quartiles"), "isn't two numbers"),
        (changed(results.generate(), "yes", "overall", "auto", "identical"), "isn't true or false"),
        (changed(results.generate(), {}, "cost_curve"), "cost_curve isn't a list"),
        (changed(results.generate(), [], "categories"), "categories isn't an object"),
        (changed(results.batch(), {}, "sizes", "many"), "sizes has the key 'many', which isn't a whole number"),
        (changed(results.peers(), 3, "systems", "vllm"), "systems.vllm isn't an object"),
        (changed(results.bench_pass(), [{"context": 1}], "contexts"), "contexts.0.passes is missing"),
        (changed(results.load(), [{}], "levels"), "levels.0.mode isn't closed or open"),
        (changed(results.load(), [{"mode": "open"}], "levels"), "levels.0.rate is missing"),
    ],
)
def test_unsound_results_are_refused_by_name(tmp_path: Path, record: object, words: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(record))
    with pytest.raises(OptionError, match=re.escape(words)) as problem:
        read_results([path])
    assert "odd.json" in str(problem.value)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b'{"kind": "generate"', b"[" * 100_000, b"results"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"odd\.json is damaged, or no JSON: run its benchmark again"):
        read_results([path])


@pytest.mark.parametrize("kind", SAMPLES)
def test_what_a_benchmark_adds_is_no_harm(kind: str, tmp_path: Path) -> None:
    [result] = read(tmp_path, sample=SAMPLES[kind](added={"by": "a later version"}))
    assert result.kind == kind
    assert "added" not in result.data


def test_the_benchmarks_write_what_the_report_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kernels, "OUTPUTS", 64)
    monkeypatch.setattr(bench_kernels, "INPUTS", 256)
    monkeypatch.setattr(bench_kernels, "last_level_cache_bytes", lambda: 0)
    monkeypatch.setattr(bench_kernels, "SMALLEST_FOOTPRINT", 10**6)
    target = Engine.load(tiny.make(tmp_path / "tiny")).target
    passes = bench_pass(target, repeats=1, rows=(1, 2, 4), contexts=(16,))
    kernels = bench_kernels.bench_kernels(repeats=1, rows=(1, 2, 4))
    found = read(tmp_path, kernels=kernels, passes={"model": "tiny", **passes})
    assert [result.kind for result in found] == ["pass", "kernels"]
    assert all(result.data["environment"]["date"] for result in found)
    assert "context 16: 4 rows take" in headline(found)[0]


def test_commands_have_the_options_that_are_told(all_results: list[Result]) -> None:
    groups = {"bench": cli.commands["bench"]}
    for result in all_results:
        program, *words = SECTIONS[result.kind](result).command.split()
        if program == "slipstream":
            command = groups[words[0]].commands[words[1]]  # type: ignore[attr-defined]
            known = {option for parameter in command.params for option in parameter.opts}
        else:
            known = set(re.findall(r'"(--[\w-]+)"', (ROOT / words[0]).read_text()))
        assert {word for word in words if word.startswith("--")} <= known


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_or_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = list(map(str, results.write(tmp_path, load=results.load(), generate=results.generate())))
    page, document = tmp_path / "out.html", tmp_path / "out.md"
    assert main(["report", *paths, "-o", str(page)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == f"Written to {page}."
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert main(["report", *reversed(paths), "-o", str(document), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["report"] == str(document)
    assert record["findings"] == out.splitlines()[:-1]  # in whichever order they are given
    assert document.read_text() == markdown_page(read_results([Path(path) for path in paths]))


def test_the_default_is_a_page_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [path] = results.write(tmp_path, load=results.load())
    assert CliRunner().invoke(cli, ["report", str(path)]).exit_code == 0
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["absent.json"], "absent.json can't be read (No such file or directory)"),
        (["load.json", "-o", "report.pdf"], "--output report.pdf: a report is written as .html or .md"),
        (["load.json", "-o", "absent/report.md"], "--output absent/report.md can't be written (No such file"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    results.write(tmp_path, load=results.load())
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


# The document that is kept --------------------------------------------------------------------------------------------


def check_document(folder: Path, document: Path) -> None:
    """The document is what its records make, and there is none without records."""
    records = list(folder.glob("*.json"))
    expected = markdown_page(read_results(records)) if records else None
    found = document.read_text(encoding="utf-8") if document.exists() else None
    assert found == expected, f"{document.name} isn't what the records make: run make results"


def test_the_document_that_is_kept_is_what_the_records_make() -> None:
    check_document(ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md")


def test_a_stale_document_is_noticed(tmp_path: Path) -> None:
    document = tmp_path / "results.md"
    check_document(tmp_path, document)
    paths = results.write(tmp_path, generate=results.generate(), peers=results.peers())
    with pytest.raises(AssertionError, match="run make results"):
        check_document(tmp_path, document)
    document.write_text(markdown_page(read_results(paths)))
    check_document(tmp_path, document)
    document.write_text(document.read_text().replace("0.88× ▼", "1.88× ▲"))
    with pytest.raises(AssertionError, match="run make results"):
        check_document(tmp_path, document)
