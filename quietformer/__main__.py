"""``python -m quietformer``: the same as the ``quietformer`` command."""

from __future__ import annotations

from quietformer.cli import main

if __name__ == "__main__":
    main()
