/* How long making RULER's samples takes, task by task: size search, random draws and text, sentence boundaries, counting of tokens,
 * writing. */
#include "cli/bench_ruler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Every task by itself, so that none finds the sentences of another split already. */
static int measure(struct ruler_gen_opts *o, const char *dir, struct row *rows, size_t *n, double *load, struct err *e)
{
    const char *const *names = ruler_task_names(), *given = o->tasks;
    *n = 0;
    for (size_t i = 0; names[i]; i++) {
        const char *at = given ? strstr(given, names[i]) : names[i];
        size_t len = strlen(names[i]);
        if (!at || (given && ((at > given && at[-1] != ',') || (at[len] && at[len] != ','))) ||
            (!given && strncmp(names[i], "qa_", 3) == 0))
            continue;
        struct row *r = &rows[(*n)++];
        *r = (struct row){.task = names[i]};
        o->tasks = names[i];
        o->timing = &r->t;
        TRY(ruler_gen(o, dir, e));
        *load += r->t.load;
    }
    return *n ? 0 : ERR(e, E_USAGE, "--tasks '%s' names no task", given ? given : "");
}

static void print_all(const struct row *rows, size_t n, double load, bool json)
{
    struct str out = STR_INIT;
    struct jw w;
    struct row sum = {.task = "all"};
    jw_init(&w, &out, true);
    jw_obj(&w);
    jw_kf64(&w, "load_s", load / (double)n);
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
        printf("words, essay and sentence parameters: %.1f ms to load\n", 1e3 * load / (double)n);
    str_free(&out);
}

int bench_cmd_ruler(int argc, char **argv, struct err *e)
{
    static const char *const flavours[] = {"compact", "nvidia", NULL};
    struct common c = COMMON_INIT;
    const char *tokenizer = NULL, *tasks = NULL, *flavour = "compact";
    int64_t samples = 100, length = 1024;
    const struct opt opts[] = {{.name = "tokenizer", .type = OPT_STR, .dst = &tokenizer, .arg = "PATH",
                                .help = "model folder, tokenizer.json, or bytes4; default: the bundled teacher's", .group = "Bench"},
                               {.name = "length", .type = OPT_I64, .dst = &length, .arg = "N", .lo = 1, .hi = 1 << 24,
                                .help = "tokens of a sample", .group = "Bench"}, {.name = "samples", .type = OPT_I64, .dst = &samples,
                                   .arg = "N", .lo = 1, .hi = 1e6, .help = "of each task", .group = "Bench"},
                               {.name = "tasks", .type = OPT_STR, .dst = &tasks, .arg = "T,..",
                                .help = "default: the 11 without question files", .group = "Bench"},
                               {.name = "flavour", .type = OPT_STR, .dst = &flavour, .arg = "NAME", .words = flavours,
                                .help = "compact or nvidia", .group = "Bench"}, COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab bench ruler [OPTIONS]",
                                  .about = "Making of RULER's samples: size search, draws, sentence boundaries, counting, writing. One "
                                  "thread.", .examples = "  dashlab bench ruler\n  dashlab bench ruler --flavour nvidia --length 4096",
                                  .opts = opts, .n_opts = ARRAY_LEN(opts)};
    struct row rows[RULER_MAX_TASKS];
    char data[1024], teacher[1024], dir[] = "/tmp/dashlab-bench-XXXXXX";
    struct tok *tok = NULL;
    double load = 0;
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    TRY(cli_bundled(data, "ruler/data", e));
    struct ruler_gen_opts o = {.counter = {ruler_bytes4_count, NULL}, .lengths = &length, .n_lengths = 1, .tasks = tasks,
                               .samples = samples, .seed = c.seed, .flavour = flavour, .data_dir = data};
    if (!tokenizer || strcmp(tokenizer, "bytes4") != 0) {
        if (!tokenizer)
            TRY(cli_bundled(teacher, "experiments/tiny/teacher", e));
        TRY(tok_load(&tok, tokenizer ? tokenizer : teacher, NULL, e));
        o.counter = (struct ruler_counter){ruler_tok_count, tok};
    }
    int rc = mkdtemp(dir) ? 0 : err_sys(e, "create", dir);
    rc = rc ? rc : measure(&o, dir, rows, &n, &load, e);
    if (rc == 0)
        print_all(rows, n, load, c.json);
    struct err ignored = ERR_INIT;
    remove_tree(dir, &ignored);
    tok_free(tok);
    return rc;
}
