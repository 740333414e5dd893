# What the scripts ask of Google Cloud: request a TPU VM, look at it, reach it, delete it, say what is left.
# Sourced by tpu.sh after settings.sh. A VM always comes from a queued resource of the same name, and goes with it.
# It uses self, here and work (the script, its folder, a scratch folder) and refuse and fail of tpu.sh.
# shellcheck shell=bash disable=SC2034,SC2153,SC2154

token=run-$$-$(date +%s) # label of this program's requests

# Whether the request $NAME is this program's, to be deleted at the end: no, perhaps, yes or left (on purpose).
# A file, because the work and the cleaning up are different processes.
ours() { cat "$work/ours" 2>/dev/null || echo no; }
own() { echo "$1" >"$work/ours"; }

# say and cloud write to the log, so that the reason of a failure is there when the terminal is gone.
say() {
  local line
  line="$(date '+%Y-%m-%d %H:%M:%S') $*"
  printf '%s\n' "$line" >>"$LOG"
  printf '%s\n' "$line" 2>/dev/null >&3 || true # 3: the terminal, also where the output goes elsewhere
}
cloud() { gcloud --quiet --project="$PROJECT" "$@" 2>>"$LOG"; }

find_project() {
  command -v gcloud >/dev/null || refuse "gcloud is not installed: https://cloud.google.com/sdk/docs/install"
  PROJECT=${PROJECT:-$(gcloud config get-value project 2>/dev/null || true)}
  [[ -n $PROJECT ]] || refuse "no project: 'gcloud auth login' and 'gcloud config set project PROJECT', or set PROJECT"
  SERVICE_ACCOUNT=${SERVICE_ACCOUNT:-jaxsink-tpu@$PROJECT.iam.gserviceaccount.com}
  TPU_VM=(compute tpus tpu-vm)
  REACH=(--zone="$ZONE")
  if [[ $INTERNAL == yes ]]; then # tunnels are in the alpha commands only
    TPU_VM=(alpha compute tpus tpu-vm)
    REACH+=(--tunnel-through-iap)
  fi
}

# look queued-resources|tpu-vm FIELDS: these fields of what is called $NAME. NONE: there is none. UNKNOWN: no answer.
look() {
  local answer errors
  errors=$(mktemp)
  if answer=$(gcloud --quiet --project="$PROJECT" compute tpus "$1" describe "$NAME" --zone="$ZONE" \
    --format="value($2)" 2>"$errors"); then
    echo "${answer:-UNKNOWN}"
  elif grep -q NOT_FOUND "$errors"; then
    echo NONE
  else
    cat "$errors" >>"$LOG"
    echo UNKNOWN
  fi
  rm -f "$errors"
}
request_state() { look queued-resources state.state; }
request_owner() { look queued-resources "tpu.nodeSpec[0].node.labels.owner"; }

# READY, LOST (preempted, deleted or ended: it will not come back) or UNKNOWN.
vm_state() {
  case $(request_state) in
    ACTIVE) ;;
    UNKNOWN) echo UNKNOWN && return ;;
    *) echo LOST && return ;;
  esac
  case $(look tpu-vm state) in
    NONE | PREEMPTED | TERMINATED | STOPPED | STOPPING | DELETING) echo LOST ;;
    UNKNOWN) echo UNKNOWN ;;
    *) echo READY ;;
  esac
}

# create_request SECONDS IDLE_SECONDS: ask for a VM that deletes itself after so long, or so long after its last work.
create_request() {
  local track=(compute) terms=(--valid-until-duration="${WAIT_HOURS}h") script
  case $HOW in
    spot) terms+=(--spot) ;;
    flex-start) # Google deletes the VM by itself, too
      track=(alpha compute)
      terms+=(--provisioning-model=flex-start --max-run-duration="$1s") ;;
  esac
  if [[ $INTERNAL == yes ]]; then terms+=(--internal-ips); fi
  if [[ -n $SUBNETWORK ]]; then terms+=(--subnetwork="$SUBNETWORK"); fi
  script=$work/watchdog.sh
  {
    echo "#!/usr/bin/env bash"
    printf '%s=%q\n' NAME "$NAME" ZONE "$ZONE" PROJECT "$PROJECT" LIMIT_SECONDS "$1" IDLE_SECONDS "$2"
    cat "$here/vm/watchdog.sh"
  } >"$script"
  # No signal ends this before the answer is there: otherwise nobody would know whether the request was made.
  (
    trap '' INT TERM HUP
    trap 'rm -f "$work/asking"' EXIT
    touch "$work/asking"
    gcloud --quiet --project="$PROJECT" "${track[@]}" tpus queued-resources create "$NAME" --node-id="$NAME" \
      --zone="$ZONE" --accelerator-type="$ACCELERATOR" --runtime-version="$RUNTIME" --network="$NETWORK" \
      --service-account="$SERVICE_ACCOUNT" --scopes=https://www.googleapis.com/auth/cloud-platform \
      --labels=owner="$token" --metadata-from-file=startup-script="$script" --async "${terms[@]}" >"$work/answer" 2>&1
  )
}

