"""Each file here is one policy, named like it: `build() -> Objective`; optionally `why(views)`, `PICKER`, `FILTERS`."""

__all__: list[str] = []
