/* ruler gen, run, score, compare. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ruler_glue.h"
#include "cli/stages.h"

static const char *const flavours[] = {"compact", "nvidia", "lm-eval", NULL};
static const char *const orders[] = {"forward", "reversed", NULL};

static int lengths_of(const char *text, int64_t *out, size_t cap, size_t *n, struct err *e)
{
    *n = 0;
    for (const char *s = text; *s; s += strcspn(s, ","), s += *s == ',') {
        char item[32];
        snprintf(item, sizeof item, "%.*s", (int)MIN(strcspn(s, ","), sizeof item - 1), s);
        if (*n == cap || !parse_i64(item, &out[*n]) || out[*n] < 1)
            return ERR(e, E_USAGE, "--length: '%s' is not a list of at most %zu lengths", text, cap);
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

static int ruler_gen_cmd(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *tokenizer = NULL, *length = "", *tasks = NULL, *flavour = "compact", *data = NULL, *out = NULL, *essays = NULL,
        *pretok = NULL;
    const char *wonderwords = "2.2.0", *squad = NULL, *hotpotqa = NULL, *words = NULL, *chat = NULL, *chunks = NULL, *order = "forward";
    int64_t samples = 500, numpy_seed = 0;
    bool flat = false, force = false;
    const struct opt opts[] = {{.name = "tokenizer", .type = OPT_STR, .dst = &tokenizer, .arg = "PATH",
                                .help = "model folder, tokenizer.json, or bytes4 (ceil(bytes / 4), for tests)", .group = "Data"},
                               {.name = "pretok", .type = OPT_STR, .dst = &pretok, .arg = "NAME",
                                .help = "split rule of an unknown vocab.json", .group = "Data"},
                               {.name = "length", .type = OPT_STR, .dst = &length, .arg = "N,..",
                                .help = "tokens, with the generation budget; a list makes a block for each, seed, seed+1, ...",
                                .group = "Data"},
                               {.name = "tasks", .type = OPT_STR, .dst = &tasks, .arg = "T,..", .help = "default: all of the flavour",
                                .group = "Data"},
                               {.name = "samples", .type = OPT_I64, .dst = &samples, .arg = "N", .lo = 1, .hi = 1e7,
                                .help = "of each task and length", .group = "Data"},
                               {.name = "flavour", .type = OPT_STR, .dst = &flavour, .arg = "NAME", .words = flavours,
                                .help = "compact (small windows; not reference RULER), nvidia or lm-eval", .group = "Data"},
                               {.name = "data", .type = OPT_STR, .dst = &data, .arg = "DIR",
                                .help = "word lists, sentence data, questions; default: bundled", .group = "Data"},
                               {.name = "essays", .type = OPT_STR, .dst = &essays, .arg = "FILE",
                                .help = "haystack text; default: bundled public-domain novels", .group = "Data"},
                               {.name = "wonderwords", .type = OPT_STR, .dst = &wonderwords, .arg = "VERSION", .help = "2.2.0 or 3.0",
                                .group = "Data"},
                               {.name = "squad", .type = OPT_STR, .dst = &squad, .arg = "FILE",
                                .help = "questions of qa_1: SQuAD's dev-v2.0.json; default: squad.json in --data", .group = "Data"},
                               {.name = "hotpotqa", .type = OPT_STR, .dst = &hotpotqa, .arg = "FILE",
                                .help = "questions of qa_2: hotpot_dev_distractor_v1.json; default: hotpotqa.json in --data",
                                .group = "Data"},
                               {.name = "words", .type = OPT_STR, .dst = &words, .arg = "FILE",
                                .help = "RULER's english_words.json, for cwe beyond the word lists (128K)", .group = "Data"},
                               {.name = "template", .type = OPT_STR, .dst = &chat, .arg = "NAME",
                                .help = "chat template: a name of RULER's (meta-llama3, ...), or a text with {task_template}; default: "
                                "base", .group = "Data"},
                               {.name = "remove-newline-tab", .type = OPT_BOOL, .dst = &flat,
                                .help = "newlines and tabs of prompts become spaces", .group = "Data"},
                               {.name = "chunks", .type = OPT_STR, .dst = &chunks, .arg = "I/N",
                                .help = "chunk I (from 0) of N: its share of the samples, from seed + I", .group = "Data"},
                               {.name = "numpy-seed", .type = OPT_I64, .dst = &numpy_seed, .arg = "N", .lo = 0, .hi = 4294967295.0,
                                .help = "numpy's seed where it is not --seed (lm-eval without --seed: 1234)", .group = "Data"},
                               {.name = "build-order", .type = OPT_STR, .dst = &order, .arg = "forward|reversed", .words = orders,
                                .help = "lm-eval: order of the tasks in their one random stream; reversed: v0.4.9 to v0.4.11",
                                .group = "Data"},
                               {.name = "force", .type = OPT_BOOL, .dst = &force, .help = "replace data sets made with other parameters",
                                .group = "Data"},
                               {.name = "out", .type = OPT_STR, .dst = &out, .arg = "DIR", .help = "DIR/TASK/validation.jsonl",
                                .group = "Data"},
                               COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab ruler gen --tokenizer PATH --length N --out DIR [OPTIONS]",
                                  .about = "Generates RULER samples.",
                                  .examples = "  dashlab ruler gen --tokenizer experiments/tiny/teacher --length 1024 --samples 24 --out "
                                  "data/ruler", .opts = opts, .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    int64_t lengths[64];
    char dir[1024];
    struct tok *tok = NULL;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (!tokenizer || !out)
        return ERR(e, E_USAGE, "--%s is needed", tokenizer ? "out DIR" : "tokenizer PATH");
    struct ruler_gen_opts o = {.lengths = lengths, .tasks = tasks, .samples = samples, .seed = c.seed, .flavour = flavour, .data_dir = data,
                               .essays = essays, .wonderwords = wonderwords, .squad = squad, .hotpotqa = hotpotqa, .words = words,
                               .chat = chat, .remove_newline_tab = flat, .reversed = !strcmp(order, "reversed"), .force = force};
    bool seeded = opt_given(opts, ARRAY_LEN(opts), argc, argv, "seed");
    if (!strcmp(flavour, "lm-eval")) { /* the harness' own defaults are 0 and 1234; its --seed N sets both */
        o.seed = seeded ? c.seed : 0;
        o.numpy_seed = seeded ? &o.seed : NULL;
    }
    if (opt_given(opts, ARRAY_LEN(opts), argc, argv, "numpy-seed"))
        o.numpy_seed = &numpy_seed;
    if (chunks)
        TRY(chunks_of(chunks, &o.chunk, &o.n_chunks, e));
    TRY(lengths_of(length, lengths, ARRAY_LEN(lengths), &o.n_lengths, e));
    if (!data) {
        TRY(cli_bundled(dir, "ruler/data", e));
        o.data_dir = dir;
    }
    if (!strcmp(tokenizer, "bytes4")) {
        o.counter = (struct ruler_counter){ruler_bytes4_count, NULL};
        o.tokenizer_name = "bytes4";
    } else {
        TRY(tok_load(&tok, tokenizer, pretok, e));
        o.counter = (struct ruler_counter){ruler_tok_count, tok};
        o.tokenizer_name = tok_family(tok);
        o.tokenizer_sha256 = tok_sha256(tok);
    }
    int rc = ruler_gen(&o, out, e);
    tok_free(tok);
    if (rc == 0 && c.json)
        printf("{\"out\": \"%s\", \"flavour\": \"%s\", \"samples\": %" PRId64 "}\n", out, flavour, samples);
    else if (rc == 0)
        printf("%s: flavour %s, %" PRId64 " samples of each task and length; haystack: %s\n", out, flavour, samples,
               essays ? essays : "bundled public-domain novels");
    return rc;
}

