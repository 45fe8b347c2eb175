"""Shapes that trainers take, made from `TrainingSequence`s: one module per trainer, none imports its trainer.

In: sequences of whole groups (`trainer_sink.sequences`). Out: plain dicts, lists and numpy arrays; tensors where the
trainer wants tensors, and then torch is imported when the function is called.
"""
