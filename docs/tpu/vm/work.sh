#!/usr/bin/env bash
# On the TPU VM: port the model's weights into the bucket unless they are there, evaluate, copy the answers there.
#   work.sh start    begin in the background, unless it is under way; the log is in the file log
#   work.sh state    "running", "ended CODE" or "idle", then the end of the log
#   work.sh run      what start does, in the foreground
# What to do is in job.sh beside this script, which tpu.sh writes. The same job continues, also on a new VM: finished
# answers are copied to the bucket every minute and at the end.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
# shellcheck source=/dev/null
source ./job.sh # MODEL SOURCE BENCHMARK SHARD MESH BUCKET OPTIONS
export PATH="$here/venv/bin:$PATH:/snap/bin"

number=$(printf %04d "${SHARD%/*}")
out=$HOME/runs/$MODEL-$BENCHMARK
far=$BUCKET/runs/$MODEL-$BENCHMARK
FREE_GB=50 # 16 of published weights, 16 converted, 16 of the bucket's copy that evaluate reads

# One model is on the disk at a time: the published weights go as soon as they are converted.
convert() {
  if gcloud storage ls "$BUCKET/models/$MODEL/jaxsink.json" >/dev/null 2>&1; then return; fi
  local free code=0
  free=$(df -k --output=avail . | tail -n 1)
  if ((free < FREE_GB * 1000000)); then
    echo "$((free / 1000000)) GB are free here, and converting $MODEL needs $FREE_GB."
    return 2
  fi
  if [[ -f hf-token ]]; then
    HF_TOKEN=$(<hf-token)
    export HF_TOKEN
  fi
  mkdir -p scratch
  HF_HOME=$here/scratch/hub TMPDIR=$here/scratch JAX_PLATFORMS=cpu \
    jaxsink convert "$SOURCE" "$BUCKET/models/$MODEL" --dtype bfloat16 --verify || code=$?
  rm -rf scratch
  if ((code != 0)) && gcloud storage ls "$BUCKET/models/$MODEL/jaxsink.json" >/dev/null 2>&1; then
    code=0 # another VM was faster
  fi
  return "$code"
}

# Only what this shard writes: the others have newer versions of theirs.
push() {
  local file
  cp -f log "$out/log-$number.txt" 2>/dev/null || true
  for file in manifest.json "results-$number.jsonl" "speed-$number.jsonl" "log-$number.txt"; do
    if [[ -f $out/$file ]]; then gcloud storage cp --quiet "$out/$file" "$far/" >/dev/null; fi
  done
}

evaluate() {
  local options=(--out "$out" --mesh "$MESH" --shard "$SHARD") code=0
  if [[ $BENCHMARK == humaneval ]]; then options+=(--allow-code-execution); fi
  if [[ ! -f $out/manifest.json ]] && gcloud storage ls "$far/manifest.json" >/dev/null 2>&1; then
    gcloud storage cp "$far/*" "$out/" # a new VM: what an earlier one finished
  fi
  # shellcheck disable=SC2153 # OPTIONS are the job's
  jaxsink evaluate "$BUCKET/models/$MODEL" "$MODEL/$BENCHMARK/study" "${options[@]}" "${OPTIONS[@]}" &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    for _ in {1..60}; do
      if kill -0 "$child" 2>/dev/null; then sleep 1; fi
    done
    if kill -0 "$child" 2>/dev/null; then push || echo "the bucket cannot be reached; trying again"; fi
  done
  wait "$child" || code=$?
  push
  if ((code == 0)); then
    touch "$out/finished-$number"
    gcloud storage cp --quiet "$out/finished-$number" "$far/" >/dev/null
  fi
  return "$code"
}

# As long as this runs, the watchdog sees that the VM is in use.
keep_alive() {
  while kill -0 $$ 2>/dev/null; do
    date +%s >"${JAXSINK_STATE:-/var/lib/jaxsink}/alive"
    sleep 60
  done
}

end() {
  local code=$?
  kill "$alive" 2>/dev/null || true
  echo "$code" >"$here/ended"
}

run() {
  exec 9>lock
  flock -n 9 || exit 0 # under way already
  rm -f ended
  mkdir -p "$out"
  keep_alive 9>&- &
  alive=$! child=
  trap end EXIT
  trap 'if [[ -n $child ]]; then kill -TERM "$child" 2>/dev/null || true; else exit 143; fi' TERM INT HUP
  convert
  evaluate
}

state() {
  if ! (flock -n 8) 8>>lock; then
    echo running
    tail -n 1 log
  elif [[ -f ended ]]; then
    echo "ended $(<ended)"
    tail -n 20 log
  else
    echo idle
  fi
}

case ${1:-} in
  start)
    rm -f ended
    setsid nohup "$here/work.sh" run >>log 2>&1 </dev/null & ;;
  state) state ;;
  run) run ;;
  *)
    echo "usage: work.sh start | state | run" >&2
    exit 2 ;;
esac
