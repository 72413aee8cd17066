"""Triton's interpreter, mended."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np


def mend_interpreter() -> None:
    """Add two features that the interpreter of Triton 3.6 lacks."""
    tl, interpreter = import_module("triton.language"), import_module("triton.runtime.interpreter")
    patch_tensor, create_dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch_index_too(tensor: object, scope: Any) -> None:
        """The interpreter's scalars are arrays of one element. NumPy 2.4 no longer accepts these as an index."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def dot_of_bfloat16(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        """The interpreter stores bfloat16 as bits. A product must not read these as integers."""
        return create_dot(builder, *(_as_float32(x, tl) for x in (a, b)), *rest)

    def _as_float32(x: Any, tl: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    interpreter._patch_lang_tensor = patch_index_too
    interpreter.InterpreterBuilder.create_dot = dot_of_bfloat16
