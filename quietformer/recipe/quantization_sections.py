"""What a recipe says about ranges and integers: ``[calibrate]``, ``[quantize]`` and the sites of each profile."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from deploy.calibration.ranges import parse_method
from deploy.graphs.site_choice import SiteChoice, Wish
from deploy.quantization.bits import Bits
from quietformer.recipe.sections import PositiveInt, Profile, Section

Pattern = Annotated[str, Field(min_length=1)]
"""Name or shell pattern of a tensor, weight or node, or ``kind:NAME``."""


class CalibrateSection(Section):
    """``[calibrate]``: ranges of the activations, from one random subset of the texts per seed."""

    method: Literal["minmax", "running-minmax", "percentile", "mse", "entropy"] = "running-minmax"
    batches: PositiveInt = 16
    batch_size: PositiveInt = 16
    length: PositiveInt = 128
    """Texts are cut to so many tokens."""
    methods: dict[Pattern, str] = Field(default_factory=dict)
    """Other methods for single tensors, by pattern: ``"kind:activation_output" = "mse"``, ``"*layer.0*" = "percentile:99.9"``; a later one wins."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)] = (0, 1, 2)
    """The first seed's graphs are the artifacts; the others tell how much the choice of texts matters."""

    @model_validator(mode="after")
    def _check_methods(self) -> Self:
        for method in self.methods.values():
            parse_method(method)
        return self

    @model_validator(mode="after")
    def _check_seeds(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} repeat one another; every seed is a subset of its own")
        return self


class SitesSection(Section):
    """``[quantize.sites.PROFILE]``: what is changed about a profile's sites; :class:`deploy.graphs.site_choice.SiteChoice` explains each."""

    exclude: Annotated[tuple[Pattern, ...], Field(strict=False)] = ()
    include: Annotated[tuple[Pattern, ...], Field(strict=False)] = ()
    bmms: Wish = "profile"
    residual_adds: Wish = "profile"
    gate_path: Wish = "profile"

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        self.choice()
        return self

    def choice(self) -> SiteChoice:
        """The choice as deploy reads it."""
        return SiteChoice.from_dict(self.model_dump())


class QuantizeSection(Section):
    """``[quantize]``: which W8A8 graphs are made, of the original and of the retrofitted model alike."""

    profiles: Annotated[tuple[Profile, ...], Field(strict=False, min_length=1)] = ("tensorrt", "paper", "ort")
    """The first one is the main artifact ``model.int8.onnx``; ``fp8`` goes after ``tensorrt``, its graph is ``model.fp8.onnx``."""
    weights: Literal["minmax", "mse", "per-channel"] = "minmax"
    """Profile ``fp8`` has no clips to search: ``mse`` is ``minmax`` there."""
    bits: str = "W8A8"
    """Widths of weights and activations, 2 to 16; others than 8 in profile ``paper`` only, and simulated."""
    reduce_range: bool = False
    """Weights whose neighbours' products fit into 16 bits, for the fastest kernels of x86 without VNNI; not of profile ``fp8``."""
    sites: dict[Profile, SitesSection] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_profiles(self) -> Self:
        if unmade := sorted(set(self.sites) - set(self.profiles)):
            raise ValueError(f"quantize.sites names '{unmade[0]}', which quantize.profiles leaves out")
        if "fp8" in self.profiles and (self.profiles[0] == "fp8" or "tensorrt" not in self.profiles):
            raise ValueError(
                f"profile 'fp8' goes beside 'tensorrt' and is not the first: GPUs below SM 8.9 have no FP8; "
                f"profiles are {', '.join(self.profiles)}"
            )
        if Bits.parse(self.bits).is_simulated and self.profiles != ("paper",):
            raise ValueError(f"bits {self.bits} exist in profile 'paper' only; profiles are {', '.join(self.profiles)}")
        if self.reduce_range and Bits.parse(self.bits).weights != 8:
            raise ValueError(f"quantize.reduce_range is for weights of 8 bits; bits are {self.bits}")
        for sites in self.sites.values():
            if (switches := sites.choice().open_switches) and Bits.parse(self.bits).is_simulated:
                raise ValueError(f"{switches[0]} is 'auto', and {self.bits} is simulated: its speed means nothing")
        return self

    def choice(self, profile: str) -> SiteChoice:
        """What is changed about the sites of one profile."""
        return next((sites.choice() for name, sites in self.sites.items() if name == profile), SiteChoice())
