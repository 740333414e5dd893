# All settings of the Cloud TPU scripts. Override any of them in the environment: KIND=v6e-8 docs/tpu/tpu.sh run …
# shellcheck shell=bash disable=SC2034

BUCKET=${BUCKET:-}                  # required: gs://bucket/folder for models and results, in the region of the TPU
NAME=${NAME:-jaxsink}               # of the request and the VM; runs at the same time need different names
KIND=${KIND:-v5e-8}                 # v5e-8 or v6e-8 (8 chips), v4-8 (4 chips)
HOW=${HOW:-spot}                    # spot: cheapest, can be preempted; flex-start: not preempted; on-demand: list price
MAX_HOURS=${MAX_HOURS:-24}          # VM hours that a run may use, over all VMs it needs; enforced on the VM, too
WAIT_HOURS=${WAIT_HOURS:-12}        # how long a request waits for capacity (waiting is free)
IDLE_MINUTES=${IDLE_MINUTES:-30}    # a VM on which nothing runs for so long deletes itself
INTERNAL=${INTERNAL:-no}            # yes: no external IP addresses, ssh goes through Identity-Aware Proxy
NETWORK=${NETWORK:-default}         # VPC network of the VM
SUBNETWORK=${SUBNETWORK:-}          # its subnetwork, if not the network's automatic one
PROJECT=${PROJECT:-}                # default: the project of gcloud's configuration
SERVICE_ACCOUNT=${SERVICE_ACCOUNT:-} # of the VM; default: jaxsink-tpu of the project, which `tpu.sh setup` makes
ZONE=${ZONE:-}                      # default: a zone that has this KIND
PAUSE=${PAUSE:-30}                  # seconds between two looks at the request or the VM

# What a KIND means to Google Cloud, and how many devices JAX shows and how jaxsink shares them.
describe_kind() {
  case $KIND in
    v5e-8) ACCELERATOR=v5litepod-8 RUNTIME=v2-alpha-tpuv5-lite DEVICES=8 MESH=4x2 ZONE=${ZONE:-us-west4-a} ;;
    v6e-8) ACCELERATOR=v6e-8 RUNTIME=v2-alpha-tpuv6e DEVICES=8 MESH=8x1
      if [[ $HOW == flex-start ]]; then ZONE=${ZONE:-us-east5-a}; else ZONE=${ZONE:-us-east5-b}; fi ;;
    v4-8) ACCELERATOR=v4-8 RUNTIME=tpu-ubuntu2204-base DEVICES=4 MESH=2x2 ZONE=${ZONE:-us-central2-b} ;;
    *) refuse "KIND must be v5e-8, v6e-8 or v4-8, not $KIND" ;;
  esac
}

check_settings() {
  [[ $BUCKET =~ ^gs://[a-z0-9] ]] || refuse "set BUCKET, such as gs://my-bucket/jaxsink; it is '$BUCKET'"
  BUCKET=${BUCKET%/}
  [[ $NAME =~ ^[a-z]([a-z0-9-]{0,60}[a-z0-9])?$ ]] ||
    refuse "NAME must be lower-case letters, digits and hyphens, not '$NAME'"
  local setting
  for setting in MAX_HOURS WAIT_HOURS IDLE_MINUTES PAUSE; do
    [[ ${!setting} =~ ^[1-9][0-9]*$ ]] || refuse "$setting must be a whole number above 0, not '${!setting}'"
  done
  case $HOW in
    spot | on-demand) ;;
    flex-start)
      ((MAX_HOURS <= 168)) || refuse "flex-start VMs run for at most 168 hours; MAX_HOURS is $MAX_HOURS"
      [[ $KIND != v4-8 ]] || refuse "there is no flex-start for v4; use HOW=spot or HOW=on-demand" ;;
    *) refuse "HOW must be spot, flex-start or on-demand, not $HOW" ;;
  esac
  [[ $INTERNAL == yes || $INTERNAL == no ]] || refuse "INTERNAL must be yes or no, not $INTERNAL"
  describe_kind
}

# The hub id of a model's published weights, by the name that its settings have.
hub_id() {
  case $1 in
    llada-8b-instruct) echo GSAI-ML/LLaDA-8B-Instruct ;;
    dream-7b-instruct) echo Dream-org/Dream-v0-Instruct-7B ;;
    mmada-8b-mixcot) echo Gen-Verse/MMaDA-8B-MixCoT ;;
    llama-3.1-8b-instruct) echo meta-llama/Llama-3.1-8B-Instruct ;;
    *) refuse "no such model: $1 (llada-8b-instruct, dream-7b-instruct, mmada-8b-mixcot, llama-3.1-8b-instruct)" ;;
  esac
}
