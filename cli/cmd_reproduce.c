/* reproduce and train: what is to be made of a manifest, or of a collection of them. */
#include <stdio.h>
#include <string.h>

#include "cli/repro.h"
#include "cli/stages_cost.h"
#include "core/log.h"
#include "core/prov.h"
#include "experiments/export.h"
#include "experiments/show.h"

static const char *const export_words[] = {"slurm", "make", NULL};
static const char *const format_words[] = {"text", "dot", NULL};

static void put_quoted(struct str *s, const char *word)
{
    str_puts(s, " '");
    for (; *word; word++)
        str_puts(s, *word == '\'' ? "'\\''" : (char[2]){*word, 0});
    str_puts(s, "'");
}

/* The command line that reproduces one manifest as this one would, with this many threads (0: all); host: for runs that need no device. */
static const char *command_for(struct repro *r, const char *manifest, int64_t threads, bool host, struct arena *a)
{
    struct str s = STR_INIT;
    const char *const pairs[][2] = {
        {"--scale", r->scale}, {"--runs", r->runs}, {"--out", r->out}, {"--device", host ? "cpu" : r->c.device},
        {"--dtype", host || !strcmp(r->c.device, "cpu") ? NULL : cli_dtype(&r->c)}};
    str_puts(&s, "dashlab reproduce");
    put_quoted(&s, manifest);
    for (size_t i = 0; i < ARRAY_LEN(pairs) && pairs[i][1]; i++) {
        str_printf(&s, " %s", pairs[i][0]);
        put_quoted(&s, pairs[i][1]);
    }
    if (threads)
        str_printf(&s, " --threads %" PRId64, threads);
    if (r->limit) {
        str_puts(&s, " --memory-limit");
        put_quoted(&s, r->limit);
    }
    const char *out = s.failed ? NULL : arena_strdup(a, str_c(&s));
    str_free(&s);
    return out;
}

static int export_jobs(struct repro *r, const char *format, const char *dir, struct err *e)
{
    struct arena a;
    bool make = !strcmp(format, "make");
    int64_t threads = make && !r->c.threads ? 1 : r->c.threads; /* make -j starts as many commands as there are cores */
    int jobs = 0;
    arena_init(&a, 0);
    struct export_command *command = arena_array(&a, r->n_parts, sizeof *command);
    const char *whole = command_for(r, r->manifest, r->c.threads, false, &a);
    for (size_t i = 0; command && i < r->n_parts; i++)
        command[i] = (struct export_command){.device = command_for(r, r->part[i].path, threads, false, &a),
                                             .host = command_for(r, r->part[i].path, threads, true, &a)};
    int rc = arena_ok(&a, "commands", e);
    if (rc == 0)
        rc = export_plans(make ? EXPORT_MAKE : EXPORT_SLURM, r->plans, r->n_parts, command, whole, repro_name(r), dir, &jobs, e);
    if (rc == 0 && make)
        printf("%d runs and their report in %s; make them with make -j N -f %s/Makefile, from the folder in which reproduce would run\n",
               jobs, dir, dir);
    else if (rc == 0)
        printf("%d jobs and their report in %s; queue them with %s/submit.sh, from the folder in which reproduce would run\n", jobs, dir,
               dir);
    arena_free(&a);
    return rc;
}

/* The largest run to make, in parts; E_ENV when it does not fit. With a rate that was given the device is another one: then only
 * --memory-limit is a limit. */
static int print_memory(const struct repro *r, struct err *e)
{
    const struct node *most = NULL;
    const double gib = 1 << 30;
    for (size_t k = 0; k < r->n_parts; k++)
        for (size_t i = 0; i < r->part[k].p.n; i++) {
            const struct node *n = r->part[k].p.nodes[i];
            most = n->state != RUN_COMPLETE && !n->stage->borrow && (!most || n->cost.memory_bytes > most->cost.memory_bytes) ? n : most;
        }
    if (!most || most->cost.memory_bytes <= 0)
        return 0;
    bool known = r->c.memory_limit_bytes > 0 || (r->gflops <= 0 && !r->gpu);
    printf("memory: at most %.2f GiB, for '%s': %.2f for weights, gradients and moments, %.2f for activations and other memory of a step",
           most->cost.memory_bytes / gib, most->stage->id, (most->cost.memory_bytes - most->cost.act_bytes) / gib,
           most->cost.act_bytes / gib);
    if (known)
        printf("; %.2f GiB are there", cost_limit(&r->env) / gib);
    printf("\n");
    return known ? cost_fits(&r->env, most, &most->cost, e) : 0;
}

