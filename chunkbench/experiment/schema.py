"""JSON schema of an experiment file, for editors."""

from __future__ import annotations

from typing import Any

from chunkbench.experiment.axes import TREE_SCHEMA, axes_schema
from chunkbench.experiment.fields import DEFINED
from chunkbench.experiment.model import Experiment
from chunkbench.experiment.names import MODULES, known_implementations


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12). It knows keys, types and names; what has to fit together only `validate` knows."""
    schema = _linked(Experiment.model_json_schema(by_alias=True))
    for hidden in ("source", "path"):
        del schema["properties"][hidden]
    # A file without a name takes its own.
    schema["required"].remove("name")
    schema["required"].remove("implementations")
    schema |= {
        "if": {"properties": {"kind": {"const": "modules"}}, "required": ["kind"]},
        "else": {"required": ["implementations"]},
    }
    schema["properties"]["sweep"]["minItems"] = 1
    schema["properties"]["tolerance"]["propertyNames"] = {"enum": ["float32", "float16", "bfloat16"]}
    schema["$defs"] |= {
        "axes": axes_schema(),
        "tree": TREE_SCHEMA,
        # Names of third parties are valid too; the listed ones are for completion.
        "implementation": {"anyOf": [{"enum": [*known_implementations(), *MODULES]}, {"type": "string"}]},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "ChunkBench experiment"}


def _linked(schema: Any) -> Any:
    """The schema with references in place of the marks that stand for them."""
    if isinstance(schema, list):
        return [_linked(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    linked = {key: _linked(part) for key, part in schema.items() if key != DEFINED}
    return linked | {"$ref": f"#/$defs/{schema[DEFINED]}"} if DEFINED in schema else linked
