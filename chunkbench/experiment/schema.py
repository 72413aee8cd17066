"""JSON schema of an experiment file, for editors."""

from __future__ import annotations

from typing import Any, get_args

from chunkbench import kinds
from chunkbench.experiment.axes import axes_schema
from chunkbench.experiment.fields import DEFINED
from chunkbench.experiment.implementations import known_implementations
from chunkbench.experiment.reading import reading
from chunkbench.experiment.terms import Dtype
from chunkbench.experiment.values import TREE_SCHEMA


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12). It knows keys, types and names; what has to fit together only `validate` knows."""
    readings = {kind: reading(kind) for kind in kinds.names()}
    schema: dict[str, Any] = {}
    for how in readings.values():
        part = _linked(how.experiment.model_json_schema(by_alias=True))
        schema = {**part, **schema, **{key: part[key] | schema.get(key, {}) for key in ("properties", "$defs")}}
    for hidden in ("source", "path"):
        del schema["properties"][hidden]
    schema["description"] = "One experiment. Keys that only some kinds of work have are listed here for all of them."
    schema["properties"]["kind"] |= {
        "default": kinds.names()[0],
        "description": "; ".join(how.summary for how in readings.values()),
        "enum": list(readings),
    }
    # A file without a name takes its own.
    schema["required"].remove("name")
    schema["required"].remove("implementations")
    known = [kind for kind, how in readings.items() if "implementations" in how.defaults]
    schema |= {
        "if": {"properties": {"kind": {"enum": known}}, "required": ["kind"]},
        "else": {"required": ["implementations"]},
    }
    schema["properties"]["sweep"]["minItems"] = 1
    schema["properties"]["tolerance"]["propertyNames"] = {"enum": list(get_args(Dtype))}
    schema["$defs"] |= {
        "axes": axes_schema(),
        "tree": TREE_SCHEMA,
        # Names of third parties are valid too; the listed ones are for completion.
        "implementation": {"anyOf": [{"enum": list(known_implementations())}, {"type": "string"}]},
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
