#!/bin/bash
#SBATCH --job-name=smollm2
#SBATCH --output=train-%j.log
# The plan that shardfit chose is in the job's environment; the runtime takes its ranks from srun.
exec srun shardfit-train "$SHARDFIT_JOB"
