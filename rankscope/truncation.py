"""Truncation of attention matrices: P_low of every rank, and its error, from one decomposition.

Keeping the k largest singular values of P gives P_low, the best rank-k matrix in the Frobenius,
spectral and nuclear norms. Its error in each of them, and in the output P·V, is a sum over the
singular values that were left out, so that one decomposition gives the curves of every k.

The decomposition is that of PᵀP, which costs half an SVD and squares the condition. What lies
below 1e-5·σ₁ is therefore taken out and decomposed by itself, where it is no longer small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rankscope.exceptions import UsageError
from rankscope.status import Status

DEFLATION = 1e-5
"""Singular values below this, relative to the first, are decomposed again by themselves."""

_MERGED = 1e-7
"""Relative to the first: below it, squares in float64 cannot tell singular values from rounding."""


Solved = tuple[torch.Tensor, torch.Tensor, Status]


@dataclass(frozen=True)
class Decomposition:
    """Singular values and right singular vectors of a batch of matrices, P = U Σ Vᵀ.

    The left vectors are left out: P_k = P V_k V_kᵀ needs none.

    Attributes
    ----------
    matrix : (*batch, n, m) float64
        The matrices themselves.
    singular_values : (*batch, r) float64
        In descending order, r = min(n, m); NaN where `status` says that there are none.
    right : (*batch, m, r) float64
        Right singular vectors as columns.
    status : (*batch) int8
        A :class:`~rankscope.status.Status` for every matrix.
    """

    matrix: torch.Tensor
    singular_values: torch.Tensor
    right: torch.Tensor
    status: torch.Tensor

    def truncate(self, k: int | torch.Tensor) -> torch.Tensor:
        """P_low, the k leading terms Σ_{i≤k} σ_i u_i v_iᵀ.

        Parameters
        ----------
        k : int or (*batch) int64 tensor
            Rank, at least 1; P itself from min(n, m) on.

        Returns
        -------
        (*batch, n, m) float64

        References
        ----------
        Wang et al. 2020, arXiv:2006.04768, equation 6.

        Examples
        --------
        >>> decompose(torch.diag(torch.tensor([2.0, 1.0]))).truncate(1)
        tensor([[2., 0.],
                [0., 0.]], dtype=torch.float64)
        """
        kept = self.leading(k)
        return (self.matrix @ kept) @ kept.mT

    def output(self, k: int | torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """P_low·V without P_low: (P V_k)(V_kᵀ V), in n·k·(m + d) multiply-adds.

        Parameters
        ----------
        k : int or (*batch) int64 tensor
        value : (*batch, m, d) tensor

        Returns
        -------
        (*batch, n, d) float64
        """
        kept = self.leading(k)
        return (self.matrix @ kept) @ (kept.mT @ value.to(torch.float64))

    def leading(self, k: int | torch.Tensor) -> torch.Tensor:
        """The k leading right singular vectors as columns.

        Parameters
        ----------
        k : int or (*batch) int64 tensor
            With a rank for every matrix, columns beyond its own are zero.

        Returns
        -------
        (*batch, m, k) float64, or (*batch, m, r) with a tensor of ranks

        Raises
        ------
        UsageError
            For a rank below 1.
        """
        rank = self.right.shape[-1]
        if isinstance(k, int):
            if k < 1:
                raise UsageError(f"a matrix of rank {k} holds nothing", "use a rank of 1 or more")
            return self.right[..., : min(k, rank)]
        if bool((k < 1).any()):
            raise UsageError("a rank below 1 holds nothing", "use ranks of 1 or more")
        place = torch.arange(rank, device=self.right.device)
        return self.right * (place < k[..., None])[..., None, :]


@dataclass(frozen=True)
class Curves:
    """Error of P_low for every rank k = 1 … r, relative to the whole.

    Attributes
    ----------
    frobenius, spectral, nuclear : (*batch, r) float64, in [0, 1]
        ‖P − P_k‖ / ‖P‖ in the norm of that name.
    output : (*batch, r) float64, or None without values
        ‖(P − P_k)V‖_F / ‖PV‖_F; not bounded by 1, since ‖PV‖ may be small against ‖P‖‖V‖.
    output_bound : (*batch, r) float64, or None
        The best that any rank-k output can do: ‖PV − (PV)_k‖_F / ‖PV‖_F.
    output_norm : (*batch) float64, or None
        ‖PV‖_F, in the units of the values: turns relative errors into absolute ones.
    mean_row : (*batch) float64
        ‖P − 1p̄ᵀ‖_F / ‖P‖_F with the mean row p̄: what the simplest rank-one matrix leaves.
    mean_row_output : (*batch) float64, or None
        The same for the output.
    """

    frobenius: torch.Tensor
    spectral: torch.Tensor
    nuclear: torch.Tensor
    output: torch.Tensor | None
    output_bound: torch.Tensor | None
    output_norm: torch.Tensor | None
    mean_row: torch.Tensor
    mean_row_output: torch.Tensor | None


def decompose(matrices: torch.Tensor) -> Decomposition:
    """Decompose matrices once, for every rank.

    Parameters
    ----------
    matrices : (*batch, n, m) real tensor, on any device

    Returns
    -------
    Decomposition
        In float64 on the same device. Singular values are exact to about 1e-12·σ₁, ten thousand
        times closer than plain PᵀP gives them. A matrix that is not finite, or whose solvers all
        fail, has a status and NaN; it never reaches a solver, nor its neighbours.

    Raises
    ------
    UsageError
        For fewer than two dimensions, complex numbers or empty matrices.

    References
    ----------
    Eckart & Young 1936; the deflation is derived in the module's tests.

    Examples
    --------
    >>> decompose(torch.diag(torch.tensor([4.0, 3.0]))).singular_values
    tensor([4., 3.], dtype=torch.float64)
    """
    if matrices.ndim < 2 or matrices.is_complex() or 0 in matrices.shape[-2:]:
        raise UsageError(
            f"a decomposition needs real matrices of shape (*batch, n, m), not "
            f"{tuple(matrices.shape)} of {matrices.dtype}"
        )
    *lead, n, m = matrices.shape
    matrix = matrices.detach().to(torch.float64)
    flat = matrix.reshape(-1, n, m)
    rank = min(n, m)
    largest = flat.abs().amax(dim=(1, 2)).tolist() if len(flat) else []
    found = [_nothing(flat, _before(scale)) for scale in largest]
    good = [i for i, one in enumerate(found) if one[2] is Status.ok]
    if good:
        # scaled to entries of at most 1, so that squares can neither overflow nor vanish
        scale = flat.new_tensor([largest[i] for i in good])
        whole = flat if len(good) == len(flat) else flat[good]
        solved = _solve(whole / scale[:, None, None])
        for i, factor, (values, vectors, code) in zip(good, scale, solved, strict=True):
            found[i] = values * factor, vectors, code
    if not found:
        empty = flat.new_zeros(0, m, rank)
        found_values, right = empty[:, 0], empty
    elif len(found) == 1:
        found_values, right = found[0][0][None], found[0][1][None]
    else:
        found_values = torch.stack([one[0] for one in found])
        right = torch.stack([one[1] for one in found])
    codes = torch.tensor([int(one[2]) for one in found], dtype=torch.int8, device=flat.device)
    return Decomposition(
        matrix,
        found_values.reshape(*lead, rank),
        right.reshape(*lead, m, rank),
        codes.reshape(lead),
    )


def error_curves(decomposition: Decomposition, value: torch.Tensor | None = None) -> Curves:
    """Relative errors of P_low for every k, in closed form.

    ‖P − P_k‖_F² = Σ_{i>k} σ_i²,  ‖P − P_k‖₂ = σ_{k+1},  ‖P − P_k‖_* = Σ_{i>k} σ_i, and for the
    output, because the u_i are orthonormal, ‖(P − P_k)V‖_F² = Σ_{i>k} σ_i² ‖v_iᵀV‖².

    Parameters
    ----------
    decomposition : Decomposition
    value : (*batch, m, d) tensor, optional
        V; without it there are no output errors.

    Returns
    -------
    Curves
        NaN for a matrix without a decomposition, and for an error relative to zero.

    Examples
    --------
    >>> curves = error_curves(decompose(torch.diag(torch.tensor([4.0, 3.0]))))
    >>> [round(float(error), 3) for error in curves.frobenius]
    [0.6, 0.0]
    """
    # relative to the first singular value, so that squares can neither overflow nor vanish
    scale = decomposition.singular_values[..., :1]
    sigma = _ratio(decomposition.singular_values, scale)
    matrix = _ratio(decomposition.matrix, scale[..., None])
    squares = sigma.square()
    rows = matrix.mean(dim=-2, keepdim=True)
    total = squares.sum(dim=-1).sqrt()
    output = bound = norm = mean_row_output = None
    if value is not None:
        value = value.to(torch.float64)
        along = (decomposition.right.mT @ value).square().sum(dim=-1)
        product = matrix @ value
        length = torch.linalg.matrix_norm(product)
        output = _ratio(_tail(squares * along).sqrt(), length[..., None])
        bound = _output_bound(product, sigma)
        mean_row_output = _ratio(torch.linalg.matrix_norm(product - rows @ value), length)
        norm = length * scale[..., 0]
    spectral = torch.cat([sigma[..., 1:], torch.zeros_like(sigma[..., :1])], dim=-1)
    return Curves(
        frobenius=_ratio(_tail(squares).sqrt(), total[..., None]),
        spectral=_ratio(spectral + 0 * sigma, sigma[..., :1]),
        nuclear=_ratio(_tail(sigma), sigma.sum(dim=-1, keepdim=True)),
        output=output,
        output_bound=bound,
        output_norm=norm,
        mean_row=_ratio(torch.linalg.matrix_norm(matrix - rows), total),
        mean_row_output=mean_row_output,
    )


def clip_and_renormalise(matrix: torch.Tensor) -> torch.Tensor:
    """Rows made distributions again: negative entries set to 0, then every row divided by its sum.

    Parameters
    ----------
    matrix : (*batch, n, m) tensor
        Such as P_low, whose entries may be negative and whose rows need not sum to 1.

    Returns
    -------
    (*batch, n, m) tensor
        Of rank up to min(n, m) again: what is cheap about P_low is lost. A row without a positive
        entry becomes NaN.

    Examples
    --------
    >>> clip_and_renormalise(torch.tensor([[0.5, -0.25, 1.5]]))
    tensor([[0.2500, 0.0000, 0.7500]])
    """
    clipped = matrix.clamp_min(0.0)
    return clipped / clipped.sum(dim=-1, keepdim=True)


def _before(scale: float) -> Status:
    """What is known of a matrix from its largest entry alone."""
    if scale == 0.0:
        return Status.zero
    return Status.ok if scale < float("inf") else Status.non_finite


def _nothing(flat: torch.Tensor, code: Status) -> Solved:
    """What is known before anything is solved: of the zero matrix everything, of others NaN."""
    m, rank = flat.shape[2], min(flat.shape[1:])
    if code is Status.zero:
        return flat.new_zeros(rank), torch.eye(m, rank, dtype=flat.dtype, device=flat.device), code
    nothing = flat.new_tensor(torch.nan)
    return nothing.expand(rank), nothing.expand(m, rank), code


def _solve(batch: torch.Tensor) -> list[Solved]:
    """Values, vectors and status of matrices that are finite and not zero."""
    rank = min(batch.shape[-2:])
    try:
        squares, vectors = torch.linalg.eigh(batch.mT @ batch)
        squares, vectors = squares.flip(-1)[:, :rank], vectors.flip(-1)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return [_svd(matrix) for matrix in batch]
    return [
        (*_deflate(matrix, square, vector), Status.ok)
        if bool(torch.isfinite(square).all())
        else _svd(matrix)
        for matrix, square, vector in zip(batch, squares, vectors, strict=True)
    ]


def _deflate(
    matrix: torch.Tensor, squares: torch.Tensor, vectors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Singular values and vectors, the small ones from the part of the matrix that holds them.

    PV_t, with V_t the vectors of squares below DEFLATION²·σ₁², has norm DEFLATION·σ₁ only, so that
    the rounding of its square is DEFLATION² times that of the whole matrix' square.
    """
    rank = len(squares)
    sigma = squares.clamp_min(0.0).sqrt()
    large = int((sigma > DEFLATION * sigma[0]).sum())
    if large == vectors.shape[1] or (
        large == rank and float(sigma[-1]) > _MERGED * float(sigma[0])
    ):
        return sigma, vectors[:, :rank]
    tail = vectors[:, large:]
    part = matrix @ tail
    small, turn = torch.linalg.eigh(part.mT @ part)
    keep = rank - large
    small, turn = small.flip(-1)[:keep], turn.flip(-1)[:, :keep]
    # a value of the tail cannot pass the smallest of the rest but for rounding
    sigma = torch.cat([sigma[:large], small.clamp_min(0.0).sqrt().clamp_max(sigma[large - 1])])
    return sigma, torch.cat([vectors[:, :large], tail @ turn], dim=1)


