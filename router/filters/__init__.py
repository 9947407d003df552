"""Each file here is one reason why an endpoint cannot take an ask: `judge(ask, view, now) -> Removal | None`."""

__all__: list[str] = []
