"""The master problem: how often to use which row so that every sample has a place, as a linear program in HiGHS."""

import numpy as np

from padless.errors import PadlessError
from padless.planning.optimal.pricing import Columns
from padless.planning.optimal.silence import made_silently

INFINITE = 1e30


class Master:
    """Minimise the number of rows over the columns known so far; warm-started simplex, one thread."""

    def __init__(self, counts: np.ndarray) -> None:
        import highspy

        self._solver = made_silently(highspy.Highs)
        for name, value in (
            ("output_flag", False),
            ("threads", 1),
            ("presolve", "off"),
            ("solver", "simplex"),
            ("random_seed", 0),
            ("simplex_strategy", 4),  # primal: the last basis stays feasible when columns come in
        ):
            self._solver.setOptionValue(name, value)
        empty = np.zeros(0, np.int32)
        rows = counts.size
        self._solver.addRows(
            rows, counts.astype(float), np.full(rows, INFINITE), 0, np.zeros(rows, np.int32), empty, np.zeros(0)
        )
        self._names: set[bytes] = set()
        self.iterations = 0  # of the simplex method, all solves together
        self.columns = Columns(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))

    def add(self, columns: Columns) -> int:
        """Add the columns that are new; returns how many."""
        new = []
        for number, name in enumerate(columns.keys()):
            if name not in self._names:
                self._names.add(name)
                new.append(number)
        if not new:
            return 0
        fresh = columns.only(np.array(new))
        size = len(fresh)
        self._solver.addCols(
            size,
            np.ones(size),
            np.zeros(size),
            np.full(size, INFINITE),
            fresh.classes.size,
            fresh.offsets[:-1].astype(np.int32),
            fresh.classes.astype(np.int32),
            fresh.repeats.astype(float),
        )
        self.columns = self.columns.joined(fresh)
        return size

    def solve(self) -> tuple[float, np.ndarray, np.ndarray]:
        """The fewest rows, fractions allowed: objective, uses of each column, price of each length."""
        import highspy

        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            status = self._solver.modelStatusToString(self._solver.getModelStatus())
            raise PadlessError(f"HiGHS stopped with {status!r}; strategy 'best-fit-decreasing' needs no solver")
        solution, info = self._solver.getSolution(), self._solver.getInfo()
        self.iterations += info.simplex_iteration_count
        return info.objective_function_value, np.array(solution.col_value), np.maximum(np.array(solution.row_dual), 0.0)
