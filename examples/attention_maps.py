"""Attention maps of a diffusion model, in the middle of writing: one layer, all heads, as a picture and as an array.

python examples/attention_maps.py                                  # a built-in model, in seconds
python examples/attention_maps.py GSAI-ML/LLaDA-8B-Instruct 16     # LLaDA-8B, layer 16
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import jaxsink

name, layer = (*sys.argv[1:], *("mini-llada", "3")[len(sys.argv) - 1 :])
model = jaxsink.load(name)
question = "Tom has 11 flowers and gives 7 flowers to Max. How many flowers does Tom have left?"
out = jaxsink.generate(model, question, record=jaxsink.record.maps(layers=[int(layer)]))  # maps are large: ask for few

maps = np.asarray(out.record)[len(out.record) // 2, 0, 0]  # [step, layer, sequence, head, query, key]
figure, axes = plt.subplots(1, len(maps), figsize=(3 * len(maps), 3.3), layout="constrained", squeeze=False)
for head, (ax, probabilities) in enumerate(zip(axes[0], maps, strict=True)):
    ax.imshow(np.log10(np.maximum(probabilities, 1e-4)), cmap="magma")
    ax.set(title=f"layer {layer}, head {head}", xlabel="key", ylabel="query" if head == 0 else "")
figure.savefig("maps.png", dpi=150)
print(f"maps.png: {maps.shape[0]} heads of {maps.shape[1]} x {maps.shape[2]} tokens; every row sums to 1")
