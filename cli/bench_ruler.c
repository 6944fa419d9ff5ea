/* How long making RULER's samples takes, task by task: size search, random draws and text, sentence boundaries, counting of tokens,
 * writing. */
#include "cli/bench_ruler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/ruler_glue.h"
#include "cli/cli.h"
#include "core/fs.h"
#include "core/jwrite.h"

struct row {
    const char *task;
    struct ruler_timing t;
};

static double total(const struct ruler_timing *t)
{
    return t->search + t->draw + t->split + t->tokenise + t->write;
}

static void print_row(const struct row *r, bool json, struct jw *w)
{
    const struct ruler_timing *t = &r->t;
    double s = total(t);
    if (!json) {
        printf("%-16s %9.0f %9.2f %9.1f %9.1f %9.1f %9.1f %9.1f\n", r->task, s > 0 ? (double)t->samples / s : 0,
               t->tokenise > 0 ? (double)t->tokens / t->tokenise / 1e6 : 0, 1e3 * t->search, 1e3 * t->draw, 1e3 * t->split,
               1e3 * t->tokenise, 1e3 * t->write);
        return;
    }
    jw_obj(w);
    jw_kstr(w, "task", r->task);
    jw_ki64(w, "samples", t->samples);
    jw_ki64(w, "tokens_counted", t->tokens);
    jw_ki64(w, "texts_split", t->splits);
    jw_kf64(w, "samples_per_s", s > 0 ? (double)t->samples / s : 0);
    jw_kf64(w, "search_s", t->search);
    jw_kf64(w, "draw_s", t->draw);
    jw_kf64(w, "split_s", t->split);
    jw_kf64(w, "tokenise_s", t->tokenise);
    jw_kf64(w, "write_s", t->write);
    jw_end_obj(w);
}

enum { QA2_SAMPLES = 100 };
struct whole {
    double load, start, cpu; /* seconds: words and essay; the tokenizer; all tasks in one call, with both */
    int64_t rss;             /* bytes, of the process at its largest */
};

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static bool names_task(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *s = list; s && *s; s += strcspn(s, ","), s += *s == ',')
        if (strcspn(s, ",") == n && strncmp(s, name, n) == 0)
            return true;
    return false;
}

/* Every task by itself, so that none finds the sentences of another split already; then all of them in one call, as a user makes them. */
static int measure(struct ruler_gen_opts *o, const char *dir, struct row *rows, size_t *n, struct whole *w, struct err *e)
{
    const char *const *names = ruler_task_names(), *given = o->tasks;
    int64_t samples = o->samples;
    struct str all = STR_INIT;
    char sub[1024];
    int rc = 0;
    *n = 0;
    w->load = 0;
    for (size_t i = 0; !rc && names[i]; i++) {
        bool qa1 = !strcmp(names[i], "qa_1"), qa2 = !strcmp(names[i], "qa_2");
        if (given ? !names_task(given, names[i]) : (qa1 && !o->squad) || (qa2 && !o->hotpotqa))
            continue;
        struct row *r = &rows[(*n)++];
        *r = (struct row){.task = names[i]};
        o->tasks = names[i];
        o->timing = &r->t;
        o->samples = qa2 ? MIN(samples, QA2_SAMPLES) : samples;
        rc = ruler_gen(o, path_join(sub, dir, names[i]), e);
        w->load += r->t.load;
        if (!qa2)
            str_printf(&all, "%s%s", all.len ? "," : "", names[i]);
    }
    if (!rc && !*n)
        rc = ERR(e, E_USAGE, "--tasks '%s' names no task", given ? given : "");
    o->timing = NULL;
    o->samples = samples;
    o->tasks = str_c(&all);
    double start = cpu_s();
    if (!rc && all.len)
        rc = ruler_gen(o, path_join(sub, dir, "all"), e);
    o->samples = MIN(samples, QA2_SAMPLES);
    o->tasks = "qa_2";
    if (!rc && *n && !strcmp(rows[*n - 1].task, "qa_2")) /* its file has fewer questions: another call */
        rc = ruler_gen(o, path_join(sub, dir, "all2"), e);
    w->cpu = w->start + cpu_s() - start;
    str_free(&all);
    return rc;
}

