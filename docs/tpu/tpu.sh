#!/usr/bin/env bash
# On your machine: one model on one benchmark on a Cloud TPU VM, from the request to the deletion. See --help.
set -euo pipefail
exec 3>&1
self=$0
here=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<END
usage: tpu.sh COMMAND

  setup         once per project: APIs, service account, bucket and rights; checks the logins
  run MODEL gsm8k|humaneval [SHARD] [OPTIONS]
                request a VM, install, convert, evaluate, delete the VM; after a preemption, go on with a new VM.
                SHARD is I/N (1/1); OPTIONS are those of 'jaxsink evaluate'
  create        request and install a VM to work on by hand; it deletes itself after MAX_HOURS
  ssh           log in to it
  status        what exists and bills
  stop          delete the request NAME and its VM
  collect [DIR] copy all results from the bucket to DIR (runs) and write the tables to table1/

Settings are environment variables, explained in $here/settings.sh; BUCKET is required.

examples:
  export BUCKET=gs://my-bucket/jaxsink
  docs/tpu/tpu.sh setup
  docs/tpu/tpu.sh run llada-8b-instruct gsm8k
  KIND=v6e-8 HOW=flex-start MAX_HOURS=8 docs/tpu/tpu.sh run llada-8b-instruct humaneval
  NAME=jaxsink-2 docs/tpu/tpu.sh run llada-8b-instruct gsm8k 2/4 --rows 40
  docs/tpu/tpu.sh collect

Ctrl-C, an error, a closed terminal or the time limit: the VM is deleted, and the last line says what still exists.
If this machine dies, the VM finishes its work, copies it to the bucket and deletes itself.
END
}

refuse() {
  echo "tpu.sh: $*" >&2
  exit 2
}
fail() {
  say "FAILED: $*"
  exit 1
}

# shellcheck source-path=SCRIPTDIR source=settings.sh
source "$here/settings.sh"
# shellcheck source-path=SCRIPTDIR source=cloud.sh
source "$here/cloud.sh"

# Do the work in a process of its own, and clean up after it, however it or this program ends.
supervise() { # COMMAND
  worker=
  trap clean_up EXIT
  trap '' PIPE # a closed terminal must not end the program before it has deleted the VM
  trap 'interrupt 130' INT
  trap 'interrupt 143' TERM HUP
  "$@" &
  worker=$!
  wait "$worker"
}
interrupt() {
  trap '' INT TERM HUP # a second Ctrl-C must not stop the deletion
  say "interrupted"
  exit "$1"
}
clean_up() {
  local code=$?
  trap '' INT TERM HUP
  set +e
  worker=${worker:-${!:-}}
  if [[ -n $worker ]]; then
    pkill -P "$worker"
    kill "$worker" 2>/dev/null
  fi
  if [[ $(ours) == perhaps ]]; then settle_ownership; fi
  if [[ $(ours) == yes ]]; then delete_vm; fi
  if [[ $(ours) != left ]] && ! report && ((code == 0)); then code=1; fi
  rm -rf "$work"
  exit "$code"
}

setup() {
  local bucket region tries
  bucket=gs://$(cut -d/ -f3 <<<"$BUCKET")
  region=${ZONE%-*}
  say "enabling the APIs"
  cloud services enable tpu.googleapis.com compute.googleapis.com storage.googleapis.com iam.googleapis.com \
    iap.googleapis.com
  if ! cloud iam service-accounts describe "$SERVICE_ACCOUNT" >/dev/null; then
    say "making the service account $SERVICE_ACCOUNT"
    cloud iam service-accounts create "${SERVICE_ACCOUNT%%@*}" --display-name="jaxsink on Cloud TPU"
  fi
  for tries in 1 2 3 4 5; do # a new account takes a moment to be known everywhere
    if cloud projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$SERVICE_ACCOUNT" \
      --role=roles/tpu.admin --condition=None >/dev/null; then break; fi
    if ((tries == 5)); then
      fail "the account cannot be given roles/tpu.admin, without which a VM cannot delete itself; see $LOG."
    fi
    sleep "$PAUSE"
  done
  if ! cloud storage buckets describe "$bucket" >/dev/null; then
    say "making the bucket $bucket in $region"
    cloud storage buckets create "$bucket" --location="$region" --uniform-bucket-level-access
  fi
  cloud storage buckets add-iam-policy-binding "$bucket" --member="serviceAccount:$SERVICE_ACCOUNT" \
    --role=roles/storage.objectAdmin >/dev/null
  if ! gcloud auth application-default print-access-token >/dev/null 2>&1; then
    say "jaxsink on this machine cannot read the bucket yet (collect needs that): gcloud auth application-default login"
  fi
  say "ready. Look whether there is quota for $KIND ($HOW) in $ZONE: $(quota_page)"
}

