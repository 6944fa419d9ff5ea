/* Job scripts for a cluster. */
#ifndef EXPERIMENTS_EXPORT_H
#define EXPERIMENTS_EXPORT_H

#include "experiments/plan.h"

/*
 * One job a run (shared ones once, complete ones not at all), numbered in an order in which dependencies come first, submit.sh, which
 * queues them with their dependencies, and 9999-report.sbatch. command[k]  the command line that reproduces plan k; a job adds --only
 * ID:PLANNED --wait --no-reports report      the command that makes all reports once every job has ended A job that is requeued goes on
 * where it was; two jobs that come to the same run (equal layer sets) wait for each other by the run's lock.
 */
int export_slurm(const struct plan *const *p, size_t n, const char *const *command, const char *report, const char *name, const char *dir,
                 int *jobs, struct err *e);

#endif
