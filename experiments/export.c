#include "experiments/export.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/fs.h"

/* A stage id as a shell variable. */
static void put_var(struct str *s, const char *id)
{
    str_puts(s, "job_");
    for (; *id; id++)
        str_putc(s, *id == '-' ? '_' : *id);
}

static const struct node *first_of(const struct plan *p, const struct stage *s)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->nodes[i]->stage == s)
            return p->nodes[i];
    return NULL;
}

static bool depends(const struct plan *p, const struct stage *s, const struct stage *on)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct node *n = p->nodes[i];
        for (size_t k = 0; n->stage == s && k < n->kind->n_params; k++)
            for (size_t r = 0; n->ref[k] && n->ref[k][r]; r++)
                if (n->ref[k][r]->stage == on)
                    return true;
    }
    return false;
}

static int write_job(const struct plan *p, const char *dir, const char *file, const char *what, const char *command, const char *only,
                     struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    str_printf(&s, "#!/usr/bin/env bash\n#SBATCH --job-name=%s-%s\n#SBATCH --output=%%x.%%j.log\n# Time, memory, partition and GPUs: give "
               "them to submit.sh in SBATCH_OPTIONS.\nset -eu\nexec %s%s%s\n", p->m->name, what, command, only ? " --only " : "",
               only ? only : "");
    int rc = s.failed ? err_nomem(e, s.len, "a job") : file_write(path_join(path, dir, file), str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

int export_slurm(const struct plan *p, const char *command, const char *dir, int *jobs, struct err *e)
{
    struct str s = STR_INIT;
    char file[128], path[1024];
    *jobs = 0;
    TRY(mkdir_p(dir, e));
    str_printf(&s, "#!/usr/bin/env bash\n# Queues the stages of %s (scale %s) with their dependencies. SBATCH_OPTIONS is passed on, for "
               "example \"--partition=gpu --gpus=1 --time=8:00:00\".\nset -eu\n"
               "here=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\nqueue() { sbatch --parsable ${SBATCH_OPTIONS:-} \"$@\"; }\n",
               p->m->name, p->m->scale);
    int rc = 0;
    struct str all = STR_INIT;
    for (size_t i = 0; rc == 0 && i < p->m->n_stages; i++) {
        const struct stage *st = &p->m->stages[i];
        if (st->skipped || st->borrow || !first_of(p, st))
            continue;
        snprintf(file, sizeof file, "%02d-%.80s.sbatch", ++*jobs, st->id);
        rc = write_job(p, dir, file, st->id, command, st->id, e);
        put_var(&s, st->id);
        str_puts(&s, "=$(queue");
        bool any = false;
        for (size_t k = 0; k < i; k++)
            if (!p->m->stages[k].skipped && !p->m->stages[k].borrow && depends(p, st, &p->m->stages[k])) {
                str_puts(&s, any ? ":$" : " --dependency=afterok:$");
                put_var(&s, p->m->stages[k].id);
                any = true;
            }
        str_printf(&s, " \"$here/%s\")\n", file);
        str_puts(&all, all.len ? ":$" : "$");
        put_var(&all, st->id);
    }
    if (rc == 0)
        rc = write_job(p, dir, "99-report.sbatch", "report", command, NULL, e);
    str_printf(&s, "queue --dependency=afterany:%s \"$here/99-report.sbatch\"\n", str_c(&all));
    if (rc == 0)
        rc = s.failed || all.failed ? err_nomem(e, s.len, "submit.sh") : file_write(path_join(path, dir, "submit.sh"), str_c(&s), s.len, e);
    if (rc == 0 && chmod(path, 0755) != 0)
        rc = ERR(e, E_ENV, "'%s' cannot be made executable", path);
    str_free(&s);
    str_free(&all);
    return rc;
}
