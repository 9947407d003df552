"""Each file here turns scores into a ranking and true propensities: `pick(scored, draw)`."""

__all__: list[str] = []
