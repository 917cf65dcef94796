"""The runner of the peers, on systems that lie, die and hang; and what the peers are given to run on."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny

from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.decoder import Decoder, Segment
from slipstream.tools import conditions
from slipstream.tools.report import read_results

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
sys.path.append(str(PEERS))

import export_bf16  # noqa: E402
import gguf_files  # noqa: E402
import run as runner  # noqa: E402
from process import Load, Peer, PeerError, System  # noqa: E402
from protocol import Request, Stopwatch, up_to_end  # noqa: E402

ENDLESS = 1000  # the fake peer's output doesn't repeat itself for so many tokens
LOAD = Load(Path("model"), Path("draft model"), context=512, threads=1, timeout=120)


@pytest.fixture(autouse=True)
def _peers_find_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PEERS))


def fake(modes: str, together: str = "side by side") -> System:
    command = (sys.executable, str(Path(__file__).with_name("fake_peer.py")))
    return System(command, tuple(modes.split()), ("gguf",), together)


def trial(system: System, moduli: Sequence[int] = (ENDLESS,)) -> dict[str, dict]:
    """What became of each mode on prompts of four tokens."""
    work = runner.Work([runner.Prompt("counting", [modulus, 1, 2, 3]) for modulus in moduli], 40, [])
    return runner.Trial("fake", system, work).run(LOAD).record()["modes"]


@pytest.mark.parametrize("together", ["one process", "side by side", "in turn"])
def test_a_trial(together: str) -> None:
    modes = trial(fake("plain honest liar", together), [ENDLESS, ENDLESS + 1, ENDLESS + 2])
    plain, honest, liar = (modes[mode]["overall"] for mode in ("plain", "honest", "liar"))
    assert {mode["error"] for mode in modes.values()} == {None}
    assert (plain["prompts"], honest["prompts"], liar["prompts"]) == (3, 3, 3)
    assert (plain["tokens_per_second"], honest["tokens_per_second"]) == (4, 16)
    assert (plain["speedup_over_own_plain"], honest["speedup_over_own_plain"]) == (None, 4)
    assert (plain["mean_accepted_length"], honest["mean_accepted_length"]) == (1, 4)
    assert plain["prefill_tokens_per_second"] == 2
    assert (plain["identical"], honest["identical"], liar["identical"]) == (None, True, False)
    assert liar["first_difference"] == {"prompt": 0, "position": 3, "plain": 3, "drafted": 999}
    assert modes["liar"]["categories"] == {"counting": liar}


def test_which_modes_are_loaded_together() -> None:
    assert fake("plain a b", "one process").rounds() == [[("plain", "a", "b")]]
    assert fake("plain a b", "side by side").rounds() == [[("plain",), ("a",), ("b",)]]
    assert fake("plain a b", "in turn").rounds() == [[("plain",)], [("a",)], [("b",)]]


def test_outputs_are_cut_where_they_loop() -> None:
    modes = trial(fake("plain honest liar"), [20, 5, ENDLESS])
    for mode in modes.values():
        figures = mode["overall"]
        assert (figures["prompts"], figures["looped"], figures["too_short"]) == (2, 2, 1)
        assert figures["tokens_per_second"] > 0
    # 20 and 40 tokens of 4 a pass: that both were told to stop at the loop shows in what they decoded.
    assert modes["honest"]["overall"]["identical"]
    assert not modes["liar"]["overall"]["identical"]


def test_without_cutting_everything_counts() -> None:
    work = runner.Work([runner.Prompt("counting", [5, 1])], 40, [], cut=False)
    overall = runner.Trial("fake", fake("plain"), work).run(LOAD).record()["modes"]["plain"]["overall"]
    assert (overall["prompts"], overall["looped"], overall["too_short"]) == (1, 0, 0)


def test_a_mode_that_fails_leaves_the_others_alone() -> None:
    modes = trial(fake("plain refuses honest", "one process"))
    assert modes["refuses"]["error"] == "ValueError: no drafts today"
    assert modes["refuses"]["overall"]["prompts"] == 0
    assert modes["honest"]["overall"]["identical"]


def test_a_process_that_dies_leaves_the_others_alone() -> None:
    modes = trial(fake("plain dies wont_load honest"))
    assert modes["dies"]["error"] == "it ended with exit code 3; its last words: out of luck"
    assert modes["wont_load"]["error"] == "it ended with exit code 1; its last words: there is no memory left"
    assert modes["wont_load"]["load_seconds"] is None
    assert modes["honest"]["overall"]["identical"]


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(peer: Peer, request: Request) -> object:
        if request.mode == "hangs":
            peer.timeout = 0.2
            hung.append(peer._process.pid)
        return ask_patiently(peer, request)

    hung: list[int] = []
    ask_patiently = Peer.ask
    monkeypatch.setattr(Peer, "ask", ask)
    modes = trial(fake("plain hangs honest"))
    assert modes["hangs"]["error"] == "no answer within 0.2 s; its last words: none"
    assert modes["honest"]["overall"]["identical"]
    assert len(hung) == 1  # it isn't asked again
    with pytest.raises(ProcessLookupError):
        os.kill(hung[0], 0)


def test_loading_has_a_time_limit_too() -> None:
    with pytest.raises(PeerError, match=r"no answer within 0\.2 s"):
        Peer(fake("plain"), ["hangs_while_loading"], Load(Path(), Path(), 512, 1, timeout=0.2))


def test_without_plain_outputs_nothing_is_compared() -> None:
    missing = System(("/there/is/no/python", "fake_peer.py"), ("plain", "honest"), ("gguf",), "side by side")
    assert "run benchmarks/peers/install.sh" in trial(missing)["plain"]["error"]
    assert "all of them were too short" in trial(fake("plain honest"), [5])["honest"]["error"]


def test_stopwatch(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([12.0, 12.5, 14.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    stopwatch = Stopwatch(started=10.0)
    for tokens in (2, 1, 4):
        stopwatch.tick(tokens)
    answer = stopwatch.answer([5, 6, 7, 8, 9, 10, 0], eos=[0])
    assert answer.token_ids == [5, 6, 7, 8, 9, 10]
    assert (answer.prefill_seconds, answer.decode_seconds) == (2, 2)
    assert (answer.decoded, answer.committed, answer.passes) == (5, 7, 3)
    assert up_to_end([1, 2, 3], [9]) == [1, 2, 3]


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_files.make(tmp_path / "model.gguf", "qwen2")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three prompts of each of two categories of Spec-Bench, and three functions."""
    turns = [{"category": category, "turns": [f"{category} {at}"]} for category in ("qa", "math") for at in range(3)]
    code = [{"prompt": f"def f{at}(x):\n", "canonical_solution": "    return x\n"} for at in range(3)]
    for name, records in (("spec_bench", turns), ("human_eval", code)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


@pytest.fixture(autouse=True)
def _no_bandwidth_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "read_bandwidth_apart", lambda: 10.0)


