"""JSON schema of an experiment file, for editors."""

from __future__ import annotations

from typing import Any, get_args

from chunkbench.bench import workload
from chunkbench.bench.experiment.axes import axes_schema
from chunkbench.bench.experiment.fields import DEFINED
from chunkbench.bench.experiment.terms import Dtype
from chunkbench.bench.experiment.tree_reader import TREE_SCHEMA


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of keys, types and names. Only loading a file checks the rules between keys."""
    schema: dict[str, Any] = {}
    for kind in workload.all_kinds():
        part = _linked(kind.experiment.model_json_schema(by_alias=True))
        both = {key: part.get(key, {}) | schema.get(key, {}) for key in ("properties", "$defs")}
        schema = {**part, **schema, **both}
    for hidden in ("source", "path"):
        del schema["properties"][hidden]
    schema["description"] = "One experiment. Keys that only some kinds of work have are listed here for all of them."
    schema["properties"]["kind"] |= {
        "default": workload.default(),
        "description": "; ".join(kind.summary for kind in workload.all_kinds()),
        "enum": list(workload.names()),
    }
    # An experiment without a name takes the name of its file.
    schema["required"] = ["sweep"]
    optional = [
        kind.name for kind in workload.all_kinds() if not kind.experiment.model_fields["implementations"].is_required()
    ]
    schema |= {
        "if": {"properties": {"kind": {"enum": optional}}, "required": ["kind"]},
        "else": {"required": ["implementations"]},
    }
    schema["properties"]["sweep"]["minItems"] = 1
    schema["properties"]["tolerance"]["propertyNames"] = {"enum": list(get_args(Dtype))}
    schema["$defs"] |= {
        "axes": axes_schema(),
        "tree": TREE_SCHEMA,
        # Names of third-party implementations are valid too; editors complete the listed ones.
        "implementation": {"anyOf": [{"enum": list(workload.implementations())}, {"type": "string"}]},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "ChunkBench experiment"}


def _linked(schema: Any) -> Any:
    """The schema with `$ref` in place of `DEFINED`."""
    if isinstance(schema, list):
        return [_linked(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    linked = {key: _linked(part) for key, part in schema.items() if key != DEFINED}
    return linked | {"$ref": f"#/$defs/{schema[DEFINED]}"} if DEFINED in schema else linked
