"""GPUs: names, peak figures, prices; and their devices, made by XLA's GPU compiler alone, which needs no GPU.

Peak figures are dense bfloat16 products with float32 sums (never "with sparsity"), bandwidth of the memory, and NVLink in
one direction or PCIe x16 (GeForce cards send through the host: half of it). Each chip names the document of NVIDIA's that
has them (`SHEETS`); they were compared with public copies and tables of these in the month of `LOOKED_UP`. The size of the
memory is what drivers report. What a multiprocessor has is from the table "Technical Specifications per Compute Capability"
of the CUDA C++ Programming Guide. A program may use USABLE of the memory, if JAX is told so
(`XLA_PYTHON_CLIENT_MEM_FRACTION`; left alone it takes 75 %). Prices are of 2025, typical of clouds that rent single GPUs on
demand; between clouds they differ several times over, so treat them as an assumption, and --price overrides them. The
shares of the peak, 65 and 25 %, are assumptions too: nothing here was measured. Training is published below and above the
upper one: 38 to 43 % on H100 (Llama 3 405B, arXiv 2407.21783, Table 4), 72 % on A100 (FlashAttention-2, arXiv 2307.08691).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple

from jax.experimental import topologies

from jaxsink.errors import JaxsinkError, install_hint
from jaxsink.extras import is_installed
from jaxsink.planner.topology import GIB, Chip, Topology

USABLE = 0.95
MOST = 8  # GPUs of one host
VARIABLES = {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "CUDA_VISIBLE_DEVICES": "-1"}  # a GPU that is there stays free


class Multiprocessor(NamedTuple):
    """What each has, by compute capability. shared: bytes of shared memory, and of it the most that one program may take."""

    threads: int
    units: int
    shared: int
    shared_of_block: int


MULTIPROCESSORS = {
    "8.0": Multiprocessor(2048, 64, 164 << 10, 163 << 10),
    "8.6": Multiprocessor(1536, 128, 100 << 10, 99 << 10),
    "8.9": Multiprocessor(1536, 128, 100 << 10, 99 << 10),
    "9.0": Multiprocessor(2048, 128, 228 << 10, 227 << 10),
    "10.0": Multiprocessor(2048, 128, 228 << 10, 227 << 10),
    "12.0": Multiprocessor(1536, 128, 100 << 10, 99 << 10),
}
REGISTERS = 65536  # of a multiprocessor; a thread may have 255
LOOKED_UP = "November 2026"
SHEETS = {
    "blackwell": "NVIDIA Blackwell Architecture Technical Brief",
    "h200": "NVIDIA H200 Tensor Core GPU Datasheet",
    "hopper": "NVIDIA H100 Tensor Core GPU Architecture",
    "a100": "NVIDIA A100 Tensor Core GPU Datasheet",
    "l40s": "NVIDIA L40S Datasheet",
    "l4": "NVIDIA L4 Tensor Core GPU Datasheet",
    "ga102": "NVIDIA Ampere GA102 GPU Architecture V2.0",
    "ada": "NVIDIA Ada GPU Architecture V2.01",
    "rtx blackwell": "NVIDIA RTX Blackwell GPU Architecture",
}


@dataclass(frozen=True, kw_only=True)
class GPU(Chip):
    """device: what the driver calls it. link: bytes/s that one can send to the others. clock: GHz. cache: bytes of L2.
    sheet: NVIDIA's document with the peak figures."""

    accelerator: ClassVar[str] = "gpu"
    source: ClassVar[str] = "roofline_estimate"
    compiler_options: ClassVar[dict[str, str | bool]] = {"xla_gpu_autotune_level": "0"}  # which runs kernels

    device: str
    capability: str
    cores: int
    memory: int
    cache: int
    clock: float
    link: float
    sheet: str
    shares: tuple[float, float] = (0.65, 0.25)

    def sends(self, devices: int, to_one: bool) -> float:
        return self.link

    def describe(self, topology: Topology) -> list[Any]:
        if not has_compiler():
            raise JaxsinkError(
                f"planning needs the GPU compiler (but no GPU), which is not installed; {install_hint('cuda')}."
            )
        for variable, value in VARIABLES.items():
            os.environ.setdefault(variable, value)
        try:
            described = topologies.get_topology_desc(
                platform="cuda", target_config=self.target(), topology=f"1x1x{topology.chips}"
            )
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise JaxsinkError(f"{topology.name}: the GPU compiler does not take this chip ({reason}).") from error
        return list(described.devices)

    def target(self) -> str:
        """The chip as the compiler wants it described, a protobuf in text."""
        has = MULTIPROCESSORS[self.capability]
        major, minor = self.capability.split(".")
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {has.threads}
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {has.shared_of_block} shared_memory_per_core: {has.shared}
  registers_per_core_limit: {REGISTERS} registers_per_block_limit: {REGISTERS}
  core_count: {self.cores} fpus_per_core: {has.units} clock_rate_ghz: {self.clock}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  device_memory_size: {self.memory} memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.cache}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 7 }} runtime_version {{ major: 13 minor: 0 }}
