/* ruler gen, run, score, compare. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ruler_glue.h"
#include "cli/stages.h"
#include "core/pool.h"

static const char *const flavours[] = {"compact", "nvidia", "lm-eval", NULL};
static const char *const layouts[] = {"shared", "drawn", NULL};
static const char *const orders[] = {"forward", "reversed", NULL};

static int lengths_of(const char *text, int64_t *out, size_t cap, size_t *n, struct err *e)
{
    *n = 0;
    for (const char *s = text; *s; s += strcspn(s, ","), s += *s == ',') {
        char item[32];
        snprintf(item, sizeof item, "%.*s", (int)MIN(strcspn(s, ","), sizeof item - 1), s);
        if (*n == cap || !parse_i64(item, &out[*n]) || out[*n] < 1)
            return ERR(e, E_USAGE, "--length: '%s' is not a list of at most %zu lengths, such as 4096,8192", text, cap);
        ++*n;
    }
    return *n ? 0 : ERR(e, E_USAGE, "--length N is needed");
}

/* "I/N", I from 0. */
static int chunks_of(const char *text, int64_t *i, int64_t *n, struct err *e)
{
    char first[24];
    const char *slash = strchr(text, '/');
    snprintf(first, sizeof first, "%.*s", slash ? (int)MIN((size_t)(slash - text), sizeof first - 1) : 0, text);
    if (!slash || !parse_i64(first, i) || !parse_i64(slash + 1, n) || *i < 0 || *n < 1 || *i >= *n)
        return ERR(e, E_USAGE, "--chunks: '%s' is not I/N with I from 0 to N - 1", text);
    return 0;
}

struct gen_args {
    const char *tokenizer, *length, *tasks, *flavour, *data, *out, *essays, *pretok, *wonderwords;
    const char *squad, *hotpotqa, *words, *chat, *chunks, *order, *task_file, *layout;
    int64_t samples, numpy_seed;
    bool flat, force, seeded, numpy_seeded; /* seeded: the option was given */
};

/* The library's options; lengths and dir are memory for them. */
static int options_of(const struct gen_args *g, const struct common *c, struct ruler_gen_opts *o, int64_t lengths[RULER_MAX_LENGTHS],
                      char dir[1024], struct err *e)
{
    *o = (struct ruler_gen_opts){.lengths = lengths, .tasks = g->tasks, .samples = g->samples, .seed = c->seed, .flavour = g->flavour,
                                 .data_dir = g->data, .essays = g->essays, .wonderwords = g->wonderwords, .squad = g->squad,
                                 .hotpotqa = g->hotpotqa, .words = g->words, .chat = g->chat, .remove_newline_tab = g->flat,
                                 .reversed = !strcmp(g->order, "reversed"), .force = g->force, .task_file = g->task_file,
                                 .drawn = !strcmp(g->layout, "drawn")};
    if (!strcmp(g->flavour, "lm-eval")) { /* the harness' own defaults are 0 and 1234; its --seed N sets both */
        o->seed = g->seeded ? c->seed : 0;
        o->numpy_seed = g->seeded ? &c->seed : NULL;
    }
    if (g->numpy_seeded)
        o->numpy_seed = &g->numpy_seed;
    if (g->chunks)
        TRY(chunks_of(g->chunks, &o->chunk, &o->n_chunks, e));
    TRY(lengths_of(g->length, lengths, RULER_MAX_LENGTHS, &o->n_lengths, e));
    if (!g->data) {
        TRY(cli_bundled(dir, "ruler/data", e));
        o->data_dir = dir;
    }
    return 0;
}

/* The tokenizer of a call. */
struct gen_tok {
    const struct gen_args *g;
    struct tok *tok;
    struct ruler_tokens tokens;
};

static int gen_tok_open(void *ctx, struct ruler_gen_opts *o, struct err *e)
{
    struct gen_tok *t = ctx;
    TRY(tok_load(&t->tok, t->g->tokenizer, t->g->pretok, e));
    o->tokenizer_name = tok_family(t->tok);
    o->tokenizer_sha256 = tok_sha256(t->tok);
    return ruler_tokens_open(&t->tokens, t->tok, t->g->flavour, &o->counter, e);
}

