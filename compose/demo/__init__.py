"""The main job on one machine: a tiny model, rolled out through the real Pi, learns by reinforcement while one watches.

In: the checkpoint beside this page (`model/`, made by `warm_start/`) and the task family of `family.py`. Out: the reward curve,
`result.json`, one trace with its loss mask in colour, a Parquet file. `scripted.py` runs the same line without a model that learns.
"""
