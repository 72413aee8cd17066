"""The systems that are measured: one file each. Others register theirs under the entry point `chunkbench.systems`."""
