/* reproduce, check, report, regress: everything that works on a whole manifest. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/report_kinds.h"
#include "cli/stages.h"
#include "cli/stages_cost.h"
#include "core/log.h"
#include "experiments/checks.h"
#include "experiments/export.h"
#include "reports/site.h"

static const char *const scale_words[] = {"ci", "tiny", "small", "paper", NULL};
static const char *const export_words[] = {"slurm", NULL};
static const char *const format_words[] = {"text", "dot", NULL};

struct repro {
    struct common c;
    const char *manifest, *scale, *only, *out, *runs, *format, *against, *explain, *limit;
    bool dry_run, force, estimate;
    double gflops;
    struct env env;
    struct registry reg;
    struct manifest m;
    struct plan p;
};

static int repro_open(struct repro *r, struct err *e)
{
    char path[1024];
    if (r->limit && !cli_parse_bytes(r->limit, &r->c.memory_limit_bytes))
        return ERR(e, E_USAGE, "--memory-limit '%s' is no size (95.6GiB, 512MiB, 40G, bytes)", r->limit);
    r->env.common = &r->c;
    r->env.estimate = r->estimate;
    if (r->estimate && r->gflops > 0)
        r->env.rate = r->gflops * 1e9;
    else if (r->estimate)
        TRY(cost_rate(&r->env, &r->env.rate, e));
    registry_init(&r->reg, &r->env);
    if (!file_exists(r->manifest) && cli_bundled(path, r->manifest, e) != 0)
        return ERR(e, E_INPUT, "manifest '%s' does not exist", r->manifest);
    TRY(manifest_load(&r->m, file_exists(r->manifest) ? r->manifest : path, r->scale, &r->reg, e));
    for (size_t i = 0; i < r->m.n_inputs; i++) { /* bundled inputs are found wherever the program is installed */
        struct input *in = &r->m.inputs[i];
        struct err ignored = ERR_INIT;
        if (!file_exists(in->path) && !dir_exists(in->path) && cli_bundled(path, in->path, &ignored) == 0)
            in->path = arena_strdup(&r->m.arena, path);
    }
    if (reports_check(&r->m, e) != 0 || plan_make(&r->p, &r->m, &r->reg, r->runs, e) != 0) {
        manifest_free(&r->m);
        return -1;
    }
    return 0;
}

static void repro_close(struct repro *r)
{
    plan_free(&r->p);
    manifest_free(&r->m);
    env_close(&r->env);
}

