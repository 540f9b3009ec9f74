"""Re-fits a node's coordinate to the samples that it remembers.

Vivaldi takes one step for each sample and forgets it. Here the node keeps its latest filtered RTT to each of a few hundred peers, and
after every new sample moves to where the peers' *latest* coordinates explain all of them best. The unknowns are its own vector and height,
p = (x, h); a sample says |x - x_j| + h + h_j = rtt_j.

One pass is a damped Gauss-Newton step on the robust sum of squared relative errors, which re-weights every sample by

    w_j = age_j * trust_j / (rtt_j^2 * (1 + (e_j / scale)^2)),     e_j = (rtt_j - predicted_j) / rtt_j

(iteratively re-weighted least squares with Cauchy's loss; e.g. Holland and Welsch, 1977). The loss grows with the logarithm of the error,
so that paths that no three-dimensional space can explain, and liars, have little weight. Three things make it work in practice:

* a curvature term across the line of sight. Gauss-Newton alone has no resistance there and overshoots; majorisation (SMACOF, de Leeuw
  1977), with as much resistance across as along, is safe but slow. A few hundredths of that (`across`) are both safe and fast.
* a height that would fall below 0 is fixed at 0 *inside* the solution. Clipping it afterwards leaves a vector that was computed for
  another height, and the whole overlay diverges.
* the scale follows the node's own typical error: wide while nothing fits, narrow once most does.
"""

import numpy as np

from sbon.types import FloatArray

Place = tuple[float, float, float, float]
"""x, y, z and height, in ms."""


DISTANCE_MS_MIN = 1e-6


class Refit:
    """Buffers for the passes over one node's samples, reused between calls."""

    def __init__(self, capacity: int) -> None:
        self._jacobian: FloatArray = np.ones((4, capacity))
        self._weighted: FloatArray = np.empty((4, capacity))
        self._square: FloatArray = np.empty((3, capacity))
        self._scratch: FloatArray = np.empty((3, capacity))

    def step(
        self,
        place: Place,
        peers: FloatArray,
        rtt_ms: FloatArray,
        rtt_square: FloatArray,
        weight: FloatArray,
        scale: float,
        across: float,
        prior: float,
    ) -> Place:
        """Computes the move of one pass.

        Parameters
        ----------
        place : where the node is now
        peers : (4 or more, n) x, y, z, height of the peers
        rtt_ms : (n,)
        rtt_square : (n,) square of the RTT, with a floor
        weight : (n,) age times trust; only ratios matter
        scale : relative error at which a sample has half its weight
        across : resistance across the line of sight, as a share of that along it
        prior : damping, in samples of average weight

        Returns
        -------
        move : full move of vector and height; the height stays at or above 0 for any share of the move
        """
        n = rtt_ms.shape[0]
        jacobian, weighted, square = self._jacobian[:, :n], self._weighted[:, :n], self._square[:, :n]
        distance, residual, say = self._scratch[:, :n]
        x, y, z, height = place
        difference = jacobian[:3]
        np.subtract(((x,), (y,), (z,)), peers[:3], out=difference)
        np.multiply(difference, difference, out=square)
        np.add.reduce(square, axis=0, out=distance)
        np.sqrt(distance, out=distance)
        np.maximum(distance, DISTANCE_MS_MIN, out=distance)
        np.divide(difference, distance, out=difference)
        np.subtract(rtt_ms, distance, out=residual)
        np.subtract(residual, peers[3], out=residual)
        np.subtract(residual, height, out=residual)
        # weight / (rtt^2 * (1 + (residual / rtt / scale)^2)), with the fewest operations.
        np.multiply(residual, residual, out=say)
        np.multiply(say, 1.0 / (scale * scale), out=say)
        np.add(say, rtt_square, out=say)
        np.divide(weight, say, out=say)
        np.multiply(jacobian, say, out=weighted)
        matrix, right = weighted @ jacobian.T, weighted @ residual
        total = float(matrix[3, 3])
        matrix[:3, :3] *= 1.0 - across
        damping = total * prior / n + 1e-300
        diagonal = matrix.reshape(16)[::5]
        diagonal += damping
        diagonal[:3] += across * total
        dx, dy, dz, dh = np.linalg.solve(matrix, right).tolist()
        if height + dh < 0.0:
            dh = -height
            dx, dy, dz = np.linalg.solve(matrix[:3, :3], right[:3] - matrix[:3, 3] * dh).tolist()
        return dx, dy, dz, dh
