"""The main job on one machine: real agent CLIs against a scripted policy, out as scored trajectories.

In: two task files beside this page. Out: a table, one trace with its loss mask in colour, a Parquet file.
"""
