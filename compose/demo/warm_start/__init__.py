"""Makes the demo's model from nothing: tokenizer, chat template, and a supervised start that is noisy on purpose.

`python -m compose.demo.warm_start --out DIR` asks the installed Pi what it really sends (nothing of that is kept here), trains
a tokenizer on it, and teaches a model of 0.2 M parameters demonstrations of which only a third are right.
"""
