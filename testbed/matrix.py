"""Reads RTT matrices from files."""

import zipfile
from pathlib import Path

import numpy as np

from sbon.errors import ConfigError, UsageError
from sbon.types import FloatArray

MATRIX_NODES_MAX = 20_000


def load_matrix(path: Path | str) -> FloatArray:
    """Reads RTTs in ms: [n, n], or [t, n, n] if the file has several slices of time.

    A `.npz` file has them under the key `rtt`; any other file is read as text, one row a line, values separated by white space or commas.
    Missing values are NaN (in text also `-`); impossible RTTs (infinite, zero or less) become missing, and the diagonal 0.

    Raises
    ------
    ConfigError
        The file cannot be read, is no square matrix, or has no value.
    """
    path = Path(path)
    rtt = _from_npz(path) if path.suffix == ".npz" else _from_text(path)
    if rtt.ndim not in (2, 3) or rtt.shape[-1] != rtt.shape[-2] or 0 in rtt.shape:
        raise ConfigError(f"{path}: a matrix of shape {list(rtt.shape)}, expected [n, n] or [t, n, n]")
    if rtt.shape[-1] < 2 or rtt.shape[-1] > MATRIX_NODES_MAX:
        raise ConfigError(f"{path}: {rtt.shape[-1]} nodes, expected 2 to {MATRIX_NODES_MAX}")
    rtt[~(np.isfinite(rtt) & (rtt > 0))] = np.nan
    if np.isnan(rtt[..., ~np.eye(rtt.shape[-1], dtype=bool)]).all():
        raise ConfigError(f"{path}: no RTT above 0 between two nodes, expected milliseconds")
    diagonal = np.arange(rtt.shape[-1])
    rtt[..., diagonal, diagonal] = 0.0
    return rtt


def slice_of(matrix: FloatArray, wanted: str) -> FloatArray:
    """Returns one slice of a matrix over time, (n, n).

    Parameters
    ----------
    matrix : [n, n] or [t, n, n]
    wanted : `first`, `median` (each pair's, over the slices that measured it), or the slice's number from 0

    Raises
    ------
    UsageError
        There is no such slice.
    """
    slices = matrix if matrix.ndim == 3 else matrix[None]
    if wanted == "median":
        return per_pair_median(slices)
    number = "0" if wanted == "first" else wanted
    if not (number.isascii() and number.isdecimal() and int(number) < len(slices)):
        raise UsageError(f"--slice {wanted}, expected first, median or a number from 0 to {len(slices) - 1}")
    one: FloatArray = slices[int(number)]
    return one


def per_pair_median(slices: FloatArray) -> FloatArray:
    """Returns the median over the slices that measured each pair, (n, n); NaN if none did."""
    measured = np.isfinite(slices).any(axis=0)
    filled = np.where(measured, slices, 0.0)
    median: FloatArray = np.where(measured, np.nanmedian(filled, axis=0), np.nan)
    return median


def _from_npz(path: Path) -> FloatArray:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "rtt" not in archive:
                raise ConfigError(f"{path}: keys {sorted(archive)}, expected a key rtt")
            return np.array(archive["rtt"], dtype=np.float64)
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: cannot be read as .npz ({error})") from error


def _from_text(path: Path) -> FloatArray:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text ({error})") from error
    rows: list[list[float]] = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].replace(",", " ").split()
        if not words:
            continue
        try:
            rows.append([np.nan if word == "-" else float(word) for word in words])
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}, expected milliseconds, nan or -") from error
        if len(words) != len(rows[0]):
            raise ConfigError(f"{path}, line {number}: {len(words)} values, expected {len(rows[0])} as in the first row")
    return np.array(rows, dtype=np.float64)
