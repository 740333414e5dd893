"""Two checkpoints, the same questions: what they write, and how much attention their sinks take.

python examples/compare_checkpoints.py
python examples/compare_checkpoints.py GSAI-ML/LLaDA-8B-Base GSAI-ML/LLaDA-8B-Instruct
"""

import sys

import numpy as np

import jaxsink
from jaxsink.sinks import Threshold, track

question = "Mia has 4 apples. She buys 3 more apples. How many apples does Mia have now?"
runs = {}
for name in sys.argv[1:3] or ["mini-llada", "mini-dream"]:
    out = runs[name] = jaxsink.generate(jaxsink.load(name), question, record=jaxsink.record.received())
    sinks = track(out.record, Threshold(eps=3.0), out.real_at())
    per_layer = np.asarray(sinks.absorbed).mean(axis=(0, 2, 3))  # share of all attention that falls on sinks
    print(
        f"{name}: {out.text.splitlines()[-1]}; attention on sinks by layer:", *(f"{share:.0%}" for share in per_layer)
    )
page = jaxsink.report(runs, out="compare.html")  # side by side, step by step
print(f"open {page}")
