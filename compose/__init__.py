"""The composition root: starts the parts, runs Kafka and the CPU engine without Docker, and speaks with people.

In: flags, the environment, task files. Out: a running stack, and the `polynya` command.
"""