/* The runs behind the reports, for people and for the page: deterministic, so folders are named without their place. */
static int write_runs(const struct plan *p, const char *dir, struct err *e)
{
    struct str s = STR_INIT;
    char path[1024];
    str_puts(&s, "stage\tkind\tsettings\tstate\trun\n");
    for (size_t i = 0; i < p->n; i++) {
        const struct node *n = p->nodes[i];
        str_printf(&s, "%s\t%s\t%s\t%s\t%s\n", n->stage->id, n->kind->name, n->point, n->declined ? "declined" : n->error ? "failed"
                   : n->state == RUN_COMPLETE ? "complete" : "not run", n->key[0] ? path_base(n->dir) : "-");
    }
    int rc = str_ok(&s, "runs.tsv", e) || mkdir_p(dir, e) || file_write(path_join(path, dir, "runs.tsv"), str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

/* Results of the reports: `results/NAME/SCALE/`, and the page over all results. */
static int make_reports(struct repro *r, bool print, int *missing, struct str *verdict, struct err *e)
{
    char base[1024], dir[1024], command[2100];
    struct site_report *said = arena_array(&r->p.arena, r->m.n_reports + 1, sizeof *said);
    path_join(base, r->out, r->m.name);
    path_join(dir, base, r->m.scale);
    if (!said)
        return arena_ok(&r->p.arena, "reports", e);
    tmp_sweep(dir, false, false); /* of killed processes */
    for (size_t i = 0; i < r->m.n_reports; i++) {
        struct str text = STR_INIT;
        struct report_result res = {0};
        int rc = report_kind_find(r->m.reports[i].kind)->make(&r->p, &r->m.reports[i], dir, &text, &res, e);
        if (rc == 0 && print)
            fputs(str_c(&text), stdout);
        *missing += res.missing;
        str_printf(verdict, "%s%s", verdict->len ? "; " : "", str_c(&res.verdict));
        said[i] = (struct site_report){r->m.reports[i].name, r->m.reports[i].title, arena_strdup(&r->p.arena, str_c(&res.verdict))};
        str_free(&text);
        str_free(&res.verdict);
        TRY(rc);
    }
    TRY(arena_ok(&r->p.arena, "reports", e));
    if (!r->m.n_reports)
        return 0;
    snprintf(command, sizeof command, "dashlab reproduce %s --scale %s", r->manifest, r->m.scale);
    TRY(write_runs(&r->p, dir, e));
    TRY(site_note(dir, r->m.name, r->m.scale, r->m.title, command, said, r->m.n_reports, e));
    return site_write(r->out, e);
}

/* The manifest's checks on the tables in results/NAME/SCALE: a line each, the count into the verdict, *broken how many do not hold. */
static int run_checks(struct repro *r, bool print, int *broken, struct str *verdict, struct err *e)
{
    char base[1024], dir[1024];
    path_join(base, r->out, r->m.name);
    path_join(dir, base, r->m.scale);
    for (size_t i = 0; i < r->m.n_checks; i++) {
        struct str line = STR_INIT;
        bool held;
        int rc = check_run(&r->m.checks[i], dir, &line, &held, e);
        if (rc == 0 && print)
            printf("%s\n", str_c(&line));
        *broken += !held;
        str_free(&line);
        TRY(rc);
    }
    if (r->m.n_checks)
        str_printf(verdict, "%s%zu of %zu checks hold", verdict->len ? "; " : "", r->m.n_checks - (size_t)*broken, r->m.n_checks);
    return 0;
}

static void on_done(void *ctx, const struct plan *p, const struct node *n)
{
    struct repro *r = ctx;
    struct str line = STR_INIT;
    UNUSED(p);
    selectors_line(&r->p, n, &line);
    benchmarks_line(&r->p, n, &line);
    if (!r->c.json)
        fputs(str_c(&line), stdout);
    fflush(stdout);
    str_free(&line);
}

static void print_json(const struct repro *r, const struct plan_summary *s, int broken, const char *verdict)
{
    struct str out = STR_INIT;
    struct jw w;
    jw_init(&w, &out, true);
    jw_obj(&w);
    jw_kstr(&w, "manifest", r->m.name);
    jw_kstr(&w, "scale", r->m.scale);
    jw_ki64(&w, "stages", s->total);
    jw_ki64(&w, "up_to_date", s->up_to_date);
    jw_ki64(&w, "ran", s->ran);
    jw_ki64(&w, "failed", s->failed);
    jw_ki64(&w, "declined", s->declined);
    jw_ki64(&w, "checks", (int64_t)r->m.n_checks);
    jw_ki64(&w, "checks_failed", broken);
    jw_kstr(&w, "verdict", verdict);
    jw_end_obj(&w);
    printf("%s\n", str_c(&out));
    str_free(&out);
}

static int reproduce_run(struct repro *r, struct err *e)
{
    struct plan_summary s;
    struct err first = ERR_INIT;
    struct run_options ro = {.only = r->only, .force = r->force, .on_done = on_done, .ctx = r};
    struct str verdict = STR_INIT;
    int missing = 0, broken = 0;
    int rc = plan_run(&r->p, &ro, &s, &first);
    if (rc != 0) {
        *e = first;
        return -1;
    }
    // a part of the stages fills no table
    rc = make_reports(r, !r->c.json, &missing, &verdict, e) || (!*r->only && run_checks(r, !r->c.json, &broken, &verdict, e)) ? -1 : 0;
    if (rc == 0 && r->c.json)
        print_json(r, &s, broken, str_c(&verdict));
    else if (rc == 0) {
        printf("%d stages: %d up to date, %d ran (%d resumed), %d failed, %d declined; %s, results in %s/%s/%s, all of them in "
               "%s/index.html\n", s.total, s.up_to_date, s.ran, s.resumed, s.failed, s.declined,
               r->env.rt.be ? r->env.rt.be->desc : "nothing computed", r->out, r->m.name, r->m.scale, r->out);
        printf("RESULT (%s scale%s): %s\n", r->m.scale, strcmp(r->m.scale, "paper") ? ", not the paper's setting" : "",
               verdict.len ? str_c(&verdict) : "no report asked for");
    }
    str_free(&verdict);
    if (rc == 0 && s.failed) /* each was reported as it failed; the first decides the exit code */
        rc = ERR(e, first.code ? first.code : E_CHECK, "%d of %d stages failed (or wait for one that did), the first: %s", s.failed,
                 s.total, first.msg);
    if (rc == 0 && broken)
        rc = ERR(e, E_CHECK, "%d of %zu checks of '%s' do not hold", broken, r->m.n_checks, r->m.path);
    return rc;
}

#define REPRO_OPTS(r)                                                                                                                                            \
    {.name = "scale", .type = OPT_STR, .dst = &(r)->scale, .arg = "SCALE", .words = scale_words, .help = "ci, tiny, small or paper", .group = "Manifest"},      \
    {.name = "runs", .type = OPT_STR, .dst = &(r)->runs, .arg = "DIR", .help = "run directories, shared by all manifests", .group = "Manifest"},                \
    {.name = "out", .type = OPT_STR, .dst = &(r)->out, .arg = "DIR", .help = "tables and figures", .group = "Manifest"}
#define REPRO_INIT {.c = COMMON_INIT, .scale = "tiny", .only = "", .out = "results", .runs = "runs", .format = "text"}

static void put_quoted(struct str *s, const char *word)
{
    str_puts(s, " '");
    for (; *word; word++)
        str_puts(s, *word == '\'' ? "'\\''" : (char[2]){*word, 0});
    str_puts(s, "'");
}

static int export_jobs(struct repro *r, const char *dir, struct err *e)
{
    struct str command = STR_INIT;
    int jobs = 0;
    str_puts(&command, "dashlab reproduce");
    put_quoted(&command, r->manifest);
    const char *const pairs[][2] = {{"--scale", r->scale}, {"--runs", r->runs}, {"--out", r->out}, {"--device", r->c.device},
                                    {"--dtype", r->c.dtype}};
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        str_printf(&command, " %s", pairs[i][0]);
        put_quoted(&command, pairs[i][1]);
    }
    int rc = command.failed ? err_nomem(e, command.len, "a command") : export_slurm(&r->p, str_c(&command), dir, &jobs, e);
    str_free(&command);
    if (rc == 0)
        printf("%d jobs and their report in %s; queue them with %s/submit.sh, from the folder in which reproduce would run\n", jobs, dir,
               dir);
    return rc;
}

/* The largest run to make, in parts; E_ENV when it does not fit. With a rate that was given the device is another one: then only
 * --memory-limit is a limit. */
static int print_memory(const struct repro *r, struct err *e)
{
    const struct node *most = NULL;
    const double gib = 1 << 30;
    for (size_t i = 0; i < r->p.n; i++)
        if (r->p.nodes[i]->state != RUN_COMPLETE && (!most || r->p.nodes[i]->cost.memory_bytes > most->cost.memory_bytes))
            most = r->p.nodes[i];
    if (!most || most->cost.memory_bytes <= 0)
        return 0;
    bool known = r->c.memory_limit_bytes > 0 || r->gflops <= 0;
    printf("memory: at most %.2f GiB, for '%s': %.2f for weights, gradients and moments, %.2f for activations and other memory of a step",
           most->cost.memory_bytes / gib, most->stage->id, (most->cost.memory_bytes - most->cost.act_bytes) / gib,
           most->cost.act_bytes / gib);
    if (known)
        printf("; %.2f GiB are there", cost_limit(&r->env) / gib);
    printf("\n");
    return known ? cost_fits(&r->env, most, &most->cost, e) : 0;
}

int cmd_reproduce(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    const char *export = NULL;
    const struct opt opts[] = {REPRO_OPTS(&r),
                               {.name = "memory-limit", .type = OPT_STR, .dst = &r.limit, .arg = "SIZE",
                                .help = "refuse a stage that needs more, e.g. 40GiB; default: what the device has", .group = "Manifest"}, {.name = "only", .type = OPT_STR, .dst = &r.only, .arg = "ID,..",
                                                .help = "these stages and what they need", .group = "Manifest"},
                               {.name = "dry-run", .type = OPT_BOOL, .dst = &r.dry_run, .help = "print the plan, write nothing",
                                .group = "Manifest"}, {.name = "gflops", .type = OPT_F64, .dst = &r.gflops, .arg = "X", .lo = 0, .hi = 1e9,
                                                       .help = "rate for the times of --dry-run; 0 = half of what this machine's matrix "
                                                       "product does, measured for a moment", .group = "Manifest"},
                               {.name = "format", .type = OPT_STR, .dst = &r.format, .arg = "text|dot", .words = format_words,
                                .help = "of --dry-run", .group = "Manifest"}, {.name = "export", .type = OPT_STR, .dst = &export,
                                   .arg = "slurm", .words = export_words,
                                   .help = "write jobs into DIR (the second argument) instead of running", .group = "Manifest"},
                               {.name = "force", .type = OPT_BOOL, .dst = &r.force, .help = "run again what is complete",
                                .group = "Manifest"}, COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab reproduce MANIFEST [OPTIONS]",
                                  .about = "Runs what is missing of a manifest, then makes its tables and figures. Killed at any moment, "
                                  "the same command goes on.",
                                  .examples = "  dashlab reproduce experiments/table1.yaml\n  dashlab reproduce experiments/table1.yaml "
                                  "--scale ci", .opts = opts, .n_opts = ARRAY_LEN(opts), .min_pos = 1, .max_pos = 2};
    const char *pos[2] = {NULL, NULL};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &r.c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    if ((export != NULL) != (n == 2))
        return ERR(e, E_USAGE, export ? "--export slurm needs a folder: dashlab reproduce MANIFEST --export slurm DIR"
                   : "one manifest at a time; '%s' is too much", pos[1]);
    r.manifest = pos[0];
    r.estimate = r.dry_run && strcmp(r.format, "dot");
    TRY(repro_open(&r, e));
    int rc = 0;
    if (export) {
        rc = export_jobs(&r, pos[1], e);
    } else if (r.dry_run) {
        struct str s = STR_INIT;
        plan_print(&r.p, !strcmp(r.format, "dot"), &s);
        fputs(str_c(&s), stdout);
        if (r.estimate)
            rc = print_memory(&r, e);
        if (r.estimate)
            printf("times at %.0f GFLOP/s%s; a search is counted as one run\n", r.env.rate / 1e9,
                   r.gflops > 0 ? "" : " (half of this machine's matrix product, measured now)");
        str_free(&s);
    } else {
        rc = reproduce_run(&r, e);
    }
    repro_close(&r);
    return rc;
}

/* The ids of the stages that train models, as `only` wants them. */
static int train_stages(struct repro *r, struct err *e)
{
    struct str ids = STR_INIT;
    for (size_t i = 0; i < r->m.n_stages; i++)
        if (!strcmp(r->m.stages[i].kind->name, "train") && !r->m.stages[i].skipped)
            str_printf(&ids, "%s%s", ids.len ? "," : "", r->m.stages[i].id);
    int rc = ids.len ? str_ok(&ids, "stages", e) : ERR(e, E_USAGE, "'%s' has no stage of kind 'train' at scale %s", r->m.path, r->m.scale);
    r->only = arena_strdup(&r->p.arena, str_c(&ids));
    str_free(&ids);
    return rc;
}

/* Where the models lie, and what their training ended with. */
static void print_models(struct repro *r)
{
    for (size_t i = 0; i < r->p.n; i++) {
        const struct node *n = r->p.nodes[i];
        char path[1024];
        if (strcmp(n->kind->name, "train") || n->state != RUN_COMPLETE)
            continue;
        const char *loss = node_result(&r->p, n, "heldout_after"), *right = node_result(&r->p, n, "answer_accuracy");
        printf("%s: %s: held-out loss %s, %s of the answer tokens right\n", n->stage->id, node_out(path, n, ""), loss ? loss : "?",
               right ? right : "?");
    }
}

int cmd_train(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    const struct opt opts[] = {
        REPRO_OPTS(&r),
        {.name = "dry-run", .type = OPT_BOOL, .dst = &r.dry_run,
         .help = "print the plan with FLOPs, memory and time, write nothing", .group = "Manifest"},
        {.name = "gflops", .type = OPT_F64, .dst = &r.gflops, .arg = "X", .lo = 0, .hi = 1e9,
         .help = "rate for the times of --dry-run; 0 = measured",
         .group = "Manifest"},
        {.name = "memory-limit", .type = OPT_STR, .dst = &r.limit, .arg = "SIZE",
         .help = "refuse a stage that needs more, e.g. 40GiB; default: what the device has", .group = "Manifest"},
        {.name = "force", .type = OPT_BOOL, .dst = &r.force, .help = "train again what is complete", .group = "Manifest"},
        COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {
        .synopsis = "dashlab train MANIFEST [OPTIONS]",
        .about = "Trains from scratch: the stages of kind 'train' of a manifest and the data they need. Killed at any moment, the same "
                 "command goes on from the last checkpoint, which is in parts of at most 16 MiB; "
                 "`dashlab reproduce` of the same manifest then evaluates the model.",
        .examples = "  dashlab train experiments/tiny/teacher.yaml --device cuda --dtype bf16\n"
                    "  dashlab train experiments/tiny/teacher.yaml --scale ci",
        .opts = opts, .n_opts = ARRAY_LEN(opts),
        .min_pos = 1, .max_pos = 1};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &r.c, argc, argv, &r.manifest, &n, &done, e));
    if (done)
        return 0;
    r.estimate = r.dry_run;
    TRY(repro_open(&r, e));
    struct plan_summary s;
    struct err first = ERR_INIT;
    int rc = train_stages(&r, e);
    if (rc == 0 && r.dry_run) {
        struct str text = STR_INIT;
        plan_print(&r.p, false, &text);
        fputs(str_c(&text), stdout);
        str_free(&text);
        rc = print_memory(&r, e);
    } else if (rc == 0) {
        struct run_options ro = {.only = r.only, .force = r.force};
        rc = plan_run(&r.p, &ro, &s, &first);
        if (rc != 0 || s.failed)
            rc = ERR(e, first.code ? first.code : E_CHECK, "%s", first.msg);
        else if (!r.c.json)
            print_models(&r);
        else
            print_json(&r, &s, 0, "trained");
    }
    repro_close(&r);
    return rc;
}