static int gen_make(const struct gen_args *g, const struct common *c, struct err *e)
{
    struct ruler_gen_opts o;
    struct gen_tok t = {.g = g};
    int64_t lengths[RULER_MAX_LENGTHS];
    char dir[1024];
    TRY(options_of(g, c, &o, lengths, dir, e));
    if (!strcmp(g->tokenizer, "bytes4")) {
        o.counter = (struct ruler_counter){ruler_bytes4_count, NULL};
        o.tokenizer_name = "bytes4";
    } else {
        o.open = gen_tok_open;
        o.open_ctx = &t;
    }
    TRY(pool_open(&o.pool, (int)c->threads, e));
    int rc = ruler_gen(&o, g->out, e);
    pool_close(o.pool);
    ruler_tokens_close(&t.tokens);
    tok_free(t.tok);
    if (rc == 0 && c->json)
        printf("{\"out\": \"%s\", \"flavour\": \"%s\", \"samples\": %" PRId64 "}\n", g->out, g->flavour, g->samples);
    else if (rc == 0)
        printf("%s: flavour %s, %" PRId64 " samples of each task and length; haystack: %s\n", g->out, g->flavour, g->samples,
               g->essays ? g->essays : "bundled public-domain novels");
    return rc;
}

static int ruler_gen_cmd(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    struct gen_args g = {.length = "", .flavour = "compact", .wonderwords = "2.2.0", .order = "forward", .layout = "shared",
                         .samples = 500};
    const struct opt opts[] = {{.name = "tokenizer", .type = OPT_STR, .dst = &g.tokenizer, .arg = "PATH",
                                .help = "model folder, tokenizer.json, or bytes4 (ceil(bytes / 4), for tests)", .group = "Data"},
                               {.name = "pretok", .type = OPT_STR, .dst = &g.pretok, .arg = "NAME",
                                .help = "split rule of an unknown vocab.json", .group = "Data"},
                               {.name = "length", .type = OPT_STR, .dst = &g.length, .arg = "N,..",
                                .help = "tokens, with the generation budget; a list makes a block for each, seed, seed+1, ...",
                                .group = "Data"},
                               {.name = "tasks", .type = OPT_STR, .dst = &g.tasks, .arg = "T,..",
                                .help = "default: all of the flavour, or those of --task-file", .group = "Data"},
                               {.name = "task-file", .type = OPT_STR, .dst = &g.task_file, .arg = "FILE",
                                .help = "your own tasks, in YAML as RULER's synthetic.yaml: NAME: {task: niah, args: {num_needle_k: 8}}",
                                .group = "Data"},
                               {.name = "samples", .type = OPT_I64, .dst = &g.samples, .arg = "N", .lo = 1, .hi = 1e7,
                                .help = "of each task and length", .group = "Data"},
                               {.name = "flavour", .type = OPT_STR, .dst = &g.flavour, .arg = "NAME", .words = flavours,
                                .help = "compact (small windows; not reference RULER), nvidia or lm-eval", .group = "Data"},
                               {.name = "data", .type = OPT_STR, .dst = &g.data, .arg = "DIR",
                                .help = "word lists, sentence data, questions; default: bundled", .group = "Data"},
                               {.name = "essays", .type = OPT_STR, .dst = &g.essays, .arg = "PATH",
                                .help = "haystack text, a file or a folder of them; default: bundled public-domain novels",
                                .group = "Data"},
                               {.name = "layout", .type = OPT_STR, .dst = &g.layout, .arg = "shared|drawn", .words = layouts,
                                .help = "place in the essay, order of cwe's and fwe's words; drawn (compact): anew for each sample, for "
                                "training",
                                .group = "Data"},
                               {.name = "wonderwords", .type = OPT_STR, .dst = &g.wonderwords, .arg = "VERSION", .help = "2.2.0 or 3.0",
                                .group = "Data"},
                               {.name = "squad", .type = OPT_STR, .dst = &g.squad, .arg = "FILE",
                                .help = "questions of qa_1: SQuAD's dev-v2.0.json; default: squad.json in --data", .group = "Data"},
                               {.name = "hotpotqa", .type = OPT_STR, .dst = &g.hotpotqa, .arg = "FILE",
                                .help = "questions of qa_2: hotpot_dev_distractor_v1.json; default: hotpotqa.json in --data",
                                .group = "Data"},
                               {.name = "words", .type = OPT_STR, .dst = &g.words, .arg = "FILE",
                                .help = "RULER's english_words.json, for cwe beyond the word lists (128K)", .group = "Data"},
                               {.name = "template", .type = OPT_STR, .dst = &g.chat, .arg = "NAME",
                                .help = "chat template: a name of RULER's (meta-llama3, ...), or a text with {task_template}; default: "
                                "base", .group = "Data"},
                               {.name = "remove-newline-tab", .type = OPT_BOOL, .dst = &g.flat,
                                .help = "newlines and tabs of prompts become spaces", .group = "Data"},
                               {.name = "chunks", .type = OPT_STR, .dst = &g.chunks, .arg = "I/N",
                                .help = "chunk I (from 0) of N: its share of the samples, from seed + I", .group = "Data"},
                               {.name = "numpy-seed", .type = OPT_I64, .dst = &g.numpy_seed, .arg = "N", .lo = 0, .hi = 4294967295.0,
                                .help = "numpy's seed where it is not --seed (lm-eval without --seed: 1234)", .group = "Data"},
                               {.name = "build-order", .type = OPT_STR, .dst = &g.order, .arg = "forward|reversed", .words = orders,
                                .help = "lm-eval: order of the tasks in their one random stream; reversed: v0.4.9 to v0.4.11",
                                .group = "Data"},
                               {.name = "force", .type = OPT_BOOL, .dst = &g.force,
                                .help = "replace data sets made with other parameters; without it whole ones stay",
                                .group = "Data"},
                               {.name = "out", .type = OPT_STR, .dst = &g.out, .arg = "DIR", .help = "DIR/TASK/validation.jsonl",
                                .group = "Data"},
                               COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab ruler gen --tokenizer PATH --length N --out DIR [OPTIONS]",
                                  .about = "Generates RULER samples.",
                                  .examples = "  dashlab ruler gen --tokenizer experiments/tiny/teacher --length 1024 --samples 24 --out "
                                  "data/ruler", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (!g.tokenizer || !g.out)
        return ERR(e, E_USAGE, "--%s is needed", g.tokenizer ? "out DIR" : "tokenizer PATH");
    g.seeded = opt_given(opts, ARRAY_LEN(opts), argc, argv, "seed");
    g.numpy_seeded = opt_given(opts, ARRAY_LEN(opts), argc, argv, "numpy-seed");
    return gen_make(&g, &c, e);
}

static const char *nll_text(double nll, char out[32])
{
    snprintf(out, 32, finite_f64(nll) ? "%.4f" : "-", nll);
    return out;
}

/* With its tokens where a model has just been run. */
static void print_prompts(const struct ruler_glue *g, struct jw *w, bool json)
{
    double shared = g->given ? 100 - 100 * (double)g->computed / (double)g->given : 0;
    jw_ki64(w, "prompt_tokens", g->given);
    jw_ki64(w, "prompt_tokens_computed", g->computed);
    if (!json && g->given)
        printf("prompt tokens: %" PRId64 " for predictions and NLLs, %" PRId64 " of them computed, %.1f %% shared\n",
               g->given, g->computed, shared);
    if (g->beyond)
        jw_ki64(w, "prompts_beyond_positions", g->beyond);
    if (!json && g->beyond)
        printf("%" PRId64 " prompts with their answers (up to %" PRId64 " tokens) go beyond the model's %" PRId64
               " positions: it was not trained for them\n", g->beyond, g->longest, g->m->cfg.max_pos);
}

static void print_scores(const struct ruler_scores *s, const struct ruler_glue *g, bool json)
{
    struct str out = STR_INIT;
    struct jw w;
    char num[32];
    jw_init(&w, &out, true);
    jw_obj(&w);
    jw_kstr(&w, "flavour", s->flavour);
    jw_key(&w, "tasks");
    jw_arr(&w);
    if (!json)
        printf("%-18s %6s %7s %6s %6s %11s\n", "task", "n", "score", "se", "nulls", "answer NLL");
    for (size_t i = 0; i < s->n; i++) {
        const struct ruler_task_score *t = &s->task[i];
        if (!json)
            printf("%-18s %6" PRId64 " %7.2f %6.2f %6" PRId64 " %11s\n", t->name, t->n, t->mean, t->se, t->nulls, nll_text(t->nll, num));
        jw_obj(&w);
        jw_kstr(&w, "task", t->name);
        jw_ki64(&w, "n", t->n);
        jw_kf64(&w, "score", t->mean);
        jw_kf64(&w, "se", t->se);
        jw_ki64(&w, "nulls", t->nulls);
        if (finite_f64(t->nll))
            jw_kf64(&w, "answer_nll", t->nll);
        jw_end_obj(&w);
    }
    jw_end_arr(&w);
    jw_kf64(&w, "mean", s->mean);
    jw_kf64(&w, "se", s->se);
    jw_key(&w, "ci95"); /* of the mean over these tasks: samples are drawn, tasks are not */
    jw_arr(&w);
    jw_f64(&w, s->lo);
    jw_f64(&w, s->hi);
    jw_end_arr(&w);
    if (finite_f64(s->nll))
        jw_kf64(&w, "answer_nll", s->nll);
    if (!json)
        printf("%-18s %6s %7.2f %6.2f %6s %11s   95 %% Wilson interval [%.2f, %.2f], %zu tasks, flavour %s\n", "mean", "", s->mean,
               s->se, "",
               nll_text(s->nll, num), s->lo, s->hi, s->n, s->flavour);
    if (g)
        print_prompts(g, &w, json);
    jw_end_obj(&w);
    if (json)
        printf("%s\n", str_c(&out));
    str_free(&out);
}

static int ruler_run_cmd(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *model = NULL, *data = NULL, *out = NULL, *tasks = NULL, *tokenizer = NULL;
    int64_t batch = 16;
    const struct opt opts[] = {{.name = "model", .type = OPT_STR, .dst = &model, .arg = "PATH", .help = "model folder, .gguf, or run",
                                .group = "Run"}, {.name = "tokenizer", .type = OPT_STR, .dst = &tokenizer, .arg = "PATH",
                                                  .help = "in place of the model's", .group = "Run"},
                               {.name = "data", .type = OPT_STR, .dst = &data, .arg = "DIR", .help = "folder written by ruler gen",
                                .group = "Run"}, {.name = "tasks", .type = OPT_STR, .dst = &tasks, .arg = "T,..",
                                                  .help = "default: all there are", .group = "Run"},
                               {.name = "batch", .type = OPT_I64, .dst = &batch, .arg = "N", .lo = 1, .hi = 4096,
                                .help = "sequences decoded together; changes no result", .group = "Run"},
                               {.name = "out", .type = OPT_STR, .dst = &out, .arg = "DIR", .help = "DIR/TASK/predictions.jsonl",
                                .group = "Run"}, COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab ruler run --model PATH --data DIR --out DIR [OPTIONS]",
                                  .about = "Greedy predictions and answer log-likelihoods; killed and run again it goes on.",
                                  .examples = "  dashlab ruler run --model experiments/tiny/teacher --data data/ruler --out preds/teacher",
                                  .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    char mp[1024];
    struct cli_rt rt;
    struct model *m = NULL;
    struct ruler_scores s = {0};
    struct ruler_glue g = {.batch = 0};
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (!model || !data || !out)
        return ERR(e, E_USAGE, "--%s is needed", !model ? "model PATH" : !data ? "data DIR" : "out DIR");
    TRY(cli_open(&rt, &c, NULL, e));
    struct model_open_opts mo = {.want_tokenizer = true, .tokenizer = tokenizer};
    int rc = model_open(&m, rt.be, model_path(model, mp), &mo, e);
    if (rc == 0 && !m->tok)
        rc = ERR(e, E_INPUT, "'%s' has no tokenizer; give --tokenizer", mp);
    if (rc == 0) {
        g = (struct ruler_glue){.m = m, .tok = m->tok, .batch = (int32_t)batch};
        struct ruler_run_opts o = {.data_dir = data, .out_dir = out, .tasks = tasks};
        ruler_glue_fill(&o, &g);
        rc = ruler_run(&o, e) || ruler_score(out, &s, e) ? -1 : 0;
    }
    if (rc == 0)
        print_scores(&s, &g, c.json);
    ruler_scores_free(&s);
    if (m)
        model_close(m);
    cli_close(&rt);
    return rc;
}

static int ruler_score_cmd(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *flavour = NULL;
    int64_t length = 0;
    const struct opt opts[] = {{.name = "flavour", .type = OPT_STR, .dst = &flavour, .arg = "NAME", .words = flavours,
                                .help = "count as this flavour does (qa differs); default: the data's own", .group = "Score"},
                               {.name = "length", .type = OPT_I64, .dst = &length, .arg = "N", .lo = 0, .hi = 1 << 24,
                                .help = "of lm-eval's samples of several lengths, this one; 0: they have one", .group = "Score"},
                               COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab ruler score DIR [--flavour NAME] [--length N] [--json]",
                                  .about = "Scores of predictions, computed again from predictions and references. DIR: of ruler run, "
                                  "NVIDIA's pred folder (TASK.jsonl), or one with lm-evaluation-harness' samples_TASK_*.jsonl.",
                                  .examples = "  dashlab ruler score preds/teacher\n"
                                  "  dashlab ruler score RULER/results/M/synthetic/4096/pred",
                                  .opts = opts, .n_opts = ARRAY_LEN(opts), .min_pos = 1, .max_pos = 1};
    const char *pos[1];
    size_t n;
    bool done;
    struct ruler_scores s = {0};
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    int rc = ruler_score_at(pos[0], flavour, length, &s, e);
    if (rc == 0)
        print_scores(&s, NULL, c.json);
    ruler_scores_free(&s);
    return rc;
}

static int ruler_compare_cmd(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab ruler compare A B",
                                  .about = "Paired comparison of two predictions folders: B - A in points, 95 % normal interval cut at +-100, "
                                  "sign-flip p. Folders with other prompts are refused.", .examples = "  dashlab ruler compare preds/uniform preds/dash",
                                  .opts = opts, .n_opts = ARRAY_LEN(opts), .min_pos = 2, .max_pos = 2};
    const char *pos[2];
    size_t n, nt = 0;
    bool done;
    struct ruler_diff d[RULER_MAX_TASKS + 1];
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    TRY(ruler_compare(pos[0], pos[1], d, &nt, &d[RULER_MAX_TASKS], e));
    d[nt] = d[RULER_MAX_TASKS];
    if (c.json)
        printf("[");
    else
        printf("%-18s %6s %8s %20s %8s\n", "task", "n", "diff", "95 % interval", "p");
    for (size_t i = 0; i <= nt; i++) {
        const char *name = i < nt ? d[i].name : "overall";
        if (c.json)
            printf("%s{\"task\": \"%s\", \"n\": %" PRId64 ", \"diff\": %.10g, \"lo\": %.10g, \"hi\": %.10g, \"p\": %.6g}", i ? ", " : "",
                   name, d[i].n, d[i].diff, d[i].lo, d[i].hi, d[i].p);
        else
            printf("%-18s %6" PRId64 " %+8.2f   [%+7.2f, %+7.2f] %8.4f\n", name, d[i].n, d[i].diff, d[i].lo, d[i].hi, d[i].p);
    }
    if (c.json)
        printf("]\n");
    return 0;
}

int cmd_ruler(int argc, char **argv, struct err *e)
{
    static const struct cmd subs[] = {{"gen", "generate samples", ruler_gen_cmd},
                                      {"run", "predictions of a model", ruler_run_cmd},
                                      {"score", "scores of a predictions folder", ruler_score_cmd},
                                      {"compare", "two predictions folders, paired", ruler_compare_cmd}};
    return cli_sub("ruler", subs, ARRAY_LEN(subs), argc, argv, e);
}
