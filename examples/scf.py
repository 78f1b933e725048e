"""A Hartree-Fock calculation with density fitting, in NumPy or CuPy: `python examples/scf.py [--molecules N] [--cupy]`.

The system is a cubic lattice of hydrogen molecules. Each atom has a few Gaussian s functions, so that all integrals
have closed forms (Szabo and Ostlund, Modern Quantum Chemistry, appendix A). As in PySCF's density fitting, each step
builds the Coulomb matrix J and the exchange matrix K from three-index integrals B[P, m, n], and diagonalizes the Fock
matrix F = H + J - K / 2. Nearly all of the arithmetic is in matrix products: `python -m fmm examples/scf.py --cupy`
computes them by fmm, without a change. Needs SciPy, or CuPy with --cupy.
"""

from __future__ import annotations

import argparse
import time
from math import pi
from typing import Any, NamedTuple

import numpy as np

BOND, SPACING = 1.4, 5.0  # distances in bohr: the atoms of a molecule, the molecules of the lattice
ORBITAL_EXPONENTS = (0.17, 0.62, 3.4)
FITTING_EXPONENTS = (0.15, 0.45, 1.35, 4.0, 12.0)
START_FUNCTION = 0  # index of the exponent of the first orbitals
CONVERGED = 1e-9  # hartree


class Integrals(NamedTuple):
    """The integrals of a molecule in the basis of its Gaussian functions."""

    overlap: Any  # S[m, n]
    core: Any  # H[m, n]: kinetic energy, and attraction by the nuclei
    fitted: Any  # B[P, m, n], with (mn|rs) = sum over P of B[P, m, n] B[P, r, s]
    repulsion: float  # energy of the nuclei
    bonds: Any  # start of each molecule's occupied orbital: one s function at both atoms


def hydrogen_lattice(molecules: int) -> Any:
    """Return the positions of the atoms of the first molecules of a cubic lattice."""
    side = int(np.ceil(molecules ** (1 / 3)))
    corners = SPACING * np.array(list(np.ndindex(side, side, side))[:molecules], dtype=float)
    return np.concatenate([corners, corners + np.array([BOND, 0, 0])])