int cmd_check(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    bool schema = false;
    const struct opt opts[] = {REPRO_OPTS(&r), {.name = "schema", .type = OPT_BOOL, .dst = &schema, .help = "print the manifest schema",
                                                .group = "Manifest"}, COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab check MANIFEST [--scale SCALE] | --schema",
                                  .about = "Validates a manifest: schema, references, inputs.",
                                  .examples = "  dashlab check experiments/table1.yaml --scale paper", .opts = opts,
                                  .n_opts = ARRAY_LEN(opts), .max_pos = 1};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &r.c, argc, argv, &r.manifest, &n, &done, e));
    if (done)
        return 0;
    if (schema) {
        struct str s = STR_INIT;
        registry_init(&r.reg, &r.env);
        manifest_schema(&s, &r.reg);
        fputs(str_c(&s), stdout);
        str_free(&s);
        return 0;
    }
    if (n < 1)
        return ERR(e, E_USAGE, "a manifest is needed, or --schema");
    r.estimate = true;
    r.gflops = 1; /* no times are printed */
    TRY(repro_open(&r, e));
    int missing = 0;
    for (size_t i = 0; i < r.m.n_inputs; i++) {
        bool have = file_exists(r.m.inputs[i].path) || dir_exists(r.m.inputs[i].path);
        printf("input %-12s %-40s %s\n", r.m.inputs[i].name, r.m.inputs[i].path, have ? "found" : "MISSING");
        missing += !have;
    }
    printf("%s: scale %s: %zu stages, %zu runs, %zu reports: valid\n", r.m.path, r.m.scale, r.m.n_stages, r.p.n, r.m.n_reports);
    const struct node *most = NULL;
    for (size_t i = 0; i < r.p.n; i++)
        if (!most || r.p.nodes[i]->cost.memory_bytes > most->cost.memory_bytes)
            most = r.p.nodes[i];
    if (most && most->cost.memory_bytes > 0)
        printf("memory: at most %.2f GiB (stage '%s' %s), weights, activations and optimiser state as planned; this machine has %.1f GiB\n",
               most->cost.memory_bytes / (1 << 30), most->stage->id, most->point, (double)sysconf(_SC_PHYS_PAGES) *
               (double)sysconf(_SC_PAGESIZE) / (1 << 30));
    else
        printf("memory: not known, the teacher is not there\n");
    repro_close(&r);
    return missing ? ERR(e, E_INPUT, "%d input%s missing", missing, missing == 1 ? " is" : "s are") : 0;
}

