#!/usr/bin/env bash
# On the TPU VM: install the wheel that lies beside this script, and see that JAX finds the TPU.   install.sh DEVICES
# Exit code 3: it does not, so nothing else is worth trying.
set -euo pipefail
cd "$(dirname "$0")"

devices=${1:?usage: install.sh DEVICES}
date +%s >"${JAXSINK_STATE:-/var/lib/jaxsink}/alive"
python3 -m pip install --quiet --user uv
python3 -m uv venv --quiet --allow-existing --python 3.12 venv # the images carry Python 3.10
export UV_TORCH_BACKEND=cpu                                    # PyTorch reads .bin files; it needs no CUDA for that
python3 -m uv pip install --quiet --python venv/bin/python "$(echo "$PWD"/jaxsink-*.whl)[tpu,convert]"

venv/bin/python - "$devices" <<'END'
import sys

import jax

expected = int(sys.argv[1])
try:
    found = jax.devices()
except RuntimeError as error:
    print(f"JAX finds no device: {error}")
    sys.exit(3)
print(found)
if found[0].platform != "tpu" or len(found) != expected:
    print(f"JAX sees {len(found)} {found[0].platform} device(s) here, and this VM should have {expected} TPU devices.")
    sys.exit(3)
END
date +%s >"${JAXSINK_STATE:-/var/lib/jaxsink}/alive"
