#include "experiments/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/fs.h"

enum { DIGITS = 12 }; /* of a planned key, as in the names of run folders */

struct exporter {
    const struct plan *const *p;
    size_t n;
    const char *const *command;
    const char *name, *dir;
    struct str submit, all; /* all: the variables of every job, for the report */
    char (*queued)[DIGITS + 1];
    size_t n_queued;
};

static bool is_queued(const struct exporter *x, const struct node *n)
{
    for (size_t i = 0; i < x->n_queued; i++)
        if (!strncmp(x->queued[i], n->planned, DIGITS))
            return true;
    return false;
}

static int write_job(const struct exporter *x, const char *file, const char *what, const char *command, const char *more, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    str_printf(&s,
               "#!/usr/bin/env bash\n#SBATCH --job-name=%s-%s\n#SBATCH --output=%%x.%%j.log\n#SBATCH --requeue\n"
               "# One GPU. Time, memory and partition: give them to submit.sh in SBATCH_OPTIONS.\nset -eu\nexec %s%s\n",
               x->name, what, command, more);
    int rc = s.failed ? err_nomem(e, s.len, "a job") : file_write(path_join(path, x->dir, file), str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

static int write_node(struct exporter *x, size_t part, const struct node *n, int *jobs, struct err *e)
{
    char file[160], more[256];
    struct str deps = STR_INIT;
    snprintf(file, sizeof file, "%04d-%.80s-%.8s.sbatch", ++*jobs, n->stage->id, n->planned);
    snprintf(more, sizeof more, " --only '%.100s:%.*s' --wait --no-reports", n->stage->id, DIGITS, n->planned);
    int rc = write_job(x, file, n->stage->id, x->command[part], more, e);
    for (size_t k = 0; k < n->kind->n_params; k++)
        for (size_t r = 0; n->ref[k] && n->ref[k][r]; r++) {
            char var[DIGITS + 8];
            snprintf(var, sizeof var, ":$job_%.*s", DIGITS, n->ref[k][r]->planned);
            if (is_queued(x, n->ref[k][r]) && !strstr(str_c(&deps), var))
                str_puts(&deps, var);
        }
    str_printf(&x->submit, "job_%.*s=$(queue%s%s \"$here/%s\")\n", DIGITS, n->planned, deps.len ? " --dependency=afterok" : "",
               str_c(&deps), file);
    str_printf(&x->all, ":$job_%.*s", DIGITS, n->planned);
    snprintf(x->queued[x->n_queued++], DIGITS + 1, "%.*s", DIGITS, n->planned);
    str_free(&deps);
    return rc;
}

int export_slurm(const struct plan *const *p, size_t n, const char *const *command, const char *report, const char *name, const char *dir,
                 int *jobs, struct err *e)
{
    char path[1024];
    size_t total = 0;
    *jobs = 0;
    for (size_t k = 0; k < n; k++)
        total += p[k]->n;
    struct exporter x = {.p = p, .n = n, .command = command, .name = name, .dir = dir, .queued = calloc(total + 1, sizeof *x.queued)};
    if (!x.queued)
        return err_nomem(e, total, "jobs");
    str_printf(
        &x.submit,
        "#!/usr/bin/env bash\n# Queues the runs of %s with their dependencies. SBATCH_OPTIONS is passed on, for example \"--partition=gpu "
        "--time=24:00:00\".\nset -eu\n"
        "here=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\nqueue() { sbatch --parsable --gpus=1 ${SBATCH_OPTIONS:-} \"$@\"; }\n",
        name);
    int rc = mkdir_p(dir, e);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; rc == 0 && i < p[k]->n; i++) {
            const struct node *m = p[k]->nodes[i];
            if (!m->stage->borrow && m->state != RUN_COMPLETE && !is_queued(&x, m))
                rc = write_node(&x, k, m, jobs, e);
        }
    if (rc == 0)
        rc = write_job(&x, "9999-report.sbatch", "report", report, "", e);
    str_printf(&x.submit, "queue%s%s \"$here/9999-report.sbatch\"\n", x.all.len ? " --dependency=afterany" : "", str_c(&x.all));
    if (rc == 0)
        rc = x.submit.failed || x.all.failed ? err_nomem(e, x.submit.len, "submit.sh")
                                             : file_write(path_join(path, dir, "submit.sh"), str_c(&x.submit), x.submit.len, e);
    if (rc == 0 && chmod(path, 0755) != 0)
        rc = ERR(e, E_ENV, "'%s' cannot be made executable", path);
    str_free(&x.submit);
    str_free(&x.all);
    free(x.queued);
    return rc ? -1 : 0;
}