int cmd_report(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    const struct opt opts[] = {REPRO_OPTS(&r), {.name = "explain", .type = OPT_STR, .dst = &r.explain, .arg = "CELL",
                                                .help = "the runs and the arithmetic behind SELECTOR@BUDGET or LABEL:B=BUDGET",
                                                .group = "Manifest"}, COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab report MANIFEST [OPTIONS]",
                                  .about = "Tables and figures from the runs that are complete; computes nothing.",
                                  .examples = "  dashlab report experiments/table1.yaml\n  dashlab report experiments/table1.yaml "
                                  "--explain dash-2@3", .opts = opts, .n_opts = ARRAY_LEN(opts), .min_pos = 1, .max_pos = 1};
    size_t n;
    bool done;
    int missing = 0, broken = 0;
    struct str verdict = STR_INIT;
    TRY(cli_parse(&spec, &r.c, argc, argv, &r.manifest, &n, &done, e));
    if (done)
        return 0;
    TRY(repro_open(&r, e));
    int rc = 0;
    for (size_t i = 0; r.explain && rc == 0 && i < r.m.n_reports; i++) {
        struct str text = STR_INIT;
        rc = report_explain(&r.p, &r.m.reports[i], r.explain, &text, e);
        fputs(str_c(&text), stdout);
        str_free(&text);
    }
    if (rc == 0 && !r.explain)
        rc = make_reports(&r, true, &missing, &verdict, e) || run_checks(&r, true, &broken, &verdict, e) ? -1 : 0;
    if (rc == 0 && !r.explain)
        printf("RESULT (%s scale): %s\n", r.m.scale, str_c(&verdict));
    str_free(&verdict);
    if (rc == 0 && broken)
        rc = ERR(e, E_CHECK, "%d of %zu checks of '%s' do not hold", broken, r.m.n_checks, r.m.path);
    repro_close(&r);
    return rc;
}

