"""Several processes of a launcher (``accelerate launch``, ``torchrun``) in one run: the first runs the stages, the others join its training.

The others wait until the first has prepared the data, train with it, and end. Where there is nothing to train they are told so.
"""

from __future__ import annotations

import os

from quietformer.recipe.recipe import Recipe


def is_launched() -> bool:
    """Whether a launcher started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_follower() -> bool:
    """Whether this process is one of those that only train."""
    return is_launched() and int(os.environ.get("RANK", "0")) > 0


class Followers:
    """The other processes, as the first one sees them."""

    def __init__(self) -> None:
        self._told = not is_launched()

    def call(self, recipe: Recipe) -> None:
        """Let them train: the data is ready."""
        self._tell(recipe, train=True)

    def dismiss(self, recipe: Recipe) -> None:
        """Let them end, unless they were called."""
        self._tell(recipe, train=False)

    def _tell(self, recipe: Recipe, *, train: bool) -> None:
        if not self._told:
            self._told = True
            _agree(recipe, train=train)


FOLLOWERS = Followers()
"""Of this process."""


def is_called(recipe: Recipe) -> bool:
    """Wait in another process until the first one says whether there is something to train."""
    return _agree(recipe, train=False)


def leave() -> None:
    """Part from the other processes, if there are any: without it their connections outlive the work."""
    if is_launched():
        from accelerate import PartialState  # noqa: PLC0415

        PartialState().destroy_process_group()


def _agree(recipe: Recipe, *, train: bool) -> bool:
    """The first process's word, in all of them; whoever comes first waits."""
    from accelerate.utils import broadcast_object_list  # noqa: PLC0415

    from train.loop.training_loop import default_accelerator  # noqa: PLC0415

    assert recipe.train is not None
    default_accelerator(recipe.train.loop_settings(seed=0))
    (answer,) = broadcast_object_list([train])
    return bool(answer)
