# On the TPU VM, from its first minute, as startup script: deletes the VM when its time is up, or when nothing has
# worked on it for a while, also if the machine that asked for it is long gone. tpu.sh puts NAME, ZONE, PROJECT,
# LIMIT_SECONDS and IDLE_SECONDS ahead of this text. The VM's service account needs roles/tpu.admin.
# shellcheck shell=bash disable=SC2153
set -euo pipefail

state=${JAXSINK_STATE:-/var/lib/jaxsink}
export PATH="$PATH:/snap/bin" # where the images have gcloud

begin() {
  mkdir -p "$state"
  [[ -f $state/born ]] || date +%s >"$state/born" # a restart of the VM does not begin its time anew
  date +%s >"$state/alive"                        # install.sh and work.sh write the time here as long as they work
  chmod 666 "$state/alive"
  cp "${BASH_SOURCE[0]}" "$state/watchdog.sh"
  systemd-run --unit=jaxsink-watchdog --property=Restart=always bash "$state/watchdog.sh" watch
}

reason_to_end() {
  local now
  now=$(date +%s)
  if ((now - $(<"$state/born") >= LIMIT_SECONDS)); then
    echo "its $LIMIT_SECONDS seconds are over"
  elif ((now - $(<"$state/alive") >= IDLE_SECONDS)); then
    echo "nothing has worked on it for $IDLE_SECONDS seconds"
  fi
}

watch() {
  local reason
  while :; do
    reason=$(reason_to_end)
    if [[ -n $reason ]]; then
      echo "deleting $NAME: $reason"
      gcloud --quiet --project="$PROJECT" compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force --async ||
        echo "that failed; trying again in a minute"
    fi
    sleep 60
  done
}

case ${1:-begin} in
  begin) begin ;;
  watch) watch ;;
esac
