#!/usr/bin/env bash
# On your machine, in a checkout: build jaxsink, copy it with these scripts onto the TPU VM, install it there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/settings.sh"

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$here/../.."
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --command="mkdir -p jaxsink-tpu && rm -f jaxsink-tpu/*.whl"
gcloud compute tpus tpu-vm scp "$wheels"/jaxsink-*.whl "$here"/*.sh "$NAME:jaxsink-tpu/" --zone="$ZONE"

# The images carry Python 3.10; uv brings a newer one. The last line must show TPU devices.
gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --command='
  set -euo pipefail
  chmod +x jaxsink-tpu/*.sh
  python3 -m pip install --quiet --user uv
  python3 -m uv venv --quiet --allow-existing --python 3.12 jaxsink-tpu/venv
  python3 -m uv pip install --quiet --python jaxsink-tpu/venv/bin/python "$(echo "$PWD"/jaxsink-tpu/jaxsink-*.whl)[tpu]"
  jaxsink-tpu/venv/bin/python -c "import jax; print(jax.devices())"
'
