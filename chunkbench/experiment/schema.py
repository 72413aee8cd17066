"""JSON schema of an experiment file, for editors."""

from __future__ import annotations

from typing import Any

from chunkbench.experiment.axes import TREE_SCHEMA, axes_schema
from chunkbench.experiment.model import Experiment
from chunkbench.experiment.names import known_implementations


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12). It knows keys, types and names; what has to fit together only `validate` knows."""
    schema = Experiment.model_json_schema(by_alias=True)
    for hidden in ("source", "path"):
        del schema["properties"][hidden]
    # A file without a name takes its own.
    schema["required"].remove("name")
    schema["properties"]["tolerance"]["propertyNames"] = {"enum": ["float32", "float16", "bfloat16"]}
    schema["$defs"] |= {
        "axes": axes_schema(),
        "tree": TREE_SCHEMA,
        # Names of third parties are valid too; the listed ones are for completion.
        "implementation": {"anyOf": [{"enum": list(known_implementations())}, {"type": "string"}]},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "ChunkBench experiment"}
