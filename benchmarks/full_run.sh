#!/usr/bin/env bash
# Measures all that docs/results.md shows, one thing after the other, and writes it anew: two hours on two cores.
#
#     benchmarks/full_run.sh DIR     DIR holds spec_bench.jsonl and human_eval.jsonl
#
# Needs what `make`, benchmarks/fetch_models.py and benchmarks/peers/install.sh put in place. A record that is in
# benchmarks/results/ already is kept: remove those to be measured anew.
set -uo pipefail
cd "$(dirname "$0")/.."
data=$(realpath "${1:?name the directory with spec_bench.jsonl and human_eval.jsonl}")
results=benchmarks/results
models=${SLIPSTREAM_CACHE:-$HOME/.cache/slipstream}
pair=(--model "$models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
  --draft-model "$models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
suites=(--suite spec_bench --suite code_edit --suite human_eval --data "$data")
drafters=(--drafters auto,ngram,draft_model)
mkdir -p "$results"

record() { # NAME COMMAND…: the command is given --out NAME.json
  local file=$results/$1.json
  shift
  if [ -e "$file" ]; then return; fi
  echo "$(date +%H:%M) $file"
  sleep 30 # let the machine come to rest
  "$@" --out "$file" || echo "$file: exit code $?"
}

slipstream=.venv/bin/slipstream
record generate-q4_k_m $slipstream bench generate "${pair[@]}" "${suites[@]}" "${drafters[@]}" --limit 2 --max-tokens 96
record batch-q4_k_m $slipstream bench batch "${pair[@]}" "${suites[@]}" --drafters auto
record generate-bf16 $slipstream bench generate "${pair[@]}" "${suites[@]}" "${drafters[@]}" --dtype bf16 --limit 1 --max-tokens 64
record peers-gguf .venv/bin/python benchmarks/peers/run.py --weights gguf --data "$data" --limit 1 --max-tokens 48 \
  --categories writing,math,coding,summarization,qa,rag,code_edit
record peers-bf16 .venv/bin/python benchmarks/peers/run.py --weights bf16 --data "$data" --limit 1 --max-tokens 48 \
  --categories writing,math,coding,code_edit
record generate-q4_k_m-sampled $slipstream bench generate "${pair[@]}" "${suites[@]}" --drafters auto --limit 1 --max-tokens 64 \
  --temperature 0.7
record generate-bf16-sampled $slipstream bench generate "${pair[@]}" "${suites[@]}" --drafters auto --dtype bf16 --limit 1 \
  --max-tokens 64 --temperature 0.7
mkdir -p build
grep -m 20 '"category": "summarization"' "$data/spec_bench.jsonl" >build/summarization.jsonl
record generate-bf16-summarization $slipstream bench generate "${pair[@]}" --suite build/summarization.jsonl --drafters auto \
  --dtype bf16 --limit 4 --max-tokens 96
make results
