/* Manifests and collections: opening, running, reports. */
#include "cli/repro.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"
#include "cli/stages_cost.h"
#include "core/log.h"
#include "experiments/checks.h"
#include "reports/site.h"

const char *const scale_words[] = {"ci", "tiny", "small", "paper", NULL};

/* ---- opening ---- */

/* Bundled inputs are found wherever the program is installed. */
static void find_inputs(struct manifest *m)
{
    char path[1024];
    for (size_t i = 0; i < m->n_inputs; i++) {
        struct input *in = &m->inputs[i];
        struct err ignored = ERR_INIT;
        if (!file_exists(in->path) && !dir_exists(in->path) && cli_bundled(path, in->path, &ignored) == 0)
            in->path = arena_strdup(&m->arena, path);
    }
}

/* Cells that checks name: looked for in what the reports make of no run at all, in a folder that is removed again. */
static int check_cells(struct repro *r, struct part *t, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    char dir[1024], none[1024];
    struct plan p;
    snprintf(dir, sizeof dir, "%.900s/dashlab-check-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir))
        return ERR(e, E_ENV, "'%s' cannot be made: %s", dir, strerror(errno));
    int rc = plan_make(&p, &t->m, &r->reg, path_join(none, dir, "runs"), e);
    for (size_t i = 0; rc == 0 && i < t->m.n_reports; i++) {
        struct str text = STR_INIT;
        struct report_result res = {0};
        rc = report_kind_find(t->m.reports[i].kind)->make(&p, &t->m.reports[i], dir, &text, &res, e);
        str_free(&text);
        str_free(&res.verdict);
    }
    rc = rc ? rc : reports_check_cells(&p, dir, e);
    plan_free(&p);
    struct err ignored = ERR_INIT;
    (void)remove_tree(dir, &ignored);
    return rc;
}

static int plan_part(struct repro *r, struct part *t, struct err *e)
{
    find_inputs(&t->m);
    TRY(reports_check(&t->m, e));
    TRY(plan_make(&t->p, &t->m, &r->reg, r->runs, e));
    TRY(reports_check_rows(&t->p, e));
    return t->m.n_checks ? check_cells(r, t, e) : 0;
}

bool repro_lacks_scale(const struct err *e)
{
    return e->code == E_USAGE && (strstr(e->msg, "this manifest has no scale '") || strstr(e->msg, "has a scale '"));
}

/* A bare name stands for a manifest of experiments/: table1 for experiments/table1.yaml. */
static void find_named(struct repro *r)
{
    char path[1024];
    struct err ignored = ERR_INIT;
    if (file_exists(r->manifest) || strpbrk(r->manifest, "/.") || strlen(r->manifest) > 64)
        return;
    snprintf(r->named, sizeof r->named, "experiments/%s.yaml", r->manifest);
    if (file_exists(r->named) || cli_bundled(path, r->named, &ignored) == 0)
        r->manifest = r->named;
}

/* A manifest that is not there; the nearest name of those beside where it would lie, or of experiments/. */
static int no_manifest(const struct repro *r, struct err *e)
{
    char dir[1024], bundled[1024];
    const char *word[128], *base = path_base(r->manifest), *near = NULL;
    struct names names = {0};
    size_t n = 0;
    struct err ignored = ERR_INIT;
    bool bare = !strchr(r->manifest, '/');
    snprintf(dir, sizeof dir, "%.*s", (int)(base - r->manifest), r->manifest);
    if (bare || !dir_exists(dir))
        snprintf(dir, sizeof dir, "%s", cli_bundled(bundled, "experiments", &ignored) == 0 ? bundled : "experiments");
    (void)dir_list(dir, &names, &ignored);
    for (size_t i = 0; i < names.n && n < ARRAY_LEN(word); i++) {
        char *dot = strstr(names.v[i], ".yaml");
        if (!dot || dot[5])
            continue;
        if (bare && !strchr(r->manifest, '.'))
            *dot = 0;
        word[n++] = names.v[i];
    }
    near = nearest_word(base, word, n);
    (void)ERR(e, E_INPUT, "manifest '%s' does not exist%s%.*s%s%s", r->manifest, near ? "; did you mean '" : "",
              near ? (int)(base - r->manifest) : 0, r->manifest, near ? near : "", near ? "'?" : "");
    names_free(&names);
    return -1;
}

static int load_parts(struct repro *r, struct err *e)
{
    char path[1024];
    struct manifest first;
    find_named(r);
    if (!file_exists(r->manifest) && cli_bundled(path, r->manifest, e) != 0)
        return no_manifest(r, e);
    TRY(manifest_load(&first, file_exists(r->manifest) ? r->manifest : path, r->scale, &r->reg, e));
    size_t n = first.n_parts ? first.n_parts : 1;
    r->part = calloc(n, sizeof *r->part);
    r->plans = calloc(n, sizeof *r->plans);
    if (first.n_parts || !r->part || !r->plans)
        r->all = first;
    if (!r->part || !r->plans)
        return err_nomem(e, n * sizeof *r->part, "manifests");
    if (!first.n_parts)
        r->part[0] = (struct part){.path = r->manifest, .m = first};
    r->n_parts = first.n_parts ? 0 : 1;
    for (size_t i = 0; i < first.n_parts; i++) {
        struct part *t = &r->part[r->n_parts];
        struct err why = ERR_INIT;
        t->path = r->all.parts[i];
        if (manifest_load(&t->m, t->path, r->scale, &r->reg, &why) != 0) {
            if (repro_lacks_scale(&why)) { /* the others have it */
                log_info("%s has no scale '%s': left out", t->path, r->scale);
                continue;
            }
            *e = why;
            return -1;
        }
        r->n_parts++;
        for (size_t k = 0; k + 1 < r->n_parts; k++)
            if (!t->m.n_parts && !strcmp(r->part[k].m.name, t->m.name))
                return ERR(e, E_USAGE, "%s: '%s' and '%s' are both called '%s'", r->manifest, r->part[k].path, t->path, t->m.name);
        if (t->m.n_parts)
            return ERR(e, E_USAGE, "%s: holds '%s', which is a collection itself", r->manifest, t->path);
    }
    if (r->n_parts == 0)
        return ERR(e, E_USAGE, "none of the manifests of '%s' has a scale '%s'", r->manifest, r->scale);
    return 0;
}

/* One process computes in one type: what the scale of every manifest says, unless the command line says another. */
static int take_dtype(struct repro *r, struct err *e)
{
    for (size_t i = 1; !r->c.dtype && i < r->n_parts; i++)
        if (strcmp(r->part[i].m.dtype, r->part[0].m.dtype) != 0)
            return ERR(e, E_USAGE, "'%s' computes in %s at scale %s, '%s' in %s: give --dtype for both", r->part[0].path,
                       *r->part[0].m.dtype ? r->part[0].m.dtype : "f32", r->scale, r->part[i].path,
                       *r->part[i].m.dtype ? r->part[i].m.dtype : "f32");
    if (*r->part[0].m.dtype)
        r->c.gpu_dtype = r->part[0].m.dtype;
    return 0;
}

static int plan_parts(struct repro *r, struct err *e)
{
    for (size_t i = 0; i < r->n_parts; i++) {
        TRY(plan_part(r, &r->part[i], e));
        r->plans[i] = &r->part[i].p;
    }
    return 0;
}

static int take_rates(struct repro *r, struct err *e)
{
    r->env.rate = r->gflops * 1e9;
    if (!r->estimate || (r->gflops > 0 && !r->gpu))
        return 0;
    return r->gpu ? cost_device(&r->env, r->gpu, e) : cost_rate(&r->env, e);
}

int repro_open(struct repro *r, struct err *e)
{
    if (r->limit && !cli_parse_bytes(r->limit, &r->c.memory_limit_bytes))
        return ERR(e, E_USAGE, "--memory-limit '%s' is no size (95.6GiB, 512MiB, 40G, bytes)", r->limit);
    r->env.common = &r->c;
    r->env.estimate = r->estimate;
    hash_cache_open(&r->hashes);
    registry_init(&r->reg, &r->env);
    r->reg.hashes = &r->hashes;
    if (load_parts(r, e) == 0 && take_dtype(r, e) == 0 && take_rates(r, e) == 0 && plan_parts(r, e) == 0)
        return 0;
    repro_close(r);
    return -1;
}

void repro_close(struct repro *r)
{
    for (size_t i = 0; r->part && i < r->n_parts; i++) {
        plan_free(&r->part[i].p);
        manifest_free(&r->part[i].m);
    }
    free(r->part);
    free(r->plans);
    r->part = NULL;
    r->plans = NULL;
    r->n_parts = 0;
    manifest_free(&r->all);
    hash_cache_close(&r->hashes);
    env_close(&r->env);
}

const char *repro_name(const struct repro *r)
{
    return r->all.name ? r->all.name : r->part[0].m.name;
}

int repro_single(struct repro *r, const char *command, struct part **out, struct err *e)
{
    *out = r->part;
    if (r->all.n_parts)
        return ERR(e, E_USAGE, "'%s' is a collection of %zu manifests; %s takes one of them, for example '%s'", r->manifest, r->n_parts,
                   command, r->part[0].path);
    return 0;
}

/* ---- reports ---- */

char *repro_results(char dst[1024], const struct repro *r, const struct part *t)
{
    char base[1024];
    return path_join(dst, path_join(base, r->out, t->m.name), t->m.scale);
}

/* The runs behind the reports, for people and for the page: deterministic, so folders are named without their place. */
static int write_runs(const struct plan *p, const char *dir, struct err *e)
{
    struct str s = STR_INIT;
    char path[1024];
    str_puts(&s, "stage\tkind\tsettings\tstate\trun\n");
    for (size_t i = 0; i < p->n; i++) {
        const struct node *n = p->nodes[i];
        const char *state = n->declined ? "declined" : n->error ? "failed" : n->state == RUN_COMPLETE ? "complete" : "not run";
        str_printf(&s, "%s\t%s\t%s\t%s\t%s\n", n->stage->id, n->kind->name, n->point, state, n->key[0] ? path_base(n->dir) : "-");
    }
    int rc = str_ok(&s, "runs.tsv", e) || mkdir_p(dir, e) || file_write(path_join(path, dir, "runs.tsv"), str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

int repro_reports(struct repro *r, struct part *t, bool print, int *missing, struct str *verdict, struct err *e)
{
    char dir[1024], command[2100];
    struct site_report *said = arena_array(&t->p.arena, t->m.n_reports + 1, sizeof *said);
    repro_results(dir, r, t);
    if (!said)
        return arena_ok(&t->p.arena, "reports", e);
    tmp_sweep(dir, false, false); /* of killed processes */
    for (size_t i = 0; i < t->m.n_reports; i++) {
        struct str text = STR_INIT;
        struct report_result res = {0};
        int rc = report_kind_find(t->m.reports[i].kind)->make(&t->p, &t->m.reports[i], dir, &text, &res, e);
        if (rc == 0 && print)
            fputs(str_c(&text), stdout);
        *missing += res.missing;
        str_printf(verdict, "%s%s", verdict->len ? "; " : "", str_c(&res.verdict));
        said[i] = (struct site_report){t->m.reports[i].name, t->m.reports[i].title, arena_strdup(&t->p.arena, str_c(&res.verdict))};
        str_free(&text);
        str_free(&res.verdict);
        TRY(rc);
    }
    TRY(arena_ok(&t->p.arena, "reports", e));
    if (!t->m.n_reports)
        return 0;
    snprintf(command, sizeof command, "dashlab reproduce %s --scale %s", t->path, t->m.scale);
    TRY(write_runs(&t->p, dir, e));
    TRY(site_note(dir, t->m.name, t->m.scale, t->m.title, command, said, t->m.n_reports, e));
    return site_write(r->out, e);
}

int repro_checks(struct repro *r, struct part *t, bool print, int *broken, struct str *verdict, struct err *e)
{
    char dir[1024];
    repro_results(dir, r, t);
    for (size_t i = 0; i < t->m.n_checks; i++) {
        struct str line = STR_INIT;
        bool held;
        int rc = check_run(&t->m.checks[i], dir, &line, &held, e);
        if (rc == 0 && print)
            printf("%s\n", str_c(&line));
        *broken += !held;
        str_free(&line);
        TRY(rc);
    }
    if (t->m.n_checks)
        str_printf(verdict, "%s%zu of %zu checks hold", verdict->len ? "; " : "", t->m.n_checks - (size_t)*broken, t->m.n_checks);
    return 0;
}

/* ---- running ---- */

struct progress {
    struct plan *p;
    bool quiet;
};

static void on_done(void *ctx, const struct plan *p, const struct node *n)
{
    const struct progress *g = ctx;
    struct str line = STR_INIT;
    UNUSED(p);
    selectors_line(g->p, n, &line);
    benchmarks_line(g->p, n, &line);
    if (!g->quiet)
        fputs(str_c(&line), stdout);
    fflush(stdout);
    str_free(&line);
}

static void put_json(struct jw *w, const struct part *t, const struct plan_summary *s, int broken, const char *verdict)
{
    jw_obj(w);
    jw_kstr(w, "manifest", t->m.name);
    jw_kstr(w, "scale", t->m.scale);
    jw_ki64(w, "stages", s->total);
    jw_ki64(w, "up_to_date", s->up_to_date);
    jw_ki64(w, "ran", s->ran);
    jw_ki64(w, "failed", s->failed);
    jw_ki64(w, "declined", s->declined);
    jw_ki64(w, "checks", (int64_t)t->m.n_checks);
    jw_ki64(w, "checks_failed", broken);
    jw_kstr(w, "verdict", verdict);
    jw_end_obj(w);
}

void repro_print_json(const struct part *t, const struct plan_summary *s, const char *verdict)
{
    struct str out = STR_INIT;
    struct jw w;
    jw_init(&w, &out, true);
    put_json(&w, t, s, 0, verdict);
    printf("%s\n", str_c(&out));
    str_free(&out);
}

static void print_summary(const struct repro *r, const struct part *t, const struct plan_summary *s, const char *verdict, bool reports)
{
    printf("%d stages: %d up to date, %d ran (%d resumed), %d failed, %d declined; %s", s->total, s->up_to_date, s->ran, s->resumed,
           s->failed, s->declined, r->env.rt.be ? r->env.rt.be->desc : "nothing computed");
    if (reports)
        printf(", results in %s/%s/%s, all of them in %s/index.html\n", r->out, t->m.name, t->m.scale, r->out);
    else
        printf("\n");
    if (!reports)
        return;
    printf("RESULT (%s scale%s): ", t->m.scale, strcmp(t->m.scale, "paper") ? ", not the paper's setting" : "");
    if (s->failed)
        printf("%d of %d stages FAILED; ", s->failed, s->total);
    printf("%s\n", *verdict ? verdict : "no report asked for");
}

int repro_stuck(const struct repro *r, const struct part *t, struct err *e)
{
    const char *path;
    const struct input *in = NULL;
    if (!plan_stuck(&t->p, r->only, &path))
        return 0;
    for (size_t i = 0; i < t->m.n_inputs && !in; i++)
        in = !strcmp(t->m.inputs[i].path, path) ? &t->m.inputs[i] : NULL;
    return ERR(e, E_INPUT, "'%s'%s%s%s does not exist (%s at scale %s), and nothing can be made without it%s%s", path,
               in ? " (input '" : "", in ? in->name : "", in ? "')" : "", t->path, r->scale, in && *in->get ? "; to get it: " : "",
               in ? in->get : "");
}

int repro_run(struct repro *r, struct part *t, const struct repro_how *how, struct err *e)
{
    struct plan_summary s;
    struct err first = ERR_INIT;
    struct progress g = {&t->p, how->json != NULL};
    struct run_options ro = {
        .only = r->only, .force = how->force, .wait = how->wait, .session = how->session, .on_done = on_done, .ctx = &g};
    struct str verdict = STR_INIT;
    int missing = 0, broken = 0, rc = 0;
    TRY(repro_stuck(r, t, e));
    if (plan_run(&t->p, &ro, &s, &first) != 0) {
        *e = first;
        return -1;
    }
    if (!how->no_reports) /* a part of the stages fills no table: no checks */
        rc = repro_reports(r, t, !how->json, &missing, &verdict, e) || (!*r->only && repro_checks(r, t, !how->json, &broken, &verdict, e))
                 ? -1
                 : 0;
    if (rc == 0 && how->json)
        put_json(how->json, t, &s, broken, str_c(&verdict));
    else if (rc == 0)
        print_summary(r, t, &s, str_c(&verdict), !how->no_reports);
    str_free(&verdict);
    if (rc == 0 && s.failed) { /* each was reported as it failed */
        /* stages alone: the first one's exit code; a table with failed cells: 1, unless the machine failed, not the run (full disk) */
        bool table = t->m.n_reports && !how->no_reports && first.code != E_ENV;
        int code = table || !first.code ? E_CHECK : first.code;
        rc = ERR(e, code, "%d of %d stages failed (or wait for one that did), the first: %s", s.failed, s.total, first.msg);
    }
    if (rc == 0 && broken)
        rc = ERR(e, E_CHECK, "%d of %zu checks of '%s' do not hold", broken, t->m.n_checks, t->m.path);
    return rc;
}
