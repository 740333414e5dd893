#!/usr/bin/env bash
# On your machine: keep a run going on spot VMs until it is finished.   keep.sh MODEL gsm8k|humaneval [SHARD] [OPTIONS]
# A VM that was taken away is deleted and asked for again; the run goes on where the bucket has it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/settings.sh"

model=${1:?usage: keep.sh MODEL gsm8k|humaneval [SHARD]} benchmark=${2:?usage: keep.sh MODEL gsm8k|humaneval [SHARD]}
shard=${3:-1/1}
finished=$BUCKET/runs/$model-$benchmark/finished-$(printf %04d "${shard%/*}")
pause=${PAUSE:-60}
installed=no

until gcloud storage ls "$finished" >/dev/null 2>&1; do
  state=$(gcloud compute tpus queued-resources describe "$NAME" --zone="$ZONE" --format="value(state.state)" 2>/dev/null || true)
  case $state in
    ACTIVE)
      if [[ $installed == no ]] && "$here/install.sh"; then installed=yes; fi
      command=$(printf "%q " env BUCKET="$BUCKET" KIND="$KIND" jaxsink-tpu/run.sh "$model" "$benchmark" "$shard" "${@:4}")
      if [[ $installed == yes ]]; then
        code=0
        gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --command="$command" || code=$?
        if ((code == 2)); then # bad input: trying again would not help
          echo "jaxsink refuses to run; see above" >&2
          exit 2
        fi
      fi
      ;;
    SUSPENDED | FAILED)
      gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --quiet
      installed=no
      ;;
    "")
      "$here/create.sh" spot || true
      installed=no
      ;;
  esac
  sleep "$pause"
done
echo "finished: $finished"
