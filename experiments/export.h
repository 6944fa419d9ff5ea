/* A plan for other programs to run: job scripts for a cluster, a Makefile for one machine. */
#ifndef EXPERIMENTS_EXPORT_H
#define EXPERIMENTS_EXPORT_H

#include "experiments/plan.h"

/*
 * One job a run (shared ones once, complete ones not at all), in an order in which dependencies come first. A job that is killed goes on
 * where it was when it is started again; two jobs that come to the same run (equal layer sets) wait for each other by the run's lock.
 *
 * EXPORT_SLURM  DIR/0001-ID-KEY.sbatch ..., 9999-report.sbatch, and submit.sh, which queues them: a job after what it needs is ok, the
 *               report after every job has ended
 * EXPORT_MAKE   DIR/Makefile: a target ID-KEY each, a stamp in DIR; `report`, the first one, makes all of them with -k (what needs a
 *               failed run is left, the rest is made) and then the reports
 *
 * command[k]  the command lines that reproduce plan k, with a device, and on the host alone for runs that never use one (stage_kind.host:
 *             their Slurm jobs ask for no GPU); a job adds --only ID:PLANNED --wait --no-reports
 * report      the command that makes all reports
 */
struct export_command {
    const char *device, *host;
};
enum export_format { EXPORT_SLURM, EXPORT_MAKE };
int export_plans(enum export_format format, const struct plan *const *p, size_t n, const struct export_command *command, const char *report,
                 const char *name, const char *dir, int *jobs, struct err *e);

#endif
