"""The compatibility layer for Polar: its endpoints, its flat TaskRequest, its Trace and SessionResult."""
