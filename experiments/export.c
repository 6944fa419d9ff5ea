#include "experiments/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/fs.h"

enum { DIGITS = 12 }; /* of a planned key, as in the names of run folders */

struct exporter {
    enum export_format format;
    const struct export_command *command;
    const char *name, *dir;
    struct str rules, all;      /* a line or rule a job; the names of every job, for the report */
    const struct node **queued; /* one node a job: equal ones of other plans may have other ids */
    size_t n_queued;
};

static const struct node *queued(const struct exporter *x, const struct node *n)
{
    for (size_t i = 0; i < x->n_queued; i++)
        if (!strncmp(x->queued[i]->planned, n->planned, DIGITS))
            return x->queued[i];
    return NULL;
}

/* How a job is named where others depend on it. */
static void put_job(const struct exporter *x, const struct node *n, struct str *s)
{
    if (x->format == EXPORT_SLURM)
        str_printf(s, ":$job_%.*s", DIGITS, n->planned);
    else
        str_printf(s, " %.100s-%.*s", n->stage->id, DIGITS, n->planned);
}

static void put_needs(const struct exporter *x, const struct node *n, struct str *needs)
{
    for (size_t k = 0; k < n->kind->n_params; k++)
        for (size_t r = 0; n->ref[k] && n->ref[k][r]; r++) {
            const struct node *q = queued(x, n->ref[k][r]);
            struct str one = STR_INIT;
            if (q)
                put_job(x, q, &one);
            if (q && !strstr(str_c(needs), str_c(&one)))
                str_puts(needs, str_c(&one));
            needs->failed = needs->failed || one.failed;
            str_free(&one);
        }
}

/* ---- Slurm ---- */

