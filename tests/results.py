"""Made-up results of each benchmark, in the shapes in which they are stored."""

import json
from pathlib import Path
from typing import Any

MODEL = "Qwen2.5-Coder-1.5B-Instruct"
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)


def environment(**changes: Any) -> dict[str, Any]:
    return {
        "processor": "AMD EPYC 7B13",
        "isa": "avx2",
        "threads": 2,
        "system": "Linux 6.1.0",
        "python": "3.11.7",
        "slipstream": "0.1.0",
        "numpy": "2.4.1",
        "tokenizers": "0.22.1",
        "commit": "5d5c1f9",
        "date": "2026-11-29T21:00:00+00:00",
        **changes,
    }


def figures(speedup: float, **changes: Any) -> dict[str, Any]:
    """A drafter's figures on a category, of a drafter that is as much faster than 10 tokens a second."""
    return {
        "speedup": speedup,
        "speedup_quartiles": [speedup * 0.9, speedup * 1.2],
        "speedup_with_prefill": speedup * 0.95,
        "prompts": 8,
        "looped": 1,
        "too_short": 0,
        "mean_accepted_length": speedup * 1.1,
        "acceptance_rate": min(1.0, speedup / 4),
        "acceptance_by_position": [0.8, 0.7, 0.65, 0.6, 0.6],
        "tokens_per_second": 10 * speedup,
        "plain_tokens_per_second": 10.0,
        "time_to_first_token": 0.213,
        "identical": True,
        "first_difference": None,
        "completion_tokens": 900,
        **changes,
    }


SPEEDUPS = {
    "code_edit": (3.1, 2.2, 3.3),
    "coding": (1.25, 1.7, 1.72),
    "extraction": (1.6, 1.55, 1.71),
    "human_eval": (1.2, 1.75, 1.77),
    "humanities": (0.97, 1.35, 1.33),
    "math": (1.12, 1.5, 1.52),
    "math_reasoning": (1.1, 1.52, 1.5),
    "qa": (0.93, 1.2, 1.19),
    "rag": (1.5, 1.4, 1.6),
    "reasoning": (1.05, 1.37, 1.36),
    "roleplay": (0.95, 1.11, 1.08),
    "stem": (0.99, 1.3, 1.31),
    "summarization": (1.9, 1.5, 1.95),
    "translation": (0.88, 0.95, 1.0),
    "writing": (0.96, 1.16, 1.15),
}


def generate(**changes: Any) -> dict[str, Any]:
    drafters = ("ngram", "draft_model", "auto")
    return {
        "kind": "generate",
        "environment": environment(
            processors_in_use=0.1, read_bandwidth_gbps={"before": 28.1, "after": 27.6}, quiet=True, warnings=[]
        ),
        "model": MODEL,
        "dtype": "bf16",
        "draft_model": "Qwen2.5-Coder-0.5B-Instruct",
        "num_speculative_tokens": 5,
        "suites": ["spec_bench", "code_edit", "human_eval"],
        "temperature": 0.0,
        "seed": 0,
        "max_tokens": 128,
        "limit": 8,
        "cost_curve": [{"rows": rows, "seconds": 0.1 * (1 + 0.02 * rows**1.3)} for rows in ROWS],
        "categories": {
            category: {name: figures(speedup) for name, speedup in zip(drafters, speedups, strict=True)}
            for category, speedups in SPEEDUPS.items()
        },
        "overall": {
            "ngram": figures(1.11, prompts=120, acceptance_by_position=[0.62, 0.71, 0.78, 0.8, 0.82]),
            "draft_model": figures(1.42, prompts=120),
            "auto": figures(1.48, prompts=120, acceptance_by_position=[0.83, 0.74, 0.72]),
        },
        "peak_memory_bytes": 5 * 2**30,
        "prompts": [],
        **changes,
    }


def batch(**changes: Any) -> dict[str, Any]:
    gains = {"1": (1.42, 1.3), "2": (1.31, 1.22), "4": (1.12, 1.1), "8": (0.94, 1.0), "16": (0.71, 0.98)}

    def figures(size: str, speedup: float) -> dict[str, Any]:
        return {
            "tokens_per_second": 10.0 * int(size) ** 0.8 * speedup,
            "speedup": speedup,
            "speedup_quartiles": [speedup * 0.9, speedup * 1.1],
            "speedup_with_prefill": (1 + speedup) / 2,
            "identical": True,
        }

    return {
        "kind": "batch",
        "environment": environment(),
        "model": MODEL,
        "dtype": "bf16",
        "draft_model": "Qwen2.5-Coder-0.5B-Instruct",
        "num_speculative_tokens": 5,
        "suites": ["built_in"],
        "sizes": {
            size: {"null": figures(size, 1.0), "draft_model": figures(size, fast), "ngram": figures(size, slow)}
            for size, (fast, slow) in gains.items()
        },
        **changes,
    }