def compute_integrals(atoms: Any, xp: Any, erf: Any) -> Integrals:
    """Return all integrals, as arrays of the module `xp` (numpy or cupy)."""
    atoms = xp.asarray(atoms)
    exponents, centers = _basis(ORBITAL_EXPONENTS, atoms, xp)
    norms = (2 * exponents / pi) ** 0.75
    total = exponents[:, None] + exponents
    reduced = exponents[:, None] * exponents / total
    middles = (exponents[:, None, None] * centers[:, None] + exponents[:, None] * centers) / total[..., None]
    squares = _squared_distances(centers, centers)
    weights = norms[:, None] * norms * xp.exp(-reduced * squares)
    overlap = weights * (pi / total) ** 1.5
    core = overlap * reduced * (3 - 2 * reduced * squares)
    for atom in atoms:
        core -= weights * 2 * pi / total * _boys(total * ((middles - atom) ** 2).sum(-1), xp, erf)
    fitting, places = _basis(FITTING_EXPONENTS, atoms, xp)
    fitting_norms = (2 * fitting / pi) ** 0.75
    fitted = xp.empty((len(fitting), *overlap.shape))
    for row, exponent, place, norm in zip(fitted, fitting, places, fitting_norms, strict=True):
        distances = ((middles - place) ** 2).sum(-1)
        row[...] = norm * weights * _repulsion(total, exponent, distances, xp, erf)
    metric = fitting_norms[:, None] * fitting_norms
    metric *= _repulsion(fitting[:, None], fitting, _squared_distances(places, places), xp, erf)
    inverse_root = _inverse_root(metric, xp)
    flat = inverse_root @ fitted.reshape(len(fitting), -1)
    pairs = _squared_distances(atoms, atoms)[np.triu_indices(len(atoms), 1)]
    bonds = xp.zeros((len(ORBITAL_EXPONENTS), len(atoms), len(atoms) // 2))
    bonds[START_FUNCTION] = xp.tile(xp.eye(len(atoms) // 2), (2, 1))
    bonds = bonds.reshape(len(overlap), -1)
    return Integrals(overlap, core, flat.reshape(fitted.shape), float((1 / xp.sqrt(pairs)).sum()), bonds)


def _basis(exponents: tuple[float, ...], atoms: Any, xp: Any) -> tuple[Any, Any]:
    """Return the exponent and the center of each function: every exponent at every atom."""
    return xp.repeat(xp.asarray(exponents), len(atoms)), xp.tile(atoms, (len(exponents), 1))


def _squared_distances(x: Any, y: Any) -> Any:
    return ((x[:, None] - y) ** 2).sum(-1)


def _boys(t: Any, xp: Any, erf: Any) -> Any:
    """Return the Boys function of order 0."""
    root = xp.sqrt(xp.maximum(t, 1e-12))
    return xp.sqrt(xp.asarray(pi)) / 2 * erf(root) / root


def _repulsion(p: Any, q: Any, squares: Any, xp: Any, erf: Any) -> Any:
    """Return the repulsion of two Gaussian charges with the exponents p and q."""
    return 2 * pi**2.5 / (p * q * xp.sqrt(p + q)) * _boys(p * q / (p + q) * squares, xp, erf)


def _inverse_root(matrix: Any, xp: Any) -> Any:
    """Return the inverse square root of a positive definite matrix."""
    values, vectors = xp.linalg.eigh(matrix)
    return (vectors / xp.sqrt(values)) @ vectors.T


class Calculation:
    """A restricted Hartree-Fock calculation: `step` builds the Fock matrix and new orbitals, and returns the energy."""

    def __init__(self, integrals: Integrals, xp: Any) -> None:
        self.integrals, self.xp = integrals, xp
        self.orthogonal = _inverse_root(integrals.overlap, xp)
        bonds = integrals.bonds
        self.orbitals = bonds @ _inverse_root(bonds.T @ integrals.overlap @ bonds, xp)

    def new_orbitals(self, fock: Any) -> Any:
        """Return the occupied orbitals of a Fock matrix."""
        vectors = self.xp.linalg.eigh(self.orthogonal.T @ fock @ self.orthogonal)[1]
        return self.orthogonal @ vectors[:, : self.integrals.bonds.shape[1]]

    def fock_matrix(self) -> tuple[Any, Any]:
        """Return the density and the Fock matrix of the occupied orbitals."""
        _, core, fitted, _, _ = self.integrals
        count, side, _ = fitted.shape
        density = 2 * self.orbitals @ self.orbitals.T
        flat = fitted.reshape(count, -1)
        coulomb = ((flat @ density.ravel()) @ flat).reshape(side, side)
        halves = fitted.reshape(-1, side) @ self.orbitals  # B[P, m, i]
        halves = halves.reshape(count, side, -1).transpose(1, 0, 2).reshape(side, -1)
        exchange = 2 * halves @ halves.T
        return density, core + coulomb - exchange / 2

    def step(self) -> float:
        """Return the energy of the orbitals, and replace them by those of their Fock matrix."""
        density, fock = self.fock_matrix()
        energy = ((self.integrals.core + fock) * density).sum() / 2 + self.integrals.repulsion
        self.orbitals = self.new_orbitals(fock)
        return float(energy)


def prepare_calculation(molecules: int, on_gpu: bool) -> Calculation:
    """Return the calculation of a lattice of molecules before its first step."""
    if on_gpu:
        import cupy as xp
        from cupyx.scipy.special import erf
    else:
        xp = np
        try:
            from scipy.special import erf
        except ModuleNotFoundError:
            raise SystemExit("examples/scf.py needs scipy: pip install scipy") from None
    return Calculation(compute_integrals(hydrogen_lattice(molecules), xp, erf), xp)


def main() -> None:
    """Run steps until the energy is constant, and print it after each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", type=int, default=8)
    parser.add_argument("--cupy", action="store_true", help="compute on the GPU")
    options = parser.parse_args()
    calculation = prepare_calculation(options.molecules, options.cupy)
    before, energy = 0.0, 1.0
    while abs(energy - before) > CONVERGED:
        start, before = time.perf_counter(), energy
        energy = calculation.step()
        print(
            f"{energy:.9f} hartree, {energy / options.molecules:.6f} per molecule, {time.perf_counter() - start:.3f} s"
        )


if __name__ == "__main__":
    main()
