"""Runs the server of the package xllamacpp with the options of llama-server. Its environment has no other package."""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "alias", "host", "cache-type-k", "cache-type-v", "flash-attn", "fit"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "parallel", "ctx-size", "threads", "threads-batch", "cache-ram"):
        parser.add_argument(f"--{name}", required=True, type=int)
    for name in ("no-kv-unified", "slots", "no-ui", "offline"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    options = xllamacpp.CommonParams()
    options.model.path = given.model
    options.model_alias = {given.alias}
    options.hostnames = [given.host]
    options.port = given.port
    options.n_parallel = given.parallel
    options.n_ctx = given.ctx_size
    options.cpuparams.n_threads = given.threads
    options.cpuparams_batch.n_threads = given.threads_batch
    options.cache_type_k = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{given.cache_type_k.upper()}")
    options.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{given.cache_type_v.upper()}")
    attention = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[given.flash_attn]
    options.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{attention}")
    options.cache_ram_mib = given.cache_ram
    options.fit_params = given.fit == "on"
    options.kv_unified = not given.no_kv_unified
    options.endpoint_slots = given.slots
    options.ui = not given.no_ui
    options.offline = given.offline
    server = xllamacpp.Server(options)  # runs while this object lives
    print(server.listening_address, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