device_description_str: "{self.device}"
"""


def gpu(
    name: str, device: str, capability: str, cores: int, flops: float, bandwidth: float, memory: float, link: float,
    cache: int, clock: float, price: float, sheet: str,
) -> GPU:  # fmt: skip
    """In TFLOP/s, GB/s, GiB, GB/s, MiB, GHz and dollars; sheet: of `SHEETS`."""
    size = int(memory * GIB)
    return GPU(
        name=name, device=device, capability=capability, cores=cores, flops=flops * 1e12, bandwidth=bandwidth * 1e9,
        memory=size, hbm=float(int(USABLE * size)), link=link * 1e9, hop=3e-6 if link > 100 else 1e-5, cache=cache << 20,
        clock=clock, price=price, sheet=SHEETS[sheet],
    )  # fmt: skip


CHIPS = {
    chip.name: chip
    for chip in (
        gpu("b200", "NVIDIA B200", "10.0", 148, 2250, 8000, 179, 900, 126, 1.97, 4.99, "blackwell"),
        gpu("h200", "NVIDIA H200", "9.0", 132, 989.4, 4800, 140, 450, 50, 1.98, 3.59, "h200"),
        gpu("h100", "NVIDIA H100 80GB HBM3", "9.0", 132, 989.4, 3352, 79.1, 450, 50, 1.98, 2.99, "hopper"),
        gpu("a100-80g", "NVIDIA A100-SXM4-80GB", "8.0", 108, 312, 2039, 79.1, 300, 40, 1.41, 1.79, "a100"),
        gpu("a100-40g", "NVIDIA A100-SXM4-40GB", "8.0", 108, 312, 1555, 39.4, 300, 40, 1.41, 1.29, "a100"),
        gpu("l40s", "NVIDIA L40S", "8.9", 142, 362, 864, 44.5, 32, 96, 2.52, 0.86, "l40s"),
        gpu("a6000", "NVIDIA RTX A6000", "8.6", 84, 154.8, 768, 47.5, 32, 6, 1.8, 0.80, "ga102"),
        gpu("l4", "NVIDIA L4", "8.9", 58, 121, 300, 22.5, 32, 48, 2.04, 0.71, "l4"),
        gpu("rtx5090", "NVIDIA GeForce RTX 5090", "12.0", 170, 209.5, 1792, 31.4, 32, 96, 2.41, 0.89, "rtx blackwell"),
        gpu("rtx4090", "NVIDIA GeForce RTX 4090", "8.9", 128, 165.2, 1008, 23.6, 16, 72, 2.52, 0.69, "ada"),
        gpu("rtx3090", "NVIDIA GeForce RTX 3090", "8.6", 82, 71, 936, 23.6, 16, 6, 1.7, 0.43, "ga102"),
    )
}


def parse_gpus(name: str) -> Topology:
    """`h100` or `h100:8`, or one sentence about what is wrong with it."""
    found = re.fullmatch(r"([\w-]+)(?::(\d+))?", name)
    kind = found[1].lower() if found is not None else name.split(":")[0]
    if found is None or kind not in CHIPS:
        near = [known for known in CHIPS if kind and kind in known] or get_close_matches(kind, CHIPS, 2, 0.6)
        hint = f"did you mean {' or '.join(near)}" if near else f"there are {', '.join(CHIPS)}"
        raise JaxsinkError(f"{name!r} is not a GPU we know, such as h100 or h100:8; {hint}.")
    count = int(found[2] or 1)
    if not 1 <= count <= MOST:
        raise JaxsinkError(f"{name!r}: GPUs are planned on one host, 1 to {MOST} of them, such as {kind}:{MOST}.")
    return Topology(f"{kind}:{count}" if count > 1 else kind, CHIPS[kind], count)


def has_compiler() -> bool:
    return is_installed("cuda")
