"""All cases: importing the files declares them."""

from . import attention, control, graphs, losses, recurrent, vision  # noqa: F401
from .case import CASES

__all__ = ["CASES"]
