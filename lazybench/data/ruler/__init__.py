"""RULER-6, generated: six of RULER's thirteen tasks, those that need no download.

The tasks are those of Hsieh et al. 2024 (arXiv 2404.06654), written anew after github.com/NVIDIA/RULER (Apache-2.0).
Its prompts stand in `conf/data/ruler.yaml`. The records are not RULER's own: they are drawn by another generator.
"""

from lazybench.data.ruler.records import depth_of, read

__all__ = ["depth_of", "read"]
