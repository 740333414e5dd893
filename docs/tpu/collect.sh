#!/usr/bin/env bash
# On your machine: bring all runs home, sum them up, and put Tables 1 and 2 together.   collect.sh [DIR]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/settings.sh"

runs=${1:-runs}
mkdir -p "$runs"
gcloud storage rsync --recursive "$BUCKET/runs" "$runs"
for run in "$runs"/*/; do
  run=${run%/}
  name=${run##*/}
  model=${name%-*} benchmark=${name##*-}
  jaxsink evaluate "$BUCKET/models/$model" "$model/$benchmark/study" --out "$run" --summary
done
jaxsink table1 "$runs"/*/ --out table1
