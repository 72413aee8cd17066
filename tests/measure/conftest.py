from __future__ import annotations

import sys
from pathlib import Path

# Tests are imported by file; what several of them share is found beside them.
sys.path.insert(0, str(Path(__file__).parent))
