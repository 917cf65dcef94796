#!/usr/bin/env bash
# Measures all that docs/results.md shows, one thing after the other, and writes it anew: three hours on two cores.
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
generate() { # NAME DRAFTERS OPTION…: bench generate
  local name=$1 drafters=$2
  shift 2
  record "generate-$name" $slipstream bench generate "${pair[@]}" --drafters "$drafters" "$@"
}
batch() { # NAME OPTION…: bench batch
  local name=$1
  shift
  record "batch-$name" $slipstream bench batch "${pair[@]}" "${suites[@]}" --drafters auto "$@"
}

generate q4_k_m auto,ngram,draft_model "${suites[@]}" --limit 4 --max-tokens 96
generate q4_k_m-sampled auto "${suites[@]}" --limit 4 --max-tokens 96 --temperature 0.7
SLIPSTREAM_ISA=avx2 generate q4_k_m-avx2 auto "${suites[@]}" --limit 4 --max-tokens 96
generate bf16 auto,ngram,draft_model "${suites[@]}" --dtype bf16 --limit 1 --max-tokens 64
generate bf16-sampled auto "${suites[@]}" --dtype bf16 --limit 1 --max-tokens 64 --temperature 0.7
mkdir -p build
grep -E '"category": "(summarization|extraction|rag)"' "$data/spec_bench.jsonl" >build/copying.jsonl
copying=(--suite build/copying.jsonl --dtype bf16 --limit 4 --max-tokens 96)
generate bf16-copying auto "${copying[@]}"
generate bf16-copying-sampled auto "${copying[@]}" --temperature 0.7
grep '"category": "translation"' "$data/spec_bench.jsonl" >build/translation.jsonl # short answers: most are left out
generate q4_k_m-translation-sampled auto --suite build/translation.jsonl --limit 20 --max-tokens 96 --temperature 0.7
[ -e $results/generate-q4_k_m-alone.json ] ||
  $slipstream tune layer-skip --model "${pair[1]}" # so that the drafter layer_skip is at its best
record generate-q4_k_m-alone $slipstream bench generate --model "${pair[1]}" "${suites[@]}" \
  --drafters auto,layer_skip,recycling --limit 1 --max-tokens 64
batch q4_k_m
batch bf16 --dtype bf16

peers=(.venv/bin/python benchmarks/peers/run.py --data "$data" --limit 1 --max-tokens 48)
record peers-gguf "${peers[@]}" --weights gguf --categories writing,math,coding,summarization,qa,rag,code_edit
record peers-bf16 "${peers[@]}" --weights bf16 --categories writing,math,coding,code_edit
make results
