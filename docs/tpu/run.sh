#!/usr/bin/env bash
# On the TPU VM: one model on one benchmark.   run.sh MODEL gsm8k|humaneval [SHARD] [OPTIONS OF jaxsink evaluate]
# The same command continues, also on a new VM: finished answers are copied to the bucket every minute and at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/settings.sh"
export PATH="$here/venv/bin:$PATH"

model=${1:?usage: run.sh MODEL gsm8k|humaneval [SHARD]} benchmark=${2:?usage: run.sh MODEL gsm8k|humaneval [SHARD]}
shard=${3:-1/1}
number=$(printf %04d "${shard%/*}")
out=$HOME/runs/$model-$benchmark
far=$BUCKET/runs/$model-$benchmark

mkdir -p "$out"
exec 9>"$out/.lock"
flock 9 # a run that lost its connection may still be going on: wait for it, then finish what is left
if [[ ! -f $out/manifest.json ]] && gcloud storage ls "$far/manifest.json" >/dev/null 2>&1; then
  gcloud storage cp "$far/*" "$out/" # a new VM: what an earlier one finished
fi

# Only what this shard writes: the others have newer versions of theirs.
push() {
  local file
  for file in manifest.json "results-$number.jsonl" "speed-$number.jsonl"; do
    if [[ -f $out/$file ]]; then gcloud storage cp --quiet "$out/$file" "$far/" >/dev/null; fi
  done
}

options=()
if [[ $benchmark == humaneval ]]; then options+=(--allow-code-execution); fi
jaxsink evaluate "$BUCKET/models/$model" "$model/$benchmark/study" --out "$out" --mesh "$MESH" --shard "$shard" \
  "${options[@]}" "${@:4}" &
evaluating=$!
trap 'kill -TERM "$evaluating" 2>/dev/null || true' TERM INT HUP

while kill -0 "$evaluating" 2>/dev/null; do
  for _ in {1..60}; do
    if kill -0 "$evaluating" 2>/dev/null; then sleep 1; fi
  done
  push || echo "the bucket cannot be reached; trying again" >&2
done
code=0
wait "$evaluating" || code=$?
push
if ((code == 0)); then
  touch "$out/finished-$number"
  gcloud storage cp --quiet "$out/finished-$number" "$far/" >/dev/null
fi
exit "$code"
