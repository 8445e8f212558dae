import sys
from pathlib import Path

# Renderers of outputs stand beside the tests that use them; they are no package.
sys.path.insert(0, str(Path(__file__).parents[2] / "shapes"))
