"""Each file here is one policy, named like it: `build() -> Objective`, optionally `PICKER` and `FILTERS`."""

__all__: list[str] = []
