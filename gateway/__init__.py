"""Serves. The only place that awaits and decides; `gateway/app.py` is the only place that constructs."""
