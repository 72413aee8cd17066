"""JSON schema of an experiment file, for editors."""

from __future__ import annotations

from typing import Any, get_args

from chunkbench.bench import workload
from chunkbench.bench.experiment.axes import axes_schema
from chunkbench.bench.experiment.fields import DEFINED, DURATION
from chunkbench.bench.experiment.spec import yaml_keys
from chunkbench.bench.experiment.terms import Dtype
from chunkbench.bench.experiment.tree_reader import TREE_SCHEMA


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of keys, types and names. Only loading a file checks the rules between keys."""
    schema: dict[str, Any] = {}
    keys: dict[str, dict[str, Any]] = {}
    for kind in workload.all_kinds():
        part = _linked(kind.experiment.model_json_schema(by_alias=True))
        schema = {**part, **schema, "$defs": part.get("$defs", {}) | schema.get("$defs", {})}
        for key in yaml_keys(kind.experiment):
            keys.setdefault(key, {})[kind.name] = part["properties"][key]
    schema["properties"] = {key: _of_kinds(having) for key, having in keys.items()}
    schema["description"] = "One experiment. `[kinds]`: only these kinds of work have the key."
    schema["properties"]["kind"] |= {
        "default": workload.default(),
        "description": "; ".join(f"{kind.name}: {kind.summary}" for kind in workload.all_kinds()),
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


def _of_kinds(having: dict[str, Any]) -> dict[str, Any]:
    """The schema of a key that these kinds of work have. Its description names the kinds, and defaults that differ
    between kinds."""
    schema = dict(next(iter(having.values())))
    words = schema.get("description", "")
    if len(having) < len(workload.names()):
        words = f"[{', '.join(having)}] {words}"
    if "default" in schema and any(other["default"] != schema["default"] for other in having.values()):
        usual = schema.pop("default")
        others = [f"{other['default']} ({kind})" for kind, other in having.items() if other["default"] != usual]
        words += f"; default: {', '.join([str(usual), *others])}"
    return schema | {"description": words}


def _linked(schema: Any) -> Any:
    """The schema with `$ref` in place of `DEFINED`, and durations as files write them."""
    if isinstance(schema, list):
        return [_linked(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    linked = {key: _linked(part) for key, part in schema.items() if key != DEFINED}
    if linked.get("pattern") == DURATION and "default" in linked:
        linked["default"] = f"{linked['default']:g}s"
    return linked | {"$ref": f"#/$defs/{schema[DEFINED]}"} if DEFINED in schema else linked