static int write_job(const struct exporter *x, const char *file, const char *what, bool host, const char *command, const char *more,
                     struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    str_printf(&s,
               "#!/usr/bin/env bash\n#SBATCH --job-name=%s-%s\n#SBATCH --output=%%x.%%j.log\n#SBATCH --requeue\n"
               "# %s. Time, memory and partition: give them to submit.sh in SBATCH_OPTIONS%s.\nset -eu\nexec %s%s\n",
               x->name, what, host ? "No GPU" : "One GPU", host ? " (SBATCH_HOST_OPTIONS, if it is set)" : "", command, more);
    int rc = str_ok(&s, "a job", e) || file_write(path_join(path, x->dir, file), str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

static int slurm_node(struct exporter *x, const struct node *n, int job, bool host, const char *command, const char *more,
                      const char *needs, struct err *e)
{
    char file[160];
    snprintf(file, sizeof file, "%04d-%.80s-%.8s.sbatch", job, n->stage->id, n->planned);
    str_printf(&x->rules, "job_%.*s=$(%s%s%s \"$here/%s\")\n", DIGITS, n->planned, host ? "on_host" : "on_gpu",
               *needs ? " --dependency=afterok" : "", needs, file);
    return write_job(x, file, n->stage->id, host, command, more, e);
}

static int slurm_end(const struct exporter *x, const char *report, struct str *s, char path[1024], struct err *e)
{
    str_printf(
        s,
        "#!/usr/bin/env bash\n# Queues the runs of %s with their dependencies. SBATCH_OPTIONS is passed on, for example \"--partition=gpu "
        "--time=24:00:00\";\n# SBATCH_HOST_OPTIONS in its place to jobs that need no GPU.\nset -eu\n"
        "here=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\non_gpu() { sbatch --parsable --gpus=1 ${SBATCH_OPTIONS:-} \"$@\"; }\n"
        "on_host() { sbatch --parsable ${SBATCH_HOST_OPTIONS:-${SBATCH_OPTIONS:-}} \"$@\"; }\n",
        x->name);
    str_puts(s, str_c(&x->rules));
    str_printf(s, "on_gpu%s%s \"$here/9999-report.sbatch\"\n", x->all.len ? " --dependency=afterany" : "", str_c(&x->all));
    TRY(write_job(x, "9999-report.sbatch", "report", false, report, "", e));
    TRY(str_ok(s, "submit.sh", e));
    TRY(file_write(path_join(path, x->dir, "submit.sh"), str_c(s), s->len, e));
    return chmod(path, 0755) == 0 ? 0 : ERR(e, E_ENV, "'%s' cannot be made executable", path);
}

/* ---- make ---- */

/* A line of a recipe: $ is make's. */
static void put_recipe(struct str *s, const char *line)
{
    for (; *line; line++)
        str_puts(s, *line == '$' ? "$$" : (char[2]){*line, 0});
}

static void make_node(struct exporter *x, const struct node *n, const char *command, const char *more, const char *needs)
{
    char target[160], path[1024];
    snprintf(target, sizeof target, "%.100s-%.*s", n->stage->id, DIGITS, n->planned);
    (void)remove(path_join(path, x->dir, target)); /* of an earlier export, before the run was removed */
    str_printf(&x->rules, "\n%s:%s\n\tcd \"$${FROM:?make the target report}\" && ", target, needs);
    put_recipe(&x->rules, command);
    str_printf(&x->rules, "%s\n\t@touch $@\n", more);
}

static const char make_head[] = "# The runs of ";

/* A Makefile of another kind is not written over. */
static int make_free(const char *path, struct err *e)
{
    char head[sizeof make_head] = "";
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(head, 1, sizeof make_head - 1, f);
    fclose(f);
    return n == 0 || !strcmp(head, make_head) ? 0
                                              : ERR(e, E_USAGE, "--export make: '%s' is another Makefile; give a folder of its own", path);
}

/* The second make works in DIR, so that targets are names without a path, and hands the first one's folder to the commands. What it
 * returns is not looked at: the report says what failed. */
static int make_end(const struct exporter *x, const char *report, struct str *s, char path[1024], struct err *e)
{
    TRY(make_free(path_join(path, x->dir, "Makefile"), e));
    str_printf(s,
               "%s%s, a target each, and their reports: make -j N -f DIR/Makefile, from the folder in which reproduce would\n"
               "# run, with dashlab in PATH. What needs a failed run is left, the rest is made; the same command goes on. N: as many as\n"
               "# there are cores; each command takes one thread, or as many as --threads said when this was written.\n"
               "MAKEFLAGS += --output-sync=target\nexport DASHLAB_MAKEFILE := $(MAKEFILE_LIST)\n.PHONY: report runs\n"
               "report:\n\t-+@FROM=$$(pwd) $(MAKE) -k --no-print-directory -C \"$$(dirname \"$${DASHLAB_MAKEFILE# }\")\" runs\n\t",
               make_head, x->name);
    put_recipe(s, report);
    str_printf(s, "\n\nruns:%s\n%s", str_c(&x->all), str_c(&x->rules));
    TRY(str_ok(s, "Makefile", e));
    return file_write(path, str_c(s), s->len, e);
}

/* ---- both ---- */

static int put_node(struct exporter *x, size_t part, const struct node *n, int *jobs, struct err *e)
{
    char more[256];
    struct str needs = STR_INIT;
    int rc = 0;
    bool host = n->kind->host && n->kind->host(n);
    const char *command = host ? x->command[part].host : x->command[part].device;
    put_needs(x, n, &needs);
    snprintf(more, sizeof more, " --only '%.100s:%.*s' --wait --no-reports", n->stage->id, DIGITS, n->planned);
    ++*jobs;
    if (x->format == EXPORT_SLURM)
        rc = slurm_node(x, n, *jobs, host, command, more, str_c(&needs), e);
    else
        make_node(x, n, command, more, str_c(&needs));
    put_job(x, n, &x->all);
    x->queued[x->n_queued++] = n;
    rc = rc || str_ok(&needs, "dependencies", e) ? -1 : 0;
    str_free(&needs);
    return rc;
}

int export_plans(enum export_format format, const struct plan *const *p, size_t n, const struct export_command *command, const char *report,
                 const char *name, const char *dir, int *jobs, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    size_t total = 0;
    *jobs = 0;
    for (size_t k = 0; k < n; k++)
        total += p[k]->n;
    struct exporter x = {.format = format, .command = command, .name = name, .dir = dir, .queued = calloc(total + 1, sizeof *x.queued)};
    if (!x.queued)
        return err_nomem(e, total, "jobs");
    int rc = mkdir_p(dir, e);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; rc == 0 && i < p[k]->n; i++) {
            const struct node *m = p[k]->nodes[i];
            if (!m->stage->borrow && m->state != RUN_COMPLETE && !queued(&x, m))
                rc = put_node(&x, k, m, jobs, e);
        }
    if (rc == 0)
        rc = str_ok(&x.rules, "jobs", e) || str_ok(&x.all, "jobs", e) ? -1 : 0;
    if (rc == 0)
        rc = format == EXPORT_SLURM ? slurm_end(&x, report, &s, path, e) : make_end(&x, report, &s, path, e);
    str_free(&s);
    str_free(&x.rules);
    str_free(&x.all);
    free(x.queued);
    return rc ? -1 : 0;
}
