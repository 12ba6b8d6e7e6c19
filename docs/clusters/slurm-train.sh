#!/bin/bash
# Train on several nodes of a Slurm cluster: sbatch slurm-train.sh
# A job that is requeued, or started again, goes on from its newest checkpoint.
#SBATCH --job-name=ssdlm-train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail

first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# DATA and OUT are folders that all nodes see.
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first_node:29500" \
    -m ssdlm train --recipe paper_large --data "$DATA" --out "$OUT" \
    sharding=fsdp precision=bf16 compile=true micro_batch=192 spike=10 keep=3 keep_every=10000
