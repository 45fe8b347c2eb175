"""The steps of a call through the proxy, one concern each, in the order of `capture_proxy.pipeline`."""