def test_the_command(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "SYSTEMS", {"good": fake("plain honest"), "bad": fake("plain liar dies")})
    out = data / "peers.json"
    arguments = [f"--data={data}", f"--model={model}", f"--out={out}", "--categories=qa,code_edit", "--limit=2"]
    assert runner.main([*arguments, "--limit-of=bad=1", "--max-tokens=20", "--threads=1"]) == 1
    assert read_results([out])[0].kind == "peers"  # it has the shape that reports are made from
    systems = json.loads(out.read_text())["systems"]
    assert (systems["good"]["prompts_per_category"], systems["bad"]["prompts_per_category"]) == (2, 1)
    assert systems["good"]["version"] == "fake 1.0"
    assert {name: found["prompts"] for name, found in systems["good"]["modes"]["honest"]["categories"].items()} == {
        "qa": 2,
        "code_edit": 2,
    }
    assert systems["bad"]["modes"]["liar"]["overall"]["prompts"] == 2
    shown = capsys.readouterr().out
    assert "bad, dies: it ended with exit code 3" in shown
    assert "good, 4 prompts" in shown
    assert "4.00×" in shown


def test_made_up_prompts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SYSTEMS", {"good": fake("plain dies")})
    out = model.with_name("made_up.json")
    arguments = ["--made-up=30", f"--model={model}", f"--out={out}", "--limit=3", "--max-tokens=16", "--threads=1"]
    assert runner.main(arguments) == 0
    modes = json.loads(out.read_text())["systems"]["good"]["modes"]
    assert list(modes) == ["plain"]
    assert modes["plain"]["overall"]["prompts"] == 3
    prompts = runner.made_up(30, 3, 264)
    assert len({tuple(prompt.tokens) for prompt in prompts}) == 3
    assert {len(prompt.tokens) for prompt in prompts} == {30}
    assert all(0 <= token < 264 for prompt in prompts for token in prompt.tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems=llamacpp"], "use some of slipstream, llama_cpp, openvino"),
        (["--systems=vllm"], "with --weights gguf use some of"),
        (["--limit-of=vllm=2"], "--limit-of has 'vllm', which isn't run"),
        (["--categories=qa,poems"], "--categories has 'poems': use some of qa, math, code_edit, human_eval"),
        (["--model=nowhere.gguf"], "there is no model 'nowhere.gguf'"),
    ],
)
def test_bad_options(
    model: Path, data: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = data / "peers.json"
    assert runner.main([f"--data={data}", f"--model={model}", f"--out={out}", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_slipstream_in_the_harness(model: Path, data: Path) -> None:
    out = data / "peers.json"
    arguments = [f"--data={data}", f"--model={model}", f"--draft-model={model}", f"--out={out}", "--systems=slipstream"]
    runner.main([*arguments, "--categories=qa", "--limit=1", "--max-tokens=24", "--threads=1"])
    modes = json.loads(out.read_text())["systems"]["slipstream"]["modes"]
    for mode in ("auto", "ngram", "draft_model"):
        assert modes[mode]["error"] is None
        assert modes[mode]["overall"]["identical"]
    assert modes["plain"]["overall"]["mean_accepted_length"] == 1
    assert modes["draft_model"]["overall"]["mean_accepted_length"] > 1  # the target drafts for itself


# What they run on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_exported_model_is_the_same(tmp_path: Path, architecture: str) -> None:
    file = gguf_files.make(tmp_path / "model.gguf", architecture)
    folder = export_bf16.export(file, tmp_path / "exported")
    assert folder == tmp_path / "exported" / "model-bf16"
    (original, exported) = (open_checkpoint(path) for path in (file, folder))
    text = [{"role": "user", "content": "the thin ant"}]
    tokens = original.tokenizer().encode_chat(text)
    assert exported.tokenizer().encode_chat(text) == tokens

    def logits(decoder: Decoder) -> np.ndarray:
        return decoder.forward([Segment.chain(decoder.new_cache(len(tokens)), tokens, num_logits=len(tokens))])

    theirs, ours = logits(Decoder(exported, "auto")), logits(Decoder(original, "bf16"))
    # Norms and biases, which `--dtype bf16` leaves as they are in the file, are rounded in the directory.
    assert np.abs(theirs - ours).max() / np.abs(ours).max() < 0.02
    matrix = "model.layers.1.self_attn.k_proj.weight"
    assert exported.tensor(matrix).type == "BF16"


def test_rounding_to_bf16() -> None:
    bits = np.array([0x3F80_0000, 0x3F80_7FFF, 0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0xBF80_8001], np.uint32)
    assert export_bf16.to_bf16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xBF81]


def test_a_model_that_config_json_cant_tell_is_refused(tmp_path: Path) -> None:
    settings = tiny.config("llama")
    metadata = gguf_files.model_metadata(settings) | gguf_files.byte_level_metadata()
    metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    weights = tiny.weights(settings, 0).items()
    file = gguf_files.write(
        tmp_path / "scaled.gguf", metadata, {gguf_files.gguf_name(name): tensor for name, tensor in weights}
    )
    with pytest.raises(export_bf16.ModelError, match="inverse_frequencies"):
        export_bf16.export(file, tmp_path)
    assert not (tmp_path / "scaled-bf16").exists()


def test_the_installer_knows_its_peers() -> None:
    outcome = subprocess.run([PEERS / "install.sh", "vlm"], capture_output=True, text=True)
    assert outcome.returncode == 2
    assert outcome.stderr == "there is no peer 'vlm': use some of transformers llama_cpp openvino vllm\n"
