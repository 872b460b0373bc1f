"""Thin adapters: each knows the names of one framework, and nothing imports them but the command line and users."""