# Everything a VM needs, before one is paid for: the wheel, the VM's scripts, the job.
pack() { # MODEL SOURCE BENCHMARK SHARD [OPTIONS]
  say "building the wheel"
  python3 -m pip wheel --quiet --no-deps --wheel-dir "$work/vm" "$here/../.." >>"$LOG" 2>&1 ||
    fail "python3 -m pip cannot build jaxsink from $here/../..; see $LOG."
  cp "$here"/vm/install.sh "$here"/vm/work.sh "$work/vm/"
  {
    printf '%s=%q\n' BUCKET "$BUCKET" MESH "$MESH" MODEL "${1:-}" SOURCE "${2:-}" BENCHMARK "${3:-}" SHARD "${4:-}"
    printf 'OPTIONS=('
    if (($# > 4)); then printf '%q ' "${@:5}"; fi
    printf ')\n'
  } >"$work/vm/job.sh"
  if [[ -n ${HF_TOKEN:-} ]]; then (umask 077 && printf '%s' "$HF_TOKEN" >"$work/vm/hf-token"); fi
}

# Wait until the request has its VM. Fails when it ends without one.
await_vm() { # SECONDS IDLE_SECONDS
  local state shown="" asked failures=0
  asked=$(date +%s)
  say "asking for $KIND ($HOW) in $ZONE, for at most $WAIT_HOURS h"
  request_vm "$1" "$2"
  while :; do
    state=$(request_state)
    if [[ $state != "$shown" ]]; then say "request: $state" && shown=$state; fi
    if [[ $state == ACTIVE ]]; then return; fi
    if [[ $state != PROVISIONING ]] && (($(date +%s) - asked >= WAIT_HOURS * 3600)); then
      fail "no $KIND in $ZONE within $WAIT_HOURS h. Try another ZONE, KIND, HOW or a longer WAIT_HOURS."
    fi
    case $state in
      FAILED | SUSPENDED | NONE)
        failures=$((failures + 1))
        if ((failures == 5)); then
          fail "five requests in a row ended as $state: $(look queued-resources state.failedData.error.message)"
        fi
        delete_vm || fail "a request that ended as $state cannot be deleted."
        request_vm "$1" "$2" ;;
    esac
    sleep "$PAUSE"
  done
}

install_on_vm() {
  local tries code
  for tries in 1 2 3 4 5; do # gcloud itself tries ten times, for a new VM takes a moment until it lets anybody in
    if on_vm "mkdir -p jaxsink-tpu"; then break; fi
    if [[ $(vm_state) == LOST ]]; then return 1; fi
    if ((tries == 5)); then
      fail "the VM cannot be reached by ssh; see $LOG. Behind a firewall, or without external addresses: INTERNAL=yes."
    fi
    sleep "$PAUSE"
  done
  for tries in 1 2 3; do
    say "installing jaxsink on the VM"
    code=0
    if copy_to_vm "$work"/vm/*; then
      on_vm "bash jaxsink-tpu/install.sh $DEVICES" >"$work/answer" || code=$?
      cat "$work/answer" >>"$LOG"
      if ((code == 0)); then return 0; fi
      if ((code == 3)); then fail "JAX does not find the TPU. $(tail -n 1 "$work/answer")"; fi
    fi
    if [[ $(vm_state) == LOST ]]; then return 1; fi
    sleep "$PAUSE"
  done
  fail "jaxsink cannot be installed on the VM; see $LOG."
}

fail_late() { fail "the time limit of $MAX_HOURS VM hours (MAX_HOURS) is reached. The same command continues."; }

# Start the job and follow it. Success: it is done. Failure: the VM is lost. Ends the program if the job itself fails.
work_on_vm() { # UNTIL
  local state rest shown="" misses=0
  while :; do
    if (($(date +%s) >= $1)); then fail_late; fi
    if on_vm "jaxsink-tpu/work.sh state" >"$work/state"; then
      misses=0
      state=$(head -n 1 "$work/state") rest=$(tail -n +2 "$work/state")
      case $state in
        running) if [[ $rest != "$shown" ]]; then say "VM: $rest" && shown=$rest; fi ;;
        "ended 0") return 0 ;;
        idle | "ended 143") # not begun, or terminated, as when the VM is about to be preempted
          if [[ $(vm_state) == LOST ]]; then return 1; fi
          on_vm "jaxsink-tpu/work.sh start" || true ;;
        *)
          say "VM: $rest"
          if [[ $state == "ended 2" ]]; then say "jaxsink refuses to run" && exit 2; fi
          fail "the work on the VM $state." ;;
      esac
    else
      misses=$((misses + 1))
      if [[ $(vm_state) == LOST ]] || ((misses == 30)); then return 1; fi
    fi
    sleep "$PAUSE"
  done
}

is_finished() { cloud storage ls "$BUCKET/runs/$1-$2/finished-$(printf %04d "${3%/*}")" >/dev/null; }

check_job() { # MODEL BENCHMARK SHARD
  hub_id "$1" >/dev/null
  [[ $2 == gsm8k || $2 == humaneval ]] || refuse "the benchmark must be gsm8k or humaneval, not '$2'"
  if ! [[ $3 =~ ^[1-9][0-9]*/[1-9][0-9]*$ ]] || ((${3%/*} > ${3#*/})); then
    refuse "SHARD must be I/N, such as 2/4, not '$3'"
  fi
}

