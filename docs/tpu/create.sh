#!/usr/bin/env bash
# On your machine: create a TPU VM.   create.sh now | queued | spot
#   now     at once, on demand; fails if there is no capacity
#   queued  on demand, waits in a queue for capacity
#   spot    waits in a queue for spare capacity, at a lower price; may be taken away at any time
set -euo pipefail
source "$(dirname "$0")/settings.sh"

where=(--zone="$ZONE" --accelerator-type="$ACCELERATOR")
queued=(gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" "${where[@]}" --runtime-version="$RUNTIME")
case ${1:-} in
  now) gcloud compute tpus tpu-vm create "$NAME" "${where[@]}" --version="$RUNTIME" ;;
  queued) "${queued[@]}" ;;
  spot) "${queued[@]}" --spot ;;
  *)
    echo "usage: create.sh now | queued | spot" >&2
    exit 2
    ;;
esac
