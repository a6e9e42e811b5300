"""cptkit: how to teach an English language model a new language without breaking what it could do.

Four rooms, imports go down only: ``study -> train -> eval -> data``.

- ``cptkit.data``: text to a stream of token batches (world, corpora, tokens, mixture).
- ``cptkit.eval``: what a model can do (perplexity, Copain, choices, drift).
- ``cptkit.train``: one run (spec, models, schedule, trainer, checkpoint).
- ``cptkit.study``: many runs (profiles, experiments, store, stats, ledger, figures, runner).
"""

__version__ = "0.1.0"