check_free() {
  local state
  state=$(request_state)
  [[ $state != UNKNOWN ]] || refuse "Google Cloud does not answer: $(tail -n 1 "$LOG")"
  [[ $state == NONE ]] || refuse "$NAME exists already in $ZONE ($state): another run goes on under this name, or one" \
    "was left behind. Choose another NAME, or delete it: NAME=$NAME ZONE=$ZONE $self stop"
}

# Without this right a VM cannot delete itself, and would bill on if this machine died.
check_rights() {
  local roles
  if ! roles=$(cloud projects get-iam-policy "$PROJECT" --flatten="bindings[].members" \
    --filter="bindings.members:serviceAccount:$SERVICE_ACCOUNT" --format="value(bindings.role)"); then
    say "the rights of $SERVICE_ACCOUNT cannot be read; without roles/tpu.admin the VM cannot delete itself"
  elif ! grep -qE "roles/(tpu.admin|editor|owner)$" <<<"$roles"; then
    refuse "$SERVICE_ACCOUNT lacks roles/tpu.admin, so the VM could not delete itself; run: $self setup"
  fi
}

run() { # MODEL BENCHMARK [SHARD] [OPTIONS]
  (($# >= 2)) || refuse "run needs MODEL and gsm8k or humaneval; see --help"
  check_job "$1" "$2" "${3:-1/1}"
  check_free
  check_rights
  supervise work_until_finished "$1" "$2" "${3:-1/1}" "${@:4}"
}
work_until_finished() { # MODEL BENCHMARK SHARD [OPTIONS]
  local model=$1 benchmark=$2 shard=$3 left=$((MAX_HOURS * 3600)) began
  pack "$model" "$(hub_id "$model")" "${@:2}"
  until is_finished "$model" "$benchmark" "$shard"; do
    if ((left < 900)); then fail_late; fi # too little for a new VM
    await_vm "$left" $((IDLE_MINUTES * 60))
    began=$(date +%s)
    if install_on_vm && work_on_vm $((began + left)); then break; fi
    say "the VM is gone; what it finished is in the bucket"
    left=$((left - $(date +%s) + began))
    delete_vm || fail "the lost VM's request cannot be deleted."
    own no
  done
  say "finished: $BUCKET/runs/$model-$benchmark"
}

create() {
  check_free
  check_rights
  supervise make_vm
}
make_vm() {
  pack
  await_vm $((MAX_HOURS * 3600)) $((MAX_HOURS * 3600))
  install_on_vm || fail "the VM was taken away."
  own left
  say "$NAME is ready and bills. Log in: $self ssh. Delete it: $self stop. It deletes itself in $MAX_HOURS h."
}

collect() {
  local runs=${1:-runs} run name
  mkdir -p "$runs"
  cloud storage rsync --recursive "$BUCKET/runs" "$runs"
  for run in "$runs"/*/; do
    run=${run%/} name=${run##*/}
    jaxsink evaluate "$BUCKET/models/${name%-*}" "${name%-*}/${name##*-}/study" --out "$run" --summary
  done
  jaxsink table1 "$runs"/*/ --out table1
}

command=${1:-help}
case $command in
  help | -h | --help) usage && exit ;;
  setup | run | create | ssh | status | stop | collect) shift ;;
  *) refuse "no such command: $command; see --help" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check_settings
LOG=${LOG:-tpu-$NAME.log}
find_project
case $command in
  ssh) cloud "${TPU_VM[@]}" ssh "$NAME" "${REACH[@]}" ;;
  status) report || true ;;
  stop) delete_vm || true && report ;;
  *) "$command" "$@" ;;
esac
