"""Does `sorted-runs` keep the seven promises? Then publish a table with it, from a policy file.

pip install ./examples/own_method
python examples/own_method/try_it.py [FOLDER]
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

from crenel import Policy, check_engine
from crenel.pipelines.cli import main

HERE = Path(__file__).parent


def write_payments(path: Path, rows: int = 1_000) -> None:
    """Write made-up payments."""
    draw = random.Random(0)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "age", "zipcode", "purchase"])
        for _ in range(rows):
            zipcode = draw.choice(("48104", "48105", "48201", "60601"))
            writer.writerow([draw.randrange(400), draw.randint(18, 95), zipcode, draw.choice(["books", "travel"])])


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    check_engine(Policy.from_yaml(HERE / "policy.yaml"))
    print("sorted-runs keeps the seven promises.")
    write_payments(folder / "payments.csv")
    run = ["run", str(HERE / "policy.yaml"), "--input", str(folder / "payments.csv")]
    sys.exit(main([*run, "--output", str(folder / "published.csv")]))
