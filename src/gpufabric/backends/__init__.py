"""Backends: one folder or module a place. Loaded by name, on use."""
