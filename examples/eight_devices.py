"""Record on eight devices, each with a copy of the weights and a part of the batch; in float32 the text is the same.

python examples/eight_devices.py                # eight devices made of this machine's processor
python examples/eight_devices.py MODEL          # a model that does not fit on one device: load(..., mesh=...), see below
"""

import sys

import jax
import numpy as np

import jaxsink

jax.config.update("jax_num_cpu_devices", 8)  # before JAX is used; leave it out where there are eight real ones
model = jaxsink.load(sys.argv[1] if len(sys.argv) > 1 else "mini-llada")
# weights cut over four devices, batches over two: jaxsink.load(name, mesh=jaxsink.parallel.make_mesh(data=2, model=4))
names = ["Tom", "Mia", "Ben", "Zoe", "Sam", "Eva", "Leo", "Ann", "Max"]  # nine: a batch need not divide
questions = [f"{name} has 4 apples. {name} buys 3 more apples. How many apples does {name} have now?" for name in names]
record = jaxsink.record.received()
many = jaxsink.generate(model, questions, record=record, devices=jax.devices())
one = jaxsink.generate(model, questions, record=record)
error = np.abs(np.asarray(many.record) - np.asarray(one.record)).max()
print(f"{len(jax.devices())} devices, record {np.shape(many.record)} = steps, layers, sequences, heads, positions")
print(f"same tokens: {np.array_equal(many.tokens, one.tokens)}, largest difference of attention: {error:.0e}")
