#!/usr/bin/env bash
# An outage and a takedown, on S3 with a mirror in Azure: run it in this folder, part by part. Name your own buckets.
set -euo pipefail

# --- publish: Publish on S3, mirror to Azure, read once.
export PENSTOCK_ROOT=s3://lab/penstock MIRROR=az://backup/penstock
penstock doctor $PENSTOCK_ROOT --quick
PLAN=$(python outage_publish.py)
penstock migrate plan $MIRROR
penstock migrate run $MIRROR
penstock verify people@1 --full --root $MIRROR
python outage_train.py $PLAN 50 > alone.txt

# --- train: Train over both. If S3 goes away at step 10, the batches stay the same.
python outage_train.py $PLAN 50 $MIRROR > killed.txt
cmp alone.txt killed.txt

# --- takedown: S3 is back, and a person withdraws.
ID=$(penstock takedown request --subject person-7 --reason "ticket 12" --by "privacy desk" --json | python -c "import json, sys; print(json.load(sys.stdin)['takedown'])")
penstock takedown run $ID --apply
penstock gc sweep --grace 0h --apply
penstock migrate run $MIRROR
penstock gc sweep --grace 0h --apply --root $MIRROR
penstock takedown run $ID --apply --mirror $MIRROR
penstock takedown prove $ID --mirror $MIRROR --out proof.json
python recheck_takedown.py proof.json $PENSTOCK_ROOT

# --- after: Both copies are healthy, and the first version is retired.
penstock verify people@2 --full
penstock verify people@2 --full --root $MIRROR
penstock ls
