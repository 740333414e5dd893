"""GSM8K as the paper asked it: prompt, shots and decoding of each model are named data, and one call evaluates.

python examples/gsm8k_settings.py                                  # built-in model and word problems, in seconds
python examples/gsm8k_settings.py GSAI-ML/LLaDA-8B-Instruct llada-8b-instruct/gsm8k/study 200
"""

import sys
import tempfile

import jaxsink
from jaxsink.evals.settings import get_setting

model, setting, questions = (*sys.argv[1:], *("mini-llada", "task", "4")[len(sys.argv) - 1 :])
published = get_setting("llada-8b-instruct/gsm8k/study")
print(f"{published.name}: {published.sampler()}, {published.shots.total} shots\n  {published.basis}")

with tempfile.TemporaryDirectory() as folder:  # give a directory of your own: a run that was stopped goes on there
    results = jaxsink.evaluate(model, setting, folder, limit=int(questions), k=(0, 1), select=("top", "random"))
for line in results["conditions"]:
    print(f"{line['condition']:15} {line['accuracy']:.0%} solved ({line['low']:.0%} to {line['high']:.0%})")