def peer(rate: float, speedup: float | None, identical: bool | None, length: float | None = None) -> dict[str, Any]:
    """A mode of a system, that has the same figures on each of two categories and overall."""
    measured = {
        "prompts": 6,
        "tokens_per_second": rate,
        "prefill_tokens_per_second": 105.0,
        "speedup_over_own_plain": speedup,
        "identical": identical,
        "mean_accepted_length": length,
    }
    return {
        "load_seconds": 3.2,
        "error": None,
        "categories": {"code_edit": {**measured, "prompts": 3}, "qa": {**measured, "prompts": 3}},
        "overall": measured,
    }


def peers(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "peers",
        "environment": environment(),
        "model": MODEL,
        "weights": "gguf",
        "max_tokens": 64,
        "prompts_per_category": 3,
        "systems": {
            "slipstream": {
                "version": "0.1.0",
                "modes": {
                    "plain": peer(22.1, None, None),
                    "ngram": peer(27.4, 1.22, True, 1.6),
                    "draft_model": peer(25.0, 1.13, True, 2.4),
                },
            },
            "llama.cpp": {
                "version": "b7100",
                "modes": {
                    "plain": peer(17.9, None, None),
                    "ngram-simple": peer(16.2, 0.91, False),
                    "draft": peer(9.6, 0.55, True, 2.4),
                },
            },
            "openvino": {
                "version": "2026.4",
                "modes": {"plain": peer(8.7, None, None), "prompt_lookup": peer(4.6, 0.53, True)},
            },
            "vllm": {
                "version": "0.32",
                "modes": {
                    "plain": {"load_seconds": None, "error": "killed: out of memory", "categories": {}, "overall": None}
                },
            },
        },
        **changes,
    }


def points(seconds: float, slope: float) -> list[dict[str, float]]:
    return [
        {
            "rows": rows,
            "seconds": seconds * (1 + slope * (rows - 1)),
            "gbps": 27.0,
            "gmacs": 131.0,
            "ratio_to_one_row": 1 + slope * (rows - 1),
        }
        for rows in (*ROWS, 32, 64)
    ]


def bench_pass(**changes: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "kind": "pass",
        "environment": environment(),
        "pass_bytes": 3 * 10**9,
        "read_bandwidth_gbps": 28.0,
        "contexts": [
            {"context": context, "passes": points(0.11, slope), "fraction_of_bandwidth_limit": 0.91}
            for context, slope in ((256, 0.02), (2048, 0.04))
        ],
        "prefill_tokens_per_second": 105.0,
        **changes,
    }


def kernels(**changes: Any) -> dict[str, Any]:
    slopes = {"f32": 0.01, "bf16": 0.02, "int8": 0.09, "int4": 0.16}
    return {
        "kind": "kernels",
        "environment": environment(),
        "read_bandwidth_gbps": 28.0,
        "types": {name: points(0.001, slope) for name, slope in slopes.items()},
        **changes,
    }


def level(mode: str, at: float, **changes: Any) -> dict[str, Any]:
    return {
        "mode": mode,
        {"closed": "concurrency", "open": "rate"}[mode]: at,
        "requests": 16,
        "completed": 16,
        "time_to_first_token": {"p50": 0.2 * at, "p90": 0.3 * at, "p99": 0.5 * at},
        "time_between_tokens": {"p50": 0.04 + 0.004 * at, "p90": 0.05 + 0.006 * at, "p99": 0.07 + 0.01 * at},
        "output_tokens_per_second": 22 * at**0.7,
        "goodput": {"share": max(0.0, 1 - 0.06 * at), "ttft_limit": 1.0, "itl_limit": 0.1},
        "errors": {},
        **changes,
    }


def load(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "load",
        "environment": environment(commit=None),
        "url": "http://localhost:8000",
        "model": MODEL,
        "api": "chat",
        "levels": [
            *(level("closed", clients) for clients in (1, 2, 4, 8)),
            *(level("open", rate) for rate in (0.5, 1.0)),
            level("open", 2.0, errors={"timeout": 2}),
        ],
        **changes,
    }


def write(folder: Path, **results: Any) -> list[Path]:
    """Each result as a file of that name."""
    paths = [folder / f"{name}.json" for name in results]
    for path, result in zip(paths, results.values(), strict=True):
        path.write_text(json.dumps(result))
    return paths