# request_vm SECONDS IDLE_SECONDS: create_request, and know afterwards whether the request is ours.
request_vm() {
  local tries
  for tries in 1 2 3; do
    own perhaps
    if create_request "$1" "$2"; then
      own yes
      return
    fi
    cat "$work/answer" >>"$LOG"
    if [[ $(request_owner) == "$token" ]]; then # the request was made, only its answer was lost
      own yes
      return
    elif grep -qi ALREADY_EXISTS "$work/answer"; then
      own no
      fail "$NAME was just taken by somebody else in $ZONE; choose another NAME."
    elif grep -qi quota "$work/answer"; then
      fail "no quota for this. $(head -n 1 "$work/answer") Ask for more: $(quota_page)"
    fi
    say "the request failed ($tries of 3): $(head -n 1 "$work/answer")"
    sleep "$PAUSE"
  done
  fail "Google Cloud does not take the request; see $LOG."
}

# After an interrupted request: was it made? It may still appear, so look twice before it is taken for not made.
settle_ownership() {
  local tries owner
  for tries in {1..60}; do
    if [[ -e $work/asking ]]; then sleep 1; fi
  done
  for tries in 1 2; do
    owner=$(request_owner)
    case $owner in
      "$token" | UNKNOWN) own yes && return ;;
      NONE) if ((tries == 1)); then sleep "$PAUSE"; fi ;;
      *) break ;; # somebody else's
    esac
  done
  own no
}

on_vm() { # COMMAND
  cloud "${TPU_VM[@]}" ssh "$NAME" "${REACH[@]}" --ssh-flag="-o ServerAliveInterval=15" --command="$1"
}
copy_to_vm() { # FILES
  cloud "${TPU_VM[@]}" scp "$@" "$NAME:jaxsink-tpu/" "${REACH[@]}"
}

# Delete the request with its VM, and try again until both are gone.
delete_vm() {
  local tries
  for tries in 1 2 3 4 5 6 7 8; do
    if [[ $(request_state) != NONE ]]; then
      if ((tries == 1)); then say "deleting $NAME in $ZONE; this takes a minute or two"; fi
      cloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force >>"$LOG" ||
        say "deleting $NAME failed ($tries of 8)"
    elif [[ $(look tpu-vm state) != NONE ]]; then
      say "deleting the VM $NAME, which is there without its request"
      cloud compute tpus tpu-vm delete "$NAME" --zone="$ZONE" >>"$LOG" || say "deleting the VM failed ($tries of 8)"
    fi
    if [[ $(request_state) == NONE && $(look tpu-vm state) == NONE ]]; then return 0; fi
    sleep "$PAUSE"
  done
  return 1
}

quota_page() { echo "https://console.cloud.google.com/iam-admin/quotas?service=tpu.googleapis.com&project=$PROJECT"; }

# The last words of every command: what exists, and how to delete it. Fails if there is something that bills.
report() {
  local request vm size
  request=$(request_state)
  vm=$(look tpu-vm state)
  size=$(cloud storage du --summarize --readable-sizes "$BUCKET" || true)
  if [[ -n $size ]]; then
    say "The bucket keeps ${size%% *} in $BUCKET, billed as storage. Delete it: gcloud storage rm --recursive $BUCKET"
  fi
  if [[ $request == NONE && $vm == NONE ]]; then
    say "Nothing bills by the hour: no request and no VM named $NAME in $ZONE; no disk was made."
    return 0
  fi
  if [[ $request == UNKNOWN || $vm == UNKNOWN ]]; then
    say "NOT KNOWN whether something bills: Google Cloud did not answer. Look again: NAME=$NAME ZONE=$ZONE $self status"
  fi
  if [[ $request != NONE ]]; then
    say "STILL THERE: request $NAME in $ZONE ($request). Delete it with its VM:" \
      "gcloud compute tpus queued-resources delete $NAME --zone=$ZONE --project=$PROJECT --force"
  fi
  if [[ $vm != NONE ]]; then
    say "STILL THERE AND BILLING: VM $NAME in $ZONE ($vm). Delete it:" \
      "gcloud compute tpus tpu-vm delete $NAME --zone=$ZONE --project=$PROJECT"
  fi
  return 1
}
