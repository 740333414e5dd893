"""Quantised blocks as llama.cpp lays them out, decoded one weight at a time in plain Python; and random blocks.

Written from the description of the formats, not from the `gguf` package.
"""

from __future__ import annotations

import struct

import numpy as np

BYTES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_0": 34}
WEIGHTS = {"Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "Q8_0": 32}
_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}  # where float16 numbers stand


def random_blocks(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """uint8 [..., bytes of a row] of a tensor of this shape, with scales that keep weights near 1."""
    blocks = (*shape[:-1], shape[-1] // WEIGHTS[kind], BYTES[kind])
    raw = rng.integers(0, 256, blocks, dtype=np.uint8)
    size = {"Q4_K": 1 / 900, "Q5_K": 1 / 1800, "Q6_K": 1 / 3000, "Q8_0": 1 / 128}[kind]
    for place in _SCALES[kind]:
        scale = (rng.uniform(0.5, 1.0, blocks[:-1]) * size).astype("<f2")
        raw[..., place : place + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def decoded(kind: str, raw: np.ndarray) -> np.ndarray:
    """float32 weights of such rows."""
    decode = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k, "Q8_0": _q8_0}[kind]
    blocks = raw.reshape(-1, BYTES[kind])
    weights = np.array([decode(bytes(block)) for block in blocks], np.float32)
    return weights.reshape(*raw.shape[:-1], -1)


def _half(block: bytes, place: int) -> np.float32:
    return np.float32(struct.unpack_from("<e", block, place)[0])


def _scale_and_minimum(packed: bytes, part: int) -> tuple[int, int]:
    """Of one of eight parts: six bits each; the first four parts have them in one byte, the others in two."""
    if part < 4:
        return packed[part] & 63, packed[part + 4] & 63
    low = packed[part + 4]
    return (low & 15) + 16 * (packed[part - 4] >> 6), (low >> 4) + 16 * (packed[part] >> 6)


def _parts(block: bytes, high: bytes | None, low: bytes) -> list[float]:
    """Eight parts of 32 weights: scale * q - minimum; the fifth bit of q, if there is one, stands in `high`."""
    scale, minimum, out = _half(block, 0), _half(block, 2), []
    for part in range(8):
        factor, offset = _scale_and_minimum(block[4:16], part)
        for i in range(32):
            byte = low[32 * (part // 2) + i]
            q = byte >> 4 if part % 2 else byte & 15
            if high is not None and high[i] >> part & 1:
                q += 16
            out.append(scale * np.float32(factor) * np.float32(q) - minimum * np.float32(offset))
    return out


def _q4_k(block: bytes) -> list[float]:
    return _parts(block, None, block[16:])


def _q5_k(block: bytes) -> list[float]:
    return _parts(block, block[16:48], block[48:])


def _q6_k(block: bytes) -> list[float]:
    """Two halves of 128 weights: four low bits in 64 bytes, two high bits in 32, a signed scale per 16 weights."""
    scales, scale, out = struct.unpack("16b", block[192:208]), _half(block, 208), []
    for half in range(2):
        low, high = block[64 * half : 64 * half + 64], block[128 + 32 * half : 160 + 32 * half]
        for quarter in range(4):
            for i in range(32):
                byte = low[i + 32 * (quarter % 2)]
                q = (byte >> 4 if quarter >= 2 else byte & 15) + 16 * (high[i] >> 2 * quarter & 3) - 32
                out.append(scale * np.float32(scales[8 * half + 2 * quarter + i // 16]) * np.float32(q))
    return out


def _q8_0(block: bytes) -> list[float]:
    scale = _half(block, 0)
    return [float(scale * np.float32(q)) for q in struct.unpack("32b", block[2:])]
