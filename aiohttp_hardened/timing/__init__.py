"""The vocabulary of phases, for writing hooks."""

from aiohttp_hardened.timing._phase import Phase, PhaseEvent, PhaseHook, PhaseRecord, RequestRecord
from aiohttp_hardened.timing._request import Attempt

__all__ = ["Attempt", "Phase", "PhaseEvent", "PhaseHook", "PhaseRecord", "RequestRecord"]
