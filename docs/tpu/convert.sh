#!/usr/bin/env bash
# On the TPU VM (or any machine with 40 GB of free disk): port a model's weights into the bucket, once.   convert.sh MODEL
# Llama's weights are gated: export HF_TOKEN first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/settings.sh"
export PATH="$here/venv/bin:$PATH"

model=${1:?usage: convert.sh MODEL, such as llada-8b-instruct}
source=$(hub_id "$model")
JAX_PLATFORMS=cpu jaxsink convert "$source" "$BUCKET/models/$model" --dtype bfloat16 --verify
