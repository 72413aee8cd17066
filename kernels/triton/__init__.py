"""GPU kernels in Triton. On a CPU they run in Triton's interpreter (TRITON_INTERPRET=1): to be tested, not timed."""
