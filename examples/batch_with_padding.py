"""In float32, prompts of different lengths in one batch give, token for token, what each of them gives alone.

python examples/batch_with_padding.py
python examples/batch_with_padding.py GSAI-ML/LLaDA-8B-Instruct
"""

import sys

import numpy as np

import jaxsink

model = jaxsink.load(sys.argv[1] if len(sys.argv) > 1 else "mini-llada")
questions = [
    "Tom has 11 flowers and gives 7 flowers to Max. How many flowers does Tom have left?",
    "Mia has 2 bags with 3 apples in each bag and 4 more apples on the table. How many apples does Mia have?",
]
both = jaxsink.generate(model, questions, record=jaxsink.record.received())  # padded on the left, and masked
for number, question in enumerate(questions):
    alone = jaxsink.generate(model, question, record=jaxsink.record.received())
    padding = both.tokens.shape[1] - alone.tokens.shape[1]
    same = np.array_equal(both.tokens[number, padding:], alone.tokens[0])
    error = np.abs(np.asarray(both.record)[:, :, number, :, padding:] - np.asarray(alone.record)[:, :, 0]).max()
    print(f"{padding} tokens of padding, same text: {same}, largest difference of attention received: {error:.0e}")
print(*both.texts, sep="\n---\n")
