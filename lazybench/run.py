"""`lazybench run`: Hydra composes the configuration, the runner carries it out."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig, OmegaConf

from lazybench import config as schema
from lazybench.conf import CONF
from lazybench.errors import LazyBenchError

schema.register()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def main(config: DictConfig) -> str:
    """Run one job; a sweep calls this once a job.

    Returns:
        the run's folder.
    """
    missing = OmegaConf.missing_keys(config)
    if missing:
        raise LazyBenchError(f"nothing is set for {', '.join(sorted(missing))}: give it as {sorted(missing)[0]}=VALUE")
    settings = OmegaConf.to_object(config)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    from lazybench.runner import run

    return str(run(settings))
