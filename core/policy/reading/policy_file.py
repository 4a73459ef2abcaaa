"""The file of a policy: YAML, in which each key is given once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crenel.errors import PolicyError
from crenel.policy.checks import Problems, short
from crenel.policy.reading.named_files import NotReadable, read_bounded

__all__ = ["as_yaml", "read_yaml"]

#: Columns at which lines of YAML are broken: as wide as the pages.
_WIDTH = 118


def read_yaml(path: Path, problems: Problems) -> Any:
    """Read a policy's file, and note keys that are given twice.

    Raises:
        PolicyError: it cannot be read, or is not YAML.
    """
    import yaml

    try:
        text = read_bounded(path, pipes=True).decode("utf-8-sig")
    except FileNotFoundError:
        msg = f"policy: there is no file {str(path)!r}."
        raise PolicyError(msg) from None
    except NotReadable as error:
        msg = f"policy: {str(path)!r} {error}."
        raise PolicyError(msg) from None
    except UnicodeDecodeError:
        msg = f"policy: {str(path)!r} is not UTF-8 text."
        raise PolicyError(msg) from None
    try:
        loader = _strict_loader(path.name, problems)(text)
        return loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path.name}, line {mark.line + 1}" if mark is not None else path.name
        why = getattr(error, "problem", None) or str(error)
        msg = f"policy: {where}: it must be YAML; {why}."
        raise PolicyError(msg) from None
    except (ValueError, RecursionError) as error:  # 2020-02-31
        msg = f"policy: {path.name}: it must be YAML; {error}."
        raise PolicyError(msg) from None


def as_yaml(content: dict[str, Any]) -> str:
    """Write the content of a policy's file, each quasi-identifier on a line of its own where it is short."""
    import yaml

    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True, width=_WIDTH)


def _strict_loader(name: str, problems: Problems) -> Any:
    """YAML's safe loader, which also reports duplicate keys (YAML would keep the last)."""
    import yaml

    class Loader(yaml.SafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            # Before merging: a merged key may be given again.
            seen: dict[Any, int] = {}
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                line = key.start_mark.line + 1
                if key.value in seen:
                    problems.found.append(
                        f"policy: {name}, line {line}: the key {short(key.value)} must occur "
                        f"once; it is in line {seen[key.value]} too."
                    )
                seen.setdefault(key.value, line)
            super().flatten_mapping(node)

    return Loader
