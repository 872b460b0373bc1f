"""Column generation on the histogram: near-optimal plans with a proof (Gilmore and Gomory 1961)."""

from padless.planning.optimal.search import Solution, solve

__all__ = ["Solution", "solve"]
