"""The vendors' own SDKs against a running proxy: one scaffold, one driver per API."""
