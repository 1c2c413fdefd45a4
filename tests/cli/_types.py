"""What the fixtures of this folder give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

T = TypeVar("T")


class Running(Protocol):
    def __call__(self, peer: AbstractAsyncContextManager[T], /) -> T: ...


Probe = "Callable[..., tuple[int, str]]"
ProbeJSON = "Callable[..., tuple[int, dict[str, Any]]]"
