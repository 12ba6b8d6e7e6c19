#!/bin/bash
# Train on several machines by hand: DATA=... OUT=... nodes.sh HOST0 HOST1 ...
# Each host has ssdlm in its PATH and sees DATA and OUT; the first one is where they meet.
set -euo pipefail

rank=0
for host in "$@"; do
    ssh "$host" torchrun \
        --nnodes "$#" --node-rank "$rank" --nproc-per-node 8 \
        --master-addr "$1" --master-port 29500 \
        -m ssdlm train --recipe paper_large --data "$DATA" --out "$OUT" \
        sharding=fsdp precision=bf16 compile=true micro_batch=192 &
    rank=$((rank + 1))
done
wait
