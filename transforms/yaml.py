"""Where the provider file for Beam YAML is; `python -m crenel.transforms.yaml` prints it. See `docs/beam-yaml.md`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["provider_file"]


def provider_file() -> Path:
    """The file to include under `providers:`, which makes `type: Anonymize` known."""
    return Path(__file__).resolve().parent / "providers.yaml"


if __name__ == "__main__":
    print(provider_file())
