"""The built-in task: word problems, their tokenizer, and the batches that training reads."""