/* ---- regress ---- */

/* Fields of a TSV line. */
static size_t fields(char *line, char **f, size_t cap)
{
    size_t n = 0;
    for (char *p = line; p && n < cap;) {
        f[n++] = p;
        p = strchr(p, '\t');
        if (p)
            *p++ = 0;
    }
    return n;
}

/* Compares two deterministic TSVs cell by cell: numbers within atol + rtol |ref|, other text equal. Prints what moved. */
static int compare_tsv(char *got, char *want, double atol, double rtol, int *cells, int *moved)
{
    char *gl = got, *wl = want, *head[128];
    size_t nh = 0;
    for (int line = 0; (gl && *gl) || (wl && *wl); line++) {
        char *gn = gl ? strchr(gl, '\n') : NULL, *wn = wl ? strchr(wl, '\n') : NULL, *gf[128], *wf[128];
        if (gn)
            *gn++ = 0;
        if (wn)
            *wn++ = 0;
        size_t ng = gl && *gl ? fields(gl, gf, 128) : 0, nw = wl && *wl ? fields(wl, wf, 128) : 0;
        if (ng != nw) {
            printf("line %d: %zu fields, stored %zu\n", line + 1, ng, nw);
            ++*moved;
        }
        for (size_t i = 0; i < MIN(ng, nw); i++) {
            double a, b;
            bool num = parse_f64(gf[i], &a) && parse_f64(wf[i], &b);
            bool same = num ? fabs(a - b) <= atol + rtol * fabs(b) : !strcmp(gf[i], wf[i]);
            ++*cells;
            if (same)
                continue;
            printf("%-28s %-20s now %s, stored %s\n", ng > 1 ? gf[1] : "", line && i < nh ? head[i] : "header", gf[i], wf[i]);
            ++*moved;
        }
        if (line == 0) {
            nh = nw;
            memcpy(head, wf, sizeof(char *) * nw);
        }
        gl = gn;
        wl = wn;
    }
    return 0;
}

