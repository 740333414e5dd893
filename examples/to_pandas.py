"""A run as a tidy pandas table: one row per step, layer, sequence, head and token, and questions to it in a line.

    python examples/to_pandas.py
    python examples/to_pandas.py GSAI-ML/LLaDA-8B-Instruct

Needs the extra `pandas`.
"""

import sys

import jaxsink

model = jaxsink.load(sys.argv[1] if len(sys.argv) > 1 else "mini-llada")
question = "Mia has 4 apples. She buys 3 more apples. How many apples does Mia have now?"
wanted = jaxsink.record.received().at([0, model.config.layers - 1])  # the first and the last layer
out = jaxsink.generate(model, question, record=wanted, every=4)

table = out.to_dataframe()
table["masked"] = table["committed_at"] >= table["step"]
print(table.head(3).to_string(index=False))
print("\nmean attention received:", table.groupby(["layer", "masked"])["received"].mean().round(2).to_dict())
print("\ntokens that receive most, last layer:")
last = table[table["layer"] == model.config.layers - 1]
print(last.groupby(["token_position", "text"], observed=True)["received"].mean().nlargest(5).round(2).to_string())
table.to_csv("attention.csv", index=False)
