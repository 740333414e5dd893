# Sourced by the other scripts: where everything is. Override any of these in the environment.
# shellcheck shell=bash disable=SC2034

KIND=${KIND:-v5e-8} # v5e-8, v6e-8 (8 chips each) or v4-8 (4 chips)
NAME=${NAME:-jaxsink}
BUCKET=${BUCKET:?set BUCKET to a bucket in the region of the TPU, such as gs://my-bucket/jaxsink}

case $KIND in
  v5e-8) ACCELERATOR=v5litepod-8 RUNTIME=v2-alpha-tpuv5-lite MESH=4x2 DEFAULT_ZONE=us-west4-a ;;
  v6e-8) ACCELERATOR=v6e-8 RUNTIME=v2-alpha-tpuv6e MESH=8x1 DEFAULT_ZONE=us-east5-b ;;
  v4-8) ACCELERATOR=v4-8 RUNTIME=tpu-ubuntu2204-base MESH=2x2 DEFAULT_ZONE=us-central2-b ;;
  *)
    echo "KIND must be v5e-8, v6e-8 or v4-8, not $KIND" >&2
    exit 2
    ;;
esac
ZONE=${ZONE:-$DEFAULT_ZONE}

# The hub id of a model's published weights, by the name that its settings have.
hub_id() {
  case $1 in
    llada-8b-instruct) echo GSAI-ML/LLaDA-8B-Instruct ;;
    dream-7b-instruct) echo Dream-org/Dream-v0-Instruct-7B ;;
    mmada-8b-mixcot) echo Gen-Verse/MMaDA-8B-MixCoT ;;
    llama-3.1-8b-instruct) echo meta-llama/Llama-3.1-8B-Instruct ;;
    *)
      echo "no such model: $1 (llada-8b-instruct, dream-7b-instruct, mmada-8b-mixcot, llama-3.1-8b-instruct)" >&2
      return 2
      ;;
  esac
}