/* What the runs would be computed in, and who says so. */
static void print_dtype(const struct repro *r)
{
    bool known = r->env.rt.be && !r->gpu, gpu = known ? strcmp(r->env.rt.be->ops->name, "cpu") != 0 : strcmp(r->c.device, "cpu") != 0;
    const char *who = r->c.dtype ? "--dtype" : *r->part[0].m.dtype ? "the manifest's scale" : "the default";
    if (gpu || r->gpu)
        printf("dtype %s (%s)%s\n", cli_dtype(&r->c), who, known || r->gpu ? "" : "; f32 on the CPU");
    else
        printf("dtype f32 (the CPU's; a GPU: %s, %s)\n", cli_dtype(&r->c), who);
}

static int dry_run(struct repro *r, bool dot, struct err *e)
{
    struct str s = STR_INIT;
    struct runs_index ix;
    int kept = 0;
    for (size_t i = 0; *r->only && i < r->n_parts; i++)
        kept += plan_keep(&r->part[i].p, r->only);
    if (*r->only && !kept)
        return ERR(e, E_USAGE, "--only '%s' names no stage of '%s'", r->only, r->manifest);
    TRY(runs_index_open(&ix, r->runs, e));
    if (dot)
        plans_dot(r->plans, r->n_parts, repro_name(r), &s);
    else
        plans_print(r->plans, r->n_parts, &ix, &s);
    fputs(str_c(&s), stdout);
    if (!dot && r->gpu)
        printf("times on %s in %s; %s\n", r->gpu, cli_dtype(&r->c), r->env.rates_about);
    else if (!dot && r->gflops > 0)
        printf("times at %.0f GFLOP/s; what decoding reads is not counted\n", r->env.rate / 1e9);
    else if (!dot)
        printf("times at %.0f GFLOP/s and, where decoding reads, %.1f GB/s: half of this machine's matrix product and copy, measured "
               "now\n", r->env.rate / 1e9, r->env.bandwidth / 1e9);
    if (!dot)
        print_dtype(r);
    str_free(&s);
    runs_index_close(&ix);
    return dot ? 0 : print_memory(r, e);
}

/* One manifest after another; one that fails does not stop the others. */
static int run_all(struct repro *r, struct repro_how *how, struct err *e)
{
    struct run_session session;
    struct err first = ERR_INIT;
    struct str incomplete = STR_INIT;
    int failed = 0, taken = 0, rc = 0;
    run_session_open(&session);
    how->session = &session;
    for (size_t i = 0; rc == 0 && i < r->n_parts; i++) {
        struct part *t = &r->part[i];
        struct err own = ERR_INIT;
        if (*r->only && plan_wanted(&t->p, r->only) == 0)
            continue;
        taken++;
        if (!how->json)
            printf("== %s\n", t->m.name);
        if (repro_run(r, t, how, &own) == 0)
            continue;
        if (own.code == E_INTERRUPTED) {
            *e = own;
            rc = -1;
            break;
        }
        log_msg(LOG_ERROR, "%s: %s", t->m.name, own.msg);
        str_printf(&incomplete, "%s%s", failed++ ? ", " : "", t->m.name);
        if (!first.code)
            first = own;
    }
    run_session_close(&session);
    if (rc == 0 && !taken)
        rc = ERR(e, E_USAGE, "--only '%s' names no stage of these manifests", r->only);
    if (rc == 0 && !how->json)
        printf("%d manifests, %d not complete%s%s\n", taken, failed, failed ? ": " : "", str_c(&incomplete));
    if (rc == 0 && failed)
        rc = ERR(e, first.code, "%d of %d manifests are not complete (%s), the first: %s", failed, taken, str_c(&incomplete), first.msg);
    str_free(&incomplete);
    return rc;
}

