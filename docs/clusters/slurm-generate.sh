#!/bin/bash
# Write a file of prompts in parts, one GPU each, then put them together:
#   job=$(sbatch --parsable slurm-generate.sh)
#   sbatch --dependency=afterok:$job --wrap "ssdlm merge $OUT/part-*.jsonl --output $OUT/texts.jsonl"
#SBATCH --job-name=ssdlm-generate
#SBATCH --array=0-7
#SBATCH --gpus=1
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=%x-%A-%a.log
set -euo pipefail

ssdlm generate --input "$PROMPTS" --output "$OUT/part-$SLURM_ARRAY_TASK_ID.jsonl" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --length 50 --seed 0 --deterministic
