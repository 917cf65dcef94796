"""Plain decoding and prefill against llama.cpp on the same GGUF file, interleaved in one run.

    python benchmarks/against_llama_cpp.py MODEL.gguf [--rounds 5] [--threads 2] [--json]

llama.cpp comes as the package xllamacpp (prebuilt for CPUs) into an environment of its own under build/peers/. Both
systems are loaded once, in a process each, and take turns; each turn feeds 512 prompt tokens and then decodes 64 tokens
greedily, end-of-sequence ignored. Medians over the rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

PEER = "xllamacpp"
PROMPT_TOKENS, NEW_TOKENS = 512, 64
Turn = Callable[[list[int]], dict[str, float]]


def slipstream_turn(model: str, threads: int) -> Turn:
    """Loads the model into Slipstream; a turn's figures in tokens per second."""
    from slipstream import Engine, SamplingParams

    engine = Engine.load(model, threads=threads)

    def turn(prompt: list[int]) -> dict[str, float]:
        params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
        timing = engine.generate(prompt, params, drafter="null").timing
        return {"prefill": len(prompt) / timing.prefill_seconds, "decode": timing.tokens_per_second}

    return turn


def llama_cpp_turn(model: str, threads: int) -> Turn:
    """Loads the model into llama.cpp, which times itself."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 2 * (PROMPT_TOKENS + NEW_TOKENS)
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def turn(prompt: list[int]) -> dict[str, float]:
        request = {"prompt": prompt, "n_predict": NEW_TOKENS, "temperature": 0, "cache_prompt": False}
        answer = server.handle_completions({**request, "ignore_eos": True})
        timings = (json.loads(answer) if isinstance(answer, str) else answer)["timings"]
        if timings["prompt_n"] != len(prompt) or timings["predicted_n"] != NEW_TOKENS:
            raise RuntimeError(f"llama.cpp did something else than it was asked to: {timings}")
        return {"prefill": timings["prompt_per_second"], "decode": timings["predicted_per_second"]}

    return turn


SYSTEMS = {"slipstream": slipstream_turn, "llama.cpp": llama_cpp_turn}


def serve(system: str, model: str, threads: int) -> None:
    """A turn for each line of standard input (a JSON list of token ids), its figures on a line of standard output."""
    turn = SYSTEMS[system](model, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(turn(json.loads(line))), flush=True)


def peer_python() -> str:
    """The interpreter of the peer's environment, which is made if it isn't there."""
    folder = Path(__file__).parent.parent / "build" / "peers" / PEER
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing {PEER} into {folder} …", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
    return str(python)


def run(model: str, rounds: int, threads: int) -> dict[str, object]:
    pythons = {"slipstream": sys.executable, "llama.cpp": peer_python()}
    processes = {}
    for system, python in pythons.items():
        command = [python, __file__, model, "--threads", str(threads), "--serve", system]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        processes[system] = subprocess.Popen(command, text=True, **pipes)
    for process in processes.values():
        while process.stdout.readline().strip() != "ready":
            if process.poll() is not None:
                sys.exit("a system didn't start: run this with --serve to see why")
    figures: dict[str, list[dict[str, float]]] = {system: [] for system in processes}
    prompt = [1000 + (7919 * number) % 20_000 for number in range(PROMPT_TOKENS)]
    for number in range(rounds + 1):
        for system, process in processes.items():
            process.stdin.write(json.dumps(prompt) + "\n")
            process.stdin.flush()
            figure = json.loads(process.stdout.readline())
            if number:  # the first round warms up
                figures[system].append(figure)
            time.sleep(0.5)
    for process in processes.values():
        process.stdin.close()
        process.wait()
    medians = {
        system: {what: statistics.median(turn[what] for turn in turns) for what in turns[0]}
        for system, turns in figures.items()
    }
    ours, theirs = medians["slipstream"], medians["llama.cpp"]
    return {"model": Path(model).name, "tokens_per_second": medians, "ratio": {w: ours[w] / theirs[w] for w in ours}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=SYSTEMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.model, arguments.threads)
        return
    result = run(arguments.model, arguments.rounds, arguments.threads)
    if arguments.json:
        print(json.dumps(result))
        return
    print(result["model"])
    for system, figures in result["tokens_per_second"].items():
        print(f"  {system:12} prefill {figures['prefill']:8.1f}   decode {figures['decode']:7.2f}   tokens/s")
    print(f"  {'ratio':12} prefill {result['ratio']['prefill']:8.2f}   decode {result['ratio']['decode']:7.2f}")


if __name__ == "__main__":
    main()
