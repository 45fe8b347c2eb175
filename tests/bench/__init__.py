"""What Polynya costs, measured side by side with the simplest thing that could do the same.

`make bench` (`python -m tests.bench`) starts everything that it needs, prints a table and writes `.bench/latest.json`.
Each measurement is a module with a coroutine `measure(bench) -> list[Metric]`; every number has its baseline from the same
run, on the same machine, under the same load: compare ratios, not milliseconds.
"""
