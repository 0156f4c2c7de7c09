"""The calibration cache: per-tensor statistics, bound by hashes to one model, one data set and one preprocessing.

``deploy.calibration.cache_file`` writes and reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from deploy.calibration.cache_file import cache_text, read_cache
from deploy.calibration.difference import difference
from deploy.calibration.method_choice import methods_by_tensor
from deploy.calibration.ranges import KNOWN_RANGE, QuantParams, choose_range, parse_method, quant_params, range_warning
from deploy.calibration.tensor_statistics import TensorStatistics
from deploy.files import refuse_existing, write_atomically
from deploy.graphs.float16 import calibrated_sha256

IMPORTED_METHOD = "imported"
"""Method of ranges that another tool chose; they are taken as they are."""
IMPORTED_KIND = "imported"
"""``kind`` of the data identity of such ranges: the file that they come from."""

_NO_FIELDS = frozenset({"tensors", "source"})
"""What the file keeps apart, and what it does not keep."""
_TOOLS = ("numpy", "onnx", "onnxruntime", "tokenizers")


def tool_versions() -> dict[str, str]:
    """Installed versions of the packages that compute the statistics."""
    versions = {}
    for name in _TOOLS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationCache:
    """Statistics of every watched tensor of one float graph, and all that they depend on."""

    model_sha256: str
    """Hash of the float graph (:func:`deploy.graphs.model_hash.model_sha256`)."""
    data: dict[str, Any]
    """Identity of the data (:func:`deploy.data.text_data.data_identity`), with ``indices`` of the texts that were used."""
    preprocessing: dict[str, Any]
    """How data became feeds: tokenizer hash, length in tokens, padding."""
    method: str
    """How a range is chosen (:data:`deploy.calibration.ranges.Method`), or ``imported``."""
    parameters: dict[str, float]
    """All parameters of the method."""
    seed: int
    """Seed of the choice of data."""
    samples: int
    """Rows that were run."""
    batches: int
    """Batches that were run."""
    tensors: dict[str, TensorStatistics]
    """Statistics by tensor name, in graph order."""
    methods: dict[str, str] = field(default_factory=dict)
    """Methods of single tensors where they are not :attr:`method`, by tensor name (:func:`deploy.calibration.ranges.parse_method`)."""
    not_for_accuracy: bool = False
    """True when the data was random: every later artifact says so."""
    tool_versions: dict[str, str] = field(default_factory=tool_versions)
    """Versions of what computed the statistics."""
    source: Path | None = field(default=None, compare=False)
    """File that it was read from, for messages; not part of the content."""

    def range_of(self, tensor: str, *, bits: int = 8, symmetric: bool = True) -> QuantParams:
        """Scale and zero point of one tensor.

        Raises:
            ValueError: the tensor was not calibrated, has no values, or its imported range does not say what is asked.
        """
        low, high = self.chosen_range(tensor, bits=bits, symmetric=symmetric)
        return quant_params(low, high, bits=bits, symmetric=symmetric)

    def chosen_range(self, tensor: str, *, bits: int = 8, symmetric: bool = True) -> tuple[float, float]:
        """Ends of one tensor's range; raises as :meth:`range_of`."""
        if tensor not in self.tensors:
            raise ValueError(f"tensor '{tensor}' was not calibrated; the cache holds {len(self.tensors)} other tensors")
        method = self.method
        if method == IMPORTED_METHOD:
            if not symmetric and self.data.get("symmetric"):
                raise ValueError(
                    f"tensor '{tensor}': the ranges of {self.data.get('format')} that were imported are symmetric; "
                    "only profile 'tensorrt' can use them, uint8 activations need both ends"
                )
            method = "minmax"
        try:
            parameters = self.parameters
            if tensor in self.methods:
                method, parameters = self._own_method(tensor)
            cut = {name: value for name, value in parameters.items() if name == "percentile"}
            return choose_range(self.tensors[tensor], method, bits=bits, symmetric=symmetric, **cut)
        except ValueError as error:
            raise ValueError(f"tensor '{tensor}': {error}") from error

    def _own_method(self, tensor: str) -> tuple[str, dict[str, float]]:
        method, parameters = parse_method(self.methods[tensor])
        if self.method == IMPORTED_METHOD and method != KNOWN_RANGE:
            raise ValueError(f"method '{method}' needs statistics; this cache holds the imported range alone")
        return method, parameters

    def with_methods(self, methods: Mapping[str, str], *, kinds: Mapping[str, str]) -> Self:
        """The cache with other methods for some tensors; a later pattern wins over an earlier one.

        Args:
            methods: method by pattern of tensors (:class:`deploy.graphs.site_choice.SiteChoice` has the forms of patterns).
            kinds: kind by tensor, for patterns of kinds.

        Raises:
            ValueError: a pattern that matches no tensor, no such method, or one that the statistics cannot serve.
        """
        return replace(self, methods=self.methods | methods_by_tensor(methods, list(self.tensors), kinds=kinds))

    def warnings(self) -> list[str]:
        """One line for each tensor whose range is a guess."""
        found = ((name, range_warning(statistics)) for name, statistics in self.tensors.items())
        return [f"tensor '{name}' {text}" for name, text in found if text is not None]

    def check(
        self,
        model_path: Path | None,
        *,
        sha256: str | None = None,
        data: dict[str, Any] | None = None,
        preprocessing: dict[str, Any] | None = None,
        method: str | None = None,
        parameters: dict[str, float] | None = None,
        tensors: Iterable[str] = (),
    ) -> None:
        """Refuse a cache that was made from something else; what is not given is not compared.

        Args:
            model_path: float graph that is about to be quantized; a float16 graph is bound to ranges by the hash of its
                float32 form that it carries; None compares the rest alone.
            sha256: hash of that file, where it is known already.
            data: identity of the data; ``indices`` are compared only where both sides have them.
            preprocessing: how data becomes feeds.
            method: how a range is chosen.
            parameters: all parameters of the method.
            tensors: names that must have been calibrated.

        Raises:
            FileNotFoundError: no such model.
            ValueError: a mismatch; the message names the cache, the field, both values in short, and what to do.
        """
        if model_path is not None:
            own_graph = calibrated_sha256(model_path, own=sha256)
            self._compare(f"another graph than {model_path}", "model_sha256", self.model_sha256, own_graph)
        if data is not None:
            own, other = self.data.get("indices"), data.get("indices")
            unused = {"indices"} if own is None or other is None else set()
            for key in sorted((set(self.data) | set(data)) - unused):
                self._compare("other data", f"data.{key}", self.data.get(key), data.get(key))
        if preprocessing is not None:
            self._compare("data prepared otherwise", "preprocessing", self.preprocessing, preprocessing)
        if method is not None:
            self._compare("this data with another method", "method", self.method, method)
        if parameters is not None:
            self._compare("this data with other parameters", "parameters", self.parameters, parameters)
        if missing := sorted(set(tensors) - set(self.tensors)):
            raise ValueError(f"calibration cache has no entry for tensor '{missing[0]}' ({len(missing)} missing)")

    def _compare(self, what: str, name: str, own: Any, other: Any) -> None:
        if own == other:
            return
        cache = "the calibration cache" if self.source is None else f"calibration cache {self.source}"
        raise ValueError(
            f"{cache} was made from {what}: {difference(name, own, other)}. "
            "Run 'quietformer calibrate' again, or take it as it is with 'quietformer quantize --allow-stale-cache'"
        )

    def merge(self, other: Self) -> Self:
        """The cache of both shards' data together.

        Raises:
            ValueError: the shards differ in anything but the samples they saw, or saw the same sample.
        """
        if IMPORTED_METHOD in (self.method, other.method):
            raise ValueError("imported ranges cannot be merged: nobody knows what data they saw")
        for entry in fields(self):
            if entry.name not in {"data", "samples", "batches", "tensors", "source"}:
                _require_equal(entry.name, getattr(self, entry.name), getattr(other, entry.name))
        mine, theirs = ({k: v for k, v in cache.data.items() if k != "indices"} for cache in (self, other))
        _require_equal("data", mine, theirs)
        _require_equal("tensors", sorted(self.tensors), sorted(other.tensors))
        indices = [*self.data.get("indices", ()), *other.data.get("indices", ())]
        if len(set(indices)) < len(indices):
            raise ValueError("shards overlap: both saw the same sample of the data")
        tensors = deepcopy(self.tensors)
        for name, statistics in tensors.items():
            statistics.merge(other.tensors[name])
        return replace(
            self,
            source=None,
            data=mine | ({"indices": sorted(indices)} if indices else {}),
            samples=self.samples + other.samples,
            batches=self.batches + other.batches,
            tensors=tensors,
        )

    def save(self, path: Path, *, force: bool = False) -> None:
        """Write the cache; the same cache gives the same bytes.

        Raises:
            FileExistsError: ``path`` exists and ``force`` is not set.
        """
        refuse_existing(path, force=force)
        write_atomically(path, self.to_json())

    def to_json(self) -> str:
        """Content of the file."""
        content = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in _NO_FIELDS}
        if not self.methods:
            del content["methods"]
        return cache_text(content, {name: statistics.to_dict() for name, statistics in self.tensors.items()})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a cache and check that it is whole.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not a calibration cache, another schema version, or a damaged one.
        """
        known = {entry.name for entry in fields(cls)} - _NO_FIELDS
        content, rows = read_cache(path, required=known - {"methods"}, optional={"methods"})
        try:
            tensors = {name: TensorStatistics.from_dict(values) for name, values in rows.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}; calibrate again") from error
        return cls(**content, tensors=tensors, source=path)


def _require_equal(name: str, own: Any, other: Any) -> None:
    if own != other:
        raise ValueError(f"shards do not match: {difference(name, own, other)}")
