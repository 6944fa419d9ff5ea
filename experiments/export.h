/* A plan as Slurm jobs: one batch script a stage and submit.sh, which queues them with their dependencies. Each job is `dashlab
 * reproduce ... --only STAGE`, so a job that is killed goes on when it is queued again. */
#ifndef EXPERIMENTS_EXPORT_H
#define EXPERIMENTS_EXPORT_H

#include "experiments/plan.h"

/* command: how to call reproduce on this manifest, scale and folders, shell-quoted, without --only. Writes DIR/NN-STAGE.sbatch and
 * DIR/submit.sh; *jobs: how many. */
int export_slurm(const struct plan *p, const char *command, const char *dir, int *jobs, struct err *e);

#endif
