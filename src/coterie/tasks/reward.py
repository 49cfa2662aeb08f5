"""Shaping of rewards that no verifier sees. Verdicts and accuracy never use it."""


def length_penalty(length: int, limit: int, *, gamma: float = 0.8, eta: float = 1.0) -> float:
    """What an overlong completion of `length` tokens loses: R = r_base - length_penalty(...).

    Zero up to `gamma * limit`, then linear, `eta` from `limit` on (CERA-MoA Eq. 12/28; its text leaves
    gamma and eta open, the defaults are DAPO's). Raises ValueError for a limit or gamma outside its range.
    """
    if limit <= 0:
        raise ValueError(f"limit must be positive, not {limit}")
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"gamma must be in [0, 1), not {gamma}")
    over = (length - gamma * limit) / ((1.0 - gamma) * limit)
    return eta * min(max(over, 0.0), 1.0)
