"""The `polynya` command: each file parses and prints one group of commands; the work is done elsewhere."""
