"""The small transformer of the `icl` router, asked: numpy only. Profiles are read once, then any number of queries.

A profile's tokens attend to each other, the query's token to them and to itself; all share one set of weights.
"""

from collections.abc import Mapping

import numpy as np

Tensors = Mapping[str, np.ndarray]
HEADS = 4


def profiles(tensors: Tensors, x: np.ndarray, scores: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and values (A, K, H, w/H) of each profile at each layer: all that a query needs to know of it.

    `x` (A, K, D) are the features of the profiles' queries, `scores` (A, K) what the agent got; NaN: no such pair.
    """
    marks = np.nan_to_num(scores)[..., None]
    token = x @ tensors["project"] + tensors["shift"] + marks * tensors["right"] + (1 - marks) * tensors["wrong"]
    hidden = np.where(np.isnan(scores), -1e9, 0.0)[:, None, None, :]
    found = []
    for layer in range(depth(tensors)):
        asked, keys, values = attending(tensors, layer, token)
        found.append((keys, values))
        near = np.einsum("aqhd,akhd->ahqk", asked, keys) + hidden
        told = np.einsum("ahqk,akhd->aqhd", shares(near, keys.shape[-1]), values)
        token = grown(tensors, layer, token, told)
    return found


def answers(
    tensors: Tensors, x: np.ndarray, read: list[tuple[np.ndarray, np.ndarray]], scores: np.ndarray
) -> np.ndarray:
    """Logits (n, A) that each agent solves the queries of features (n, D), by the profiles that were read."""
    token = np.repeat((x @ tensors["project"] + tensors["shift"] + tensors["asked"])[:, None], len(scores), axis=1)
    hidden = np.where(np.isnan(scores), -1e9, 0.0)[None, :, None, :]
    for layer, (keys, values) in enumerate(read):
        asked, key, value = attending(tensors, layer, token)
        near = np.einsum("nahd,akhd->nahk", asked, keys) + hidden
        own = (asked * key).sum(axis=-1, keepdims=True)
        share = shares(np.concatenate([near, own], axis=-1), key.shape[-1])
        told = np.einsum("nahk,akhd->nahd", share[..., :-1], values) + share[..., -1:] * value
        token = grown(tensors, layer, token, told)
    return np.asarray(normal(token) @ tensors["out"] + tensors["level"])


def grown(tensors: Tensors, layer: int, token: np.ndarray, told: np.ndarray) -> np.ndarray:
    """Tokens (..., w) after what they attended to (..., H, w/H) and after the layer's two-layer network."""
    token = token + told.reshape(token.shape) @ tensors[f"join{layer}"]
    inner = np.maximum(normal(token) @ tensors[f"widen{layer}"] + tensors[f"bend{layer}"], 0)
    return np.asarray(token + inner @ tensors[f"narrow{layer}"])


def shares(near: np.ndarray, width: int) -> np.ndarray:
    """Softmax of products scaled by the root of their width."""
    near = near / np.sqrt(width)
    powers = np.exp(near - near.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def normal(token: np.ndarray) -> np.ndarray:
    """Tokens (..., w) of mean 0 and variance 1."""
    centred = token - token.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5))


def attending(tensors: Tensors, layer: int, token: np.ndarray) -> list[np.ndarray]:
    """What tokens (..., w) ask for, answer to and tell, each (..., H, w/H)."""
    parts = np.split(normal(token) @ tensors[f"attend{layer}"], 3, axis=-1)
    return [part.reshape(*part.shape[:-1], HEADS, -1) for part in parts]


def depth(tensors: Tensors) -> int:
    """Layers of the transformer."""
    return sum(name.startswith("attend") for name in tensors)