static int stored_values(const char *path, struct str *text, struct err *e)
{
    TRY(file_read(path, 1 << 22, text, e));
    if (text->len == 0 || memchr(text->p, 0, text->len) || strcspn(text->p, "\t\n") == text->len || text->p[strcspn(text->p, "\t\n")] != '\t')
        return ERR(e, E_INPUT, "'%s' is not a table of tab-separated values (give the NAME.det.tsv that an earlier run made)", path);
    return 0;
}

int cmd_regress(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    double atol = 1e-6, rtol = 1e-6;
    r.scale = "ci";
    const struct opt opts[] = {REPRO_OPTS(&r), {.name = "against", .type = OPT_STR, .dst = &r.against, .arg = "FILE",
                                                .help = "stored NAME.det.tsv of the first report", .group = "Manifest"},
                               {.name = "atol", .type = OPT_F64, .dst = &atol, .arg = "X", .lo = 0, .hi = 1e9,
                                .help = "absolute tolerance of numbers", .group = "Manifest"}, {.name = "rtol", .type = OPT_F64,
                                   .dst = &rtol, .arg = "X", .lo = 0, .hi = 1e9, .help = "relative tolerance of numbers",
                                   .group = "Manifest"}, COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab regress MANIFEST --against FILE [--scale ci]",
                                  .about = "Reproduces a manifest and compares its first table with stored values. On the CPU results "
                                  "have the same bits for any thread count and instruction set, so the tolerances are tight.",
                                  .examples = "  dashlab regress experiments/table1.yaml --scale ci --against experiments/table1.ci.tsv",
                                  .opts = opts, .n_opts = ARRAY_LEN(opts), .min_pos = 1, .max_pos = 1};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &r.c, argc, argv, &r.manifest, &n, &done, e));
    if (done)
        return 0;
    if (!r.against)
        return ERR(e, E_USAGE, "--against FILE is needed");
    struct str got = STR_INIT, want = STR_INIT;
    if (stored_values(r.against, &want, e) != 0 || repro_open(&r, e) != 0) { /* before anything is computed */
        str_free(&want);
        return -1;
    }
    char base[1024], dir[1024], file[1024], name[300];
    int cells = 0, moved = 0;
    int rc = r.m.n_reports ? reproduce_run(&r, e) : ERR(e, E_USAGE, "'%s' has no report to compare", r.manifest);
    if (rc == 0) {
        path_join(base, r.out, r.m.name);
        path_join(dir, base, r.m.scale);
        snprintf(name, sizeof name, "%s.det.tsv", r.m.reports[0].name);
        rc = file_read(path_join(file, dir, name), 1 << 22, &got, e);
    }
    if (rc == 0) {
        compare_tsv(got.p, want.p, atol, rtol, &cells, &moved);
        printf("regress: %d cells compared with %s (atol %g, rtol %g), %d moved\n", cells, r.against, atol, rtol, moved);
        if (moved)
            rc = ERR(e, E_CHECK, "%d of %d cells moved", moved, cells);
    }
    str_free(&got);
    str_free(&want);
    repro_close(&r);
    return rc ? -1 : 0;
}
