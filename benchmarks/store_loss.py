"""Loss of the pixel store: crops from it compared with crops from the files, PSNR in dB.

python benchmarks/store_loss.py flowers102-train.tar --out results/store-loss-flowers102.json
"""

from __future__ import annotations

import argparse

from record import format_command, hash_data, write_rows

from vitling.views.plan import Group, Plan
from vitling.views.policies import make_plan
from vitling.views.store_loss import measure_store_loss

PLANS = {"224 px": Plan((Group(224),)), "112 px": Plan((Group(112),)), "idmm-pretrain": make_plan("idmm-pretrain")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="a folder of images, a tar, ...")
    parser.add_argument("--out")
    options = parser.parse_args()
    rows = [
        {
            "views": name,
            "store": loss.size,
            "chosen": loss.chosen,
            "psnr": round(loss.mean, 2),
            "worst_in_twenty": round(loss.low, 2),
        }
        for name, plan in PLANS.items()
        for loss in measure_store_loss(options.data, plan)
    ]
    for row in rows:
        print(row)
    hashes, command = hash_data(options.data), format_command("store_loss", options)
    write_rows(options.out, (__doc__ or "").splitlines()[0].rstrip("."), command, rows, data_hashes=hashes)


if __name__ == "__main__":
    main()
