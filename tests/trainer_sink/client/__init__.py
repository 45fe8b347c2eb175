"""Tests of the HTTP API's client."""