def _svd(matrix: torch.Tensor) -> Solved:
    """LAPACK's SVD with vectors: divide and conquer, then QR iteration."""
    import numpy as np
    import scipy.linalg

    for driver in ("gesdd", "gesvd"):
        try:
            _, sigma, vh = scipy.linalg.svd(
                matrix.cpu().numpy(), full_matrices=False, lapack_driver=driver, check_finite=False
            )
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(sigma).all():
            found = torch.from_numpy(sigma), torch.from_numpy(vh.T.copy())
            return found[0].to(matrix.device), found[1].to(matrix.device), Status.fallback
    rank = min(matrix.shape)
    nothing = matrix.new_full((matrix.shape[1], rank), torch.nan)
    return nothing[0], nothing, Status.failed


def _tail(terms: torch.Tensor) -> torch.Tensor:
    """Σ_{i>k} of the terms, for k = 1 … r, summed from the small end."""
    sums = terms.flip(-1).cumsum(dim=-1).flip(-1)
    return torch.cat([sums[..., 1:], 0 * sums[..., :1]], dim=-1)


def _output_bound(product: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Relative error of the best rank-k output for the same k = 1 … r; 0 from its own rank on."""
    bound = torch.zeros_like(like)
    good = torch.isfinite(product).all(dim=-1).all(dim=-1)
    if bool(good.any()):
        tau = torch.linalg.svdvals(product[good]).square()
        curve = _ratio(_tail(tau).sqrt(), tau.sum(dim=-1, keepdim=True).sqrt())
        width = min(curve.shape[-1], like.shape[-1])
        rows = torch.zeros_like(bound[good])
        rows[..., :width] = curve[..., :width]
        bound[good] = rows
    bound[~good | (product == 0).flatten(-2).all(dim=-1)] = torch.nan
    return bound


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole; NaN where the whole is zero."""
    return part / torch.where(whole > 0, whole, torch.nan)
