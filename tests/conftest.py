"""No property is judged by how long its examples take: a busy machine is no defect."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
