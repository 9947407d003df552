"""Decides. No I/O, no asyncio, no clock; its random draw is a hash of (seed, attempt)."""

from router.contract import Ask, Candidate, Decision, Endpoint, EndpointState, Limits, Load, Slo
from router.router import Router

__all__ = ["Ask", "Candidate", "Decision", "Endpoint", "EndpointState", "Limits", "Load", "Router", "Slo"]