/* A collection of which no manifest can make a run: one error, not one for each. */
static int all_stuck(struct repro *r, struct err *e)
{
    struct err first = ERR_INIT;
    for (size_t i = 0; i < r->n_parts; i++) {
        struct err own = ERR_INIT;
        if (plan_wanted(&r->part[i].p, r->only) == 0)
            continue;
        if (repro_stuck(r, &r->part[i], &own) == 0)
            return 0;
        if (!first.code)
            first = own;
    }
    if (!first.code)
        return 0;
    *e = first;
    return -1;
}

static int run(struct repro *r, bool force, bool wait, bool reports, struct err *e)
{
    struct str json = STR_INIT;
    struct jw w;
    struct repro_how how = {.force = force, .wait = wait, .no_reports = !reports, .json = r->c.json ? &w : NULL};
    TRY(all_stuck(r, e));
    jw_init(&w, &json, true);
    if (r->all.n_parts)
        jw_arr(&w);
    int rc = r->all.n_parts ? run_all(r, &how, e) : repro_run(r, r->part, &how, e);
    if (r->all.n_parts)
        jw_end_arr(&w);
    if (r->c.json && json.len)
        printf("%s\n", str_c(&json));
    str_free(&json);
    return rc;
}

int cmd_reproduce(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    const char *export = NULL, *format = "text";
    bool dry = false, force = false, wait = false, reports = true;
    const struct opt opts[] = {
        REPRO_OPTS(&r),
        MEMORY_OPT(&r),
        {.name = "only", .type = OPT_STR, .dst = &r.only, .arg = "ID,..", .help = "these stages and what they need", .group = "Manifest"},
        {.name = "dry-run",
         .type = OPT_BOOL,
         .dst = &dry,
         .help = "print the plan, with the reason for each run; write nothing",
         .group = "Manifest"},
        {.name = "gflops",
         .type = OPT_F64,
         .dst = &r.gflops,
         .arg = "X",
         .lo = 0,
         .hi = 1e9,
         .help = "rate for the times of --dry-run; 0 = half of what this machine's matrix product does, measured for a moment",
         .group = "Manifest"},
        {.name = "on",
         .type = OPT_STR,
         .dst = &r.gpu,
         .arg = "DEVICE",
         .help = "times of --dry-run on this device, from rates measured on it (h200)",
         .group = "Manifest"},
        {.name = "format",
         .type = OPT_STR,
         .dst = &format,
         .arg = "text|dot",
         .words = format_words,
         .help = "of --dry-run",
         .group = "Manifest"},
        {.name = "export",
         .type = OPT_STR,
         .dst = &export,
         .arg = "slurm|make",
         .words = export_words,
         .help = "write jobs for Slurm, or a Makefile, into DIR (the second argument) instead of running",
         .group = "Manifest"},
        {.name = "force", .type = OPT_BOOL, .dst = &force, .help = "run again what is complete", .group = "Manifest"},
        {.name = "wait", .type = OPT_BOOL, .dst = &wait, .help = "wait for runs that another process is at", .group = "Manifest"},
        {.name = "reports",
         .type = OPT_BOOL,
         .dst = &reports,
         .help = "make tables and figures; --no-reports leaves them",
         .group = "Manifest"},
        COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {
        .synopsis = "dashlab reproduce MANIFEST [OPTIONS]",
        .about = "Runs what is missing of a manifest (a file, or a name in experiments/ such as table1), or of a collection of "
                 "them, then makes its tables and figures. Killed at any moment, the same command goes on.",
        .examples = "  dashlab reproduce experiments/table1.yaml\n  dashlab reproduce experiments/all.yaml --scale ci\n"
                    "  dashlab reproduce experiments/all.yaml --scale paper --dry-run --on h200\n"
                    "  dashlab reproduce experiments/all.yaml --export make jobs && make -j 32 -f jobs/Makefile",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .min_pos = 1,
        .max_pos = 2};
    const char *pos[2] = {NULL, NULL};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &r.c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    if ((export != NULL) != (n == 2))
        return ERR(e, E_USAGE,
                   export ? "--export %s needs a folder: dashlab reproduce MANIFEST --export %s DIR"
                          : "one manifest at a time; '%s' is too much",
                   export ? export : pos[1], export);
    if (export && (*r.only || force || dry))
        return ERR(e, E_USAGE, "--export writes every run that is missing: it takes no --only, --force or --dry-run");
    r.manifest = pos[0];
    r.estimate = r.env.by_name = dry;
    TRY(repro_open(&r, e));
    int rc = export ? export_jobs(&r, export, pos[1], e) : dry ? dry_run(&r, !strcmp(format, "dot"), e) : run(&r, force, wait, reports, e);
    repro_close(&r);
    return rc;
}

/* ---- train ---- */

/* The ids of the stages that train models, as `only` wants them. */
static int train_stages(struct repro *r, struct part *t, struct err *e)
{
    struct str ids = STR_INIT;
    for (size_t i = 0; i < t->m.n_stages; i++)
        if (!strcmp(t->m.stages[i].kind->name, "train") && !t->m.stages[i].skipped)
            str_printf(&ids, "%s%s", ids.len ? "," : "", t->m.stages[i].id);
    int rc = ids.len ? str_ok(&ids, "stages", e) : ERR(e, E_USAGE, "'%s' has no stage of kind 'train' at scale %s", t->m.path, t->m.scale);
    r->only = arena_strdup(&t->p.arena, str_c(&ids));
    str_free(&ids);
    return rc;
}

/* Where the models lie, and what their training ended with. */
static void print_models(struct part *t)
{
    for (size_t i = 0; i < t->p.n; i++) {
        const struct node *n = t->p.nodes[i];
        char path[1024];
        if (strcmp(n->kind->name, "train") || n->state != RUN_COMPLETE)
            continue;
        const char *loss = node_result(&t->p, n, "heldout_after"), *right = node_result(&t->p, n, "answer_accuracy");
        printf("%s: %s: held-out loss %s, %s of the answer tokens right\n", n->stage->id, node_out(path, n, ""), loss ? loss : "?",
               right ? right : "?");
    }
}

int cmd_train(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    struct part *t;
    bool dry = false, force = false;
    const struct opt opts[] = {
        REPRO_OPTS(&r),
        {.name = "dry-run", .type = OPT_BOOL, .dst = &dry,
         .help = "print the plan with FLOPs, memory and time, write nothing", .group = "Manifest"},
        {.name = "gflops", .type = OPT_F64, .dst = &r.gflops, .arg = "X", .lo = 0, .hi = 1e9,
         .help = "rate for the times of --dry-run; 0 = measured",
         .group = "Manifest"},
        MEMORY_OPT(&r),
        {.name = "force", .type = OPT_BOOL, .dst = &force, .help = "train again what is complete", .group = "Manifest"},
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
    r.estimate = dry;
    TRY(repro_open(&r, e));
    struct plan_summary s;
    struct err first = ERR_INIT;
    int rc = repro_single(&r, "train", &t, e) || train_stages(&r, t, e) || (!dry && repro_stuck(&r, t, e)) ? -1 : 0;
    if (rc == 0 && dry) {
        struct str text = STR_INIT;
        plan_keep(&t->p, r.only);
        plan_print(&t->p, false, &text);
        fputs(str_c(&text), stdout);
        str_free(&text);
        rc = print_memory(&r, e);
    } else if (rc == 0) {
        struct run_options ro = {.only = r.only, .force = force};
        rc = plan_run(&t->p, &ro, &s, &first);
        if (rc != 0 || s.failed)
            rc = ERR(e, first.code ? first.code : E_CHECK, "%s", first.msg);
        else if (!r.c.json)
            print_models(t);
        else
            repro_print_json(t, &s, "trained");
    }
    repro_close(&r);
    return rc;
}