static void print_scores(const struct ruler_scores *s, bool json)
{
    struct str out = STR_INIT;
    struct jw w;
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
            printf("%-18s %6" PRId64 " %7.2f %6.2f %6" PRId64 " %11.4f\n", t->name, t->n, t->mean, t->se, t->nulls, t->nll);
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
    if (finite_f64(s->nll))
        jw_kf64(&w, "answer_nll", s->nll);
    jw_end_obj(&w);
    if (json)
        printf("%s\n", str_c(&out));
    else
        printf("%-18s %6s %7.2f %6.2f %6s %11.4f   flavour %s\n", "mean", "", s->mean, s->se, "", s->nll, s->flavour);
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
        struct ruler_glue g = {.m = m, .tok = m->tok, .batch = (int32_t)batch};
        struct ruler_run_opts o = {.data_dir = data, .out_dir = out, .tasks = tasks};
        ruler_glue_fill(&o, &g);
        rc = ruler_run(&o, e) || ruler_score(out, &s, e) ? -1 : 0;
    }
    if (rc == 0)
        print_scores(&s, c.json);
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
    const struct opt opts[] = {{.name = "flavour", .type = OPT_STR, .dst = &flavour, .arg = "NAME", .words = flavours,
                                .help = "count as this flavour does (qa differs); default: the data's own", .group = "Score"},
                               COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab ruler score DIR [--flavour NAME] [--json]",
                                  .about = "Scores of a predictions folder, computed again from predictions and references.",
                                  .examples = "  dashlab ruler score preds/teacher", .opts = opts, .n_opts = ARRAY_LEN(opts), .min_pos = 1,
                                  .max_pos = 1};
    const char *pos[1];
    size_t n;
    bool done;
    struct ruler_scores s = {0};
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    int rc = ruler_score_as(pos[0], flavour, &s, e);
    if (rc == 0)
        print_scores(&s, c.json);
    ruler_scores_free(&s);
    return rc;
}

static int ruler_compare_cmd(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab ruler compare A B",
                                  .about = "Paired comparison of two predictions folders: B - A in points, 95 % interval, sign-flip p. "
                                  "Folders with other prompts are refused.", .examples = "  dashlab ruler compare preds/uniform preds/dash",
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