static void print_all(const struct row *rows, size_t n, const struct whole *whole, bool json)
{
    struct str out = STR_INIT;
    struct jw w;
    struct row sum = {.task = "all"};
    jw_init(&w, &out, true);
    jw_obj(&w);
    jw_kf64(&w, "load_s", whole->load / (double)n);
    jw_kf64(&w, "tokenizer_s", whole->start);
    jw_kf64(&w, "cpu_s", whole->cpu);
    jw_ki64(&w, "peak_bytes", whole->rss);
    jw_key(&w, "tasks");
    jw_arr(&w);
    if (!json)
        printf("%-16s %9s %9s %9s %9s %9s %9s %9s\n", "task", "samples/s", "Mtoken/s", "search ms", "draw ms", "split ms", "count ms",
               "write ms");
    for (size_t i = 0; i < n; i++) {
        print_row(&rows[i], json, &w);
        sum.t.search += rows[i].t.search;
        sum.t.draw += rows[i].t.draw;
        sum.t.split += rows[i].t.split;
        sum.t.tokenise += rows[i].t.tokenise;
        sum.t.write += rows[i].t.write;
        sum.t.samples += rows[i].t.samples;
        sum.t.tokens += rows[i].t.tokens;
        sum.t.splits += rows[i].t.splits;
    }
    print_row(&sum, json, &w);
    jw_end_arr(&w);
    jw_end_obj(&w);
    if (json)
        printf("%s\n", str_c(&out));
    else
        printf("start: tokenizer %.1f ms; words, essay and sentence parameters %.1f ms\n"
               "all tasks in one call, with the start: %.2f CPU seconds; the process held %.1f MB at most\n",
               1e3 * whole->start, 1e3 * whole->load / (double)n, whole->cpu, 1e-6 * (double)whole->rss);
    str_free(&out);
}

static int bench(struct ruler_gen_opts *o, const char *tokenizer, bool json, struct err *e)
{
    struct row rows[RULER_MAX_TASKS];
    struct whole w = {.start = 0};
    struct rusage u;
    struct tok *tok = NULL;
    struct ruler_tokens tokens = {0};
    char dir[] = "/tmp/dashlab-bench-XXXXXX";
    size_t n = 0;
    double start = cpu_s();
    o->counter = (struct ruler_counter){ruler_bytes4_count, NULL};
    if (strcmp(tokenizer, "bytes4") != 0) {
        TRY(tok_load(&tok, tokenizer, NULL, e));
        if (ruler_tokens_open(&tokens, tok, o->flavour, &o->counter, e)) {
            tok_free(tok);
            return -1;
        }
    }
    w.start = cpu_s() - start;
    int rc = mkdtemp(dir) ? 0 : err_sys(e, "create", dir);
    rc = rc ? rc : measure(o, dir, rows, &n, &w, e);
    getrusage(RUSAGE_SELF, &u);
    w.rss = (int64_t)u.ru_maxrss * 1024;
    if (rc == 0)
        print_all(rows, n, &w, json);
    struct err ignored = ERR_INIT;
    remove_tree(dir, &ignored);
    ruler_tokens_close(&tokens);
    tok_free(tok);
    return rc;
}

int bench_cmd_ruler(int argc, char **argv, struct err *e)
{
    static const char *const flavours[] = {"compact", "nvidia", NULL};
    struct common c = COMMON_INIT;
    const char *tokenizer = NULL, *tasks = NULL, *flavour = "compact", *essays = NULL, *squad = NULL, *hotpotqa = NULL;
    int64_t samples = 100, length = 1024;
    const struct opt opts[] = {{.name = "tokenizer", .type = OPT_STR, .dst = &tokenizer, .arg = "PATH",
                                .help = "model folder, tokenizer.json, or bytes4; default: the bundled teacher's", .group = "Bench"},
                               {.name = "length", .type = OPT_I64, .dst = &length, .arg = "N", .lo = 1, .hi = 1 << 24,
                                .help = "tokens of a sample", .group = "Bench"}, {.name = "samples", .type = OPT_I64, .dst = &samples,
                                   .arg = "N", .lo = 1, .hi = 1e6, .help = "of each task", .group = "Bench"},
                               {.name = "tasks", .type = OPT_STR, .dst = &tasks, .arg = "T,..",
                                .help = "default: the 11 without question files, and those whose file is given", .group = "Bench"},
                               {.name = "essays", .type = OPT_STR, .dst = &essays, .arg = "FILE", .help = "haystack text; default: bundled",
                                .group = "Bench"},
                               {.name = "squad", .type = OPT_STR, .dst = &squad, .arg = "FILE", .help = "questions of qa_1",
                                .group = "Bench"},
                               {.name = "hotpotqa", .type = OPT_STR, .dst = &hotpotqa, .arg = "FILE",
                                .help = "questions of qa_2 (at most 100 samples)", .group = "Bench"},
                               {.name = "flavour", .type = OPT_STR, .dst = &flavour, .arg = "NAME", .words = flavours,
                                .help = "compact or nvidia", .group = "Bench"}, COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab bench ruler [OPTIONS]",
                                  .about = "Making of RULER's samples: size search, draws, sentence boundaries, counting, writing. One "
                                  "thread.", .examples = "  dashlab bench ruler\n  dashlab bench ruler --flavour nvidia --length 4096",
                                  .opts = opts, .n_opts = ARRAY_LEN(opts)};
    char data[1024], teacher[1024];
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    TRY(cli_bundled(data, "ruler/data", e));
    if (!tokenizer) {
        TRY(cli_bundled(teacher, "experiments/tiny/teacher", e));
        tokenizer = teacher;
    }
    struct ruler_gen_opts o = {.lengths = &length, .n_lengths = 1, .tasks = tasks, .samples = samples, .seed = c.seed, .flavour = flavour,
                               .data_dir = data, .essays = essays, .squad = squad, .hotpotqa = hotpotqa};
    return bench(&o, tokenizer, c.json, e);
}
