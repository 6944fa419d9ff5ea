/* lmeval list, requests, run, compare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ids.h"
#include "cli/lmeval_glue.h"
#include "cli/stages.h"
#include "core/hash.h"
#include "core/prog.h"

static int lmeval_list(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *data = NULL;
    const struct opt opts[] = {
        O_STR("data", &data, "DIR", "where benchmark files are; default: $DASHLAB_DATA, then the bundled ones", "Data"), COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab lmeval list [--data DIR]",
                                  .about = "Tasks and groups, and how many documents of each are found.",
                                  .examples = "  dashlab lmeval list",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done, bundled;
    char dir[1024];
    struct str out = STR_INIT;
    struct jw w;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    TRY(lmeval_data(data, dir, &bundled, e));
    jw_init(&w, &out, true);
    jw_arr(&w);
    if (!c.json)
        printf("groups: mmlu (57 subjects), mmlu_stem, mmlu_other, mmlu_social_sciences, mmlu_humanities\ndocuments under %s%s\n%-42s "
               "%-16s %9s %9s\n",
               dir, bundled ? " (bundled: the first of each task, not the benchmarks)" : "", "task", "group", "documents", "examples");
    for (int i = 0; i < LME_N_TASKS; i++) {
        const struct lme_task *t = lme_task_at(i);
        int64_t count[2];
        for (int k = 0; k < 2; k++) {
            char path[1024];
            struct lme_docs d;
            struct err why = ERR_INIT;
            enum lme_split split = k ? LME_POOL : LME_EVAL;
            count[k] = -1;
            if (!lme_find(t, split, dir, path))
                continue;
            int rc = lme_load(t, split, dir, &d, &why);
            count[k] = rc == 0 ? d.n : -2;
            lme_docs_free(&d);
            if (rc != 0)
                fprintf(stderr, "dashlab: warning: %s\n", why.msg);
        }
        jw_obj(&w);
        jw_kstr(&w, "task", t->name);
        jw_kstr(&w, "group", t->group >= 0 ? lme_group_name(t->group) : "");
        jw_ki64(&w, "documents", MAX(count[0], 0));
        jw_ki64(&w, "examples", MAX(count[1], 0));
        jw_end_obj(&w);
        if (!c.json) {
            char text[2][24];
            for (int k = 0; k < 2; k++) {
                snprintf(text[k], sizeof text[k], "%" PRId64, count[k]);
                if (count[k] < 0)
                    snprintf(text[k], sizeof text[k], "%s", count[k] == -1 ? "-" : "damaged");
            }
            printf("%-42s %-16s %9s %9s\n", t->name, t->group >= 0 ? lme_group_name(t->group) + 5 : "", text[0], text[1]);
        }
    }
    jw_end_arr(&w);
    if (c.json)
        printf("%s\n", str_c(&out));
    str_free(&out);
    return 0;
}

/* Options that requests and run share. */
struct prompt_args {
    const char *tasks, *shots, *data, *samples, *system, *template, *tokenizer, *pretok, *limit;
    bool chat, multiturn;
    int64_t max_length, seed;
};
#define PROMPT_ARGS_INIT                                                                                                                   \
    {                                                                                                                                      \
        .multiturn = true, .seed = 1234                                                                                                    \
    }
#define PROMPT_OPTS(a)                                                                                                                     \
    O_STR("tasks", &(a)->tasks, "T,..", "tasks and groups; 'dashlab lmeval list'", "Requests"),                                            \
        O_STR("shots", &(a)->shots, "N|T=N,..", "few-shot examples; default 0", "Requests"),                                               \
        O_STR("data", &(a)->data, "DIR", "root with a folder a task, or that folder; default: $DASHLAB_DATA, then the bundled documents",  \
              "Requests"),                                                                                                                 \
        O_STR("limit", &(a)->limit, "N", "the first N documents of each task; below 1: that share", "Requests"),                           \
        O_STR("samples", &(a)->samples, "A-B,..", "document indices; their examples are those of the full run", "Requests"),               \
        O_FLAG("apply-chat-template", &(a)->chat, "prompts as chats, by the model's template", "Requests"),                                \
        O_STR("chat-template", &(a)->template, "NAME", "a template by name (smollm2, qwen25, ...) where the tokenizer brings none",        \
              "Requests"),                                                                                                                 \
        O_FLAG("fewshot-as-multiturn", &(a)->multiturn, "examples as turns of their own (chat)", "Requests"),                              \
        O_STR("system-instruction", &(a)->system, "S", "system message, or text before the prompt", "Requests"),                           \
        O_INT("max-length", &(a)->max_length, 0, 1 << 24,                                                                                  \
              "cut longer requests from the left; 0: the model's length, longer ones are errors", "Requests"),                             \
        O_INT("fewshot-seed", &(a)->seed, 0, 4294967295.0, "seed of the examples; the harness': 1234", "Requests"),                        \
        O_STR("tokenizer", &(a)->tokenizer, "PATH", "a tokenizer", "Requests"),                                                            \
        O_STR("pretok", &(a)->pretok, "NAME", "split rule of an unknown vocab.json", "Requests")

static int prompts_of(const struct prompt_args *a, const struct tok *tok, struct lme_prompts *p, struct err *e)
{
    *p = (struct lme_prompts)LME_PROMPTS_INIT;
    p->chat = a->chat || a->template;
    p->multiturn = a->multiturn;
    p->system = a->system;
    p->seed = (uint64_t)a->seed;
    if (a->limit && (!parse_f64(a->limit, &p->limit) || p->limit <= 0))
        return ERR(e, E_USAGE, "--limit: '%s' is not a number above 0", a->limit);
    if (a->limit && p->limit >= 1 && p->limit != (double)(int64_t)p->limit)
        return ERR(e, E_USAGE, "--limit: %s is neither a whole number nor a share below 1", a->limit);
    if (!p->chat)
        return 0;
    p->template = chat_detect(tok ? tok_chat_template(tok) : NULL);
    if (a->template && !chat_by_name(a->template, &p->template))
        return ERR(e, E_USAGE, "--chat-template: there is no template '%s'; see 'dashlab help model tokenize'", a->template);
    if (p->template == CHAT_NONE || p->template == CHAT_UNKNOWN)
        return ERR(e, E_USAGE, "the tokenizer brings %s chat template; name one with --chat-template",
                   p->template == CHAT_NONE ? "no" : "an unknown");
    return 0;
}

/* ---- requests ---- */

struct printer {
    struct lme_encoder *enc;
    const char *where;
    struct sha256 hash;
    bool json_hash, first;
    struct lme_set set; /* one document at a time */
};

static void print_ids(struct jw *w, const char *key, const int32_t *v, int32_t n)
{
    jw_key(w, key);
    jw_arr(w);
    for (int32_t i = 0; i < n; i++)
        jw_i64(w, v[i]);
    jw_end_arr(w);
}

static int print_case(void *ctx, const struct lme_case *c, struct err *e)
{
    struct printer *p = ctx;
    struct str out = STR_INIT;
    struct jw w;
    int rc = p->enc ? lme_encode_case(p->enc, c, p->where, &p->set, e) : 0;
    for (int r = 0; r < c->n_req && rc == 0; r++) {
        jw_init(&w, &out, false);
        jw_obj(&w);
        jw_key(&w, "context");
        jw_strn(&w, str_c(lme_ctx(c, r)), lme_ctx(c, r)->len);
        jw_key(&w, "continuation");
        jw_strn(&w, str_c(&c->cont[r]), c->cont[r].len);
        if (p->enc) {
            const struct lme_req *q = &p->set.req[r];
            print_ids(&w, "context_ids", q->ctx, q->n_ctx);
            print_ids(&w, "continuation_ids", q->cont, q->n_cont);
        }
        jw_end_obj(&w);
        str_putc(&out, '\n');
    }
    if (rc == 0 && str_ok(&out, "requests", e) == 0)
        print_str(&out);
    str_free(&out);
    lme_set_free(&p->set);
    return rc;
}

static int requests_of(const struct prompt_args *a, const char *dir, struct tok *tok, bool count, bool mutual, struct err *e)
{
    struct lme_pick pick;
    struct lme_prompts p;
    struct lme_range range[64];
    struct lme_cost total = {0};
    struct printer pr = {0};
    struct lme_encode_opts eo = {.max_length = a->max_length, .truncate = true, .prefix = -1};
    size_t n_ranges;
    TRY(lme_pick_tasks(a->tasks, &pick, e));
    TRY(prompts_of(a, tok, &p, e));
    p.mutual_info = mutual;
    TRY(lme_samples_of(a->samples, range, ARRAY_LEN(range), &n_ranges, e));
    p.samples = n_ranges ? range : NULL;
    p.n_samples = n_ranges;
    if (n_ranges && p.limit >= 0)
        return ERR(e, E_USAGE, "--limit and --samples exclude each other");
    if (tok)
        TRY(lme_encoder_open(&pr.enc, tok, &eo, e));
    int rc = 0;
    int64_t requests = 0, truncated = 0;
    for (int i = 0; i < pick.n && rc == 0; i++) {
        struct lme_docs docs, pool = {0};
        rc = lme_shots_of(a->shots, &pick, pick.task[i], &p.shots, e);
        rc = lme_load(pick.task[i], LME_EVAL, dir, &docs, e) || rc ? -1 : 0;
        if (rc == 0 && p.shots)
            rc = lme_load(pick.task[i], LME_POOL, dir, &pool, e);
        pr.where = docs.path;
        if (rc == 0 && count) {
            struct lme_set set;
            struct lme_cost c = {0};
            double t0 = now_s(), t1;
            rc = lme_set_make(pick.task[i], &docs, p.shots ? &pool : NULL, &p, pr.enc, &set, e);
            t1 = now_s();
            rc = rc ? rc : lme_count(set.req, set.n, &c, e);
            log_debug("%s: %.3f s for requests, %.3f s for the tree", pick.task[i]->name, t1 - t0, now_s() - t1);
            total.tokens += c.tokens;
            total.no_sharing += c.no_sharing;
            total.one_token_cache += c.one_token_cache;
            total.nodes += c.nodes;
            total.levels = MAX(total.levels, c.levels);
            requests += set.n;
            truncated += set.truncated;
            lme_set_free(&set);
        } else if (rc == 0)
            rc = lme_each(pick.task[i], &docs, p.shots ? &pool : NULL, &p, print_case, &pr, e);
        lme_docs_free(&docs);
        lme_docs_free(&pool);
    }
    if (rc == 0 && count)
        printf("{\"requests\": %" PRId64 ", \"truncated\": %" PRId64 ", \"tokens\": %" PRId64 ", \"tokens_one_token_cache\": %" PRId64
               ", \"tokens_without_sharing\": %" PRId64 ", \"nodes\": %" PRId64 ", \"levels\": %" PRId64 "}\n",
               requests, truncated, total.tokens, total.one_token_cache, total.no_sharing, total.nodes, total.levels);
    lme_encoder_close(pr.enc);
    return rc;
}

static int lmeval_requests(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    struct prompt_args a = PROMPT_ARGS_INIT;
    bool count = false, mutual = false;
    const struct opt opts[] = {
        PROMPT_OPTS(&a), O_FLAG("count", &count, "numbers of requests and tokens in place of the requests (needs --tokenizer)", "Requests"),
        O_FLAG("mutual-info", &mutual, "also the requests without context that acc_mutual_info needs", "Requests"), COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab lmeval requests --tasks T [--shots N] [--data DIR] [--tokenizer PATH] [OPTIONS]",
                                  .about = "Every (context, continuation) as JSON lines, no model; with --tokenizer also ids.",
                                  .examples = "  dashlab lmeval requests --tasks arc_easy --limit 2\n  dashlab lmeval requests --tasks "
                                              "mmlu --shots 5 --data D --tokenizer M --count",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done, bundled;
    char dir[1024], mp[1024];
    struct tok *tok = NULL;
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (!a.tasks)
        return ERR(e, E_USAGE, "--tasks T is needed");
    if (count && !a.tokenizer)
        return ERR(e, E_USAGE, "--count needs --tokenizer PATH");
    TRY(lmeval_data(a.data, dir, &bundled, e));
    if (a.tokenizer)
        TRY(tok_open(&tok, model_path(a.tokenizer, mp), a.pretok, e));
    int rc = requests_of(&a, dir, tok, count, mutual, e);
    tok_free(tok);
    return rc;
}

/* ---- run ---- */

static void progress(void *ctx, const char *task, int64_t done, int64_t total, const char *extra)
{
    struct prog *p = ctx;
    UNUSED(task);
    if (p->total != total) {
        prog_start(p, "lmeval", "tok", total);
    }
    prog_update(p, done, extra);
}

static void print_run(const struct lme_run_result *r, const struct lme_run_opts *o, bool json)
{
    struct str s = STR_INIT;
    if (json) {
        struct err ignored = ERR_INIT;
        if (file_read(r->results_path, 0, &s, &ignored) == 0)
            print_str(&s);
        str_free(&s);
        return;
    }
    str_printf(&s, "%s%s, shots %s, limit %s, %s%s%s\n", o->bundled ? "BUNDLED SUBSET (first documents), not the benchmarks: " : "",
               o->model_name, o->shots ? o->shots : "0",
               o->samples             ? "by --samples"
               : o->prompts.limit < 0 ? "none"
                                      : "yes: not the full benchmark",
               o->bf16 ? "bf16 parity" : "float32", o->prompts.chat ? ", chat template " : "",
               o->prompts.chat ? chat_name(o->prompts.template) : "");
    lme_table(r, &s);
    str_putc(&s, '\n');
    lme_intervals(r, &s);
    int64_t without = 0, one = 0;
    for (int i = 0; i < r->n_tasks; i++) {
        without += r->task[i].cost.no_sharing;
        one += r->task[i].cost.one_token_cache;
    }
    str_printf(&s,
               "tokens computed: %" PRId64 " (this run %" PRId64 "); the harness at batch 1: %" PRId64 "; without any sharing: %" PRId64
               "\n%s\n",
               r->tokens, r->computed, one, without, r->results_path);
    print_str(&s);
    str_free(&s);
}

struct run_args {
    struct prompt_args p;
    const char *model, *out, *metrics, *parity;
    int64_t batch;
    bool log_samples, harness_names, force, allow_missing, print_manifest;
};

/* The manifest that says the same; what a stage cannot say is an error. */
static int print_manifest(const struct run_args *a, const struct common *c, bool bf16, struct err *e)
{
    const struct prompt_args *p = &a->p;
    struct flag_value v[8];
    size_t n = 0;
    int64_t limit = 0;
    char mp[1024], limit_text[32], length[32];
    if (p->samples || p->system || p->template || p->tokenizer || !p->multiturn || p->seed != 1234 || bf16 || a->allow_missing ||
        (p->limit && !parse_i64(p->limit, &limit)))
        return ERR(e, E_USAGE,
                   "--print-manifest: a stage of kind lmeval takes tasks, data, shots, limit (a number of documents), metrics, the model's "
                   "chat template and max_length alone");
    snprintf(limit_text, sizeof limit_text, "%" PRId64, limit);
    snprintf(length, sizeof length, "%" PRId64, p->max_length);
    v[n++] = (struct flag_value){"model", model_path(a->model, mp)};
    v[n++] = (struct flag_value){"tasks", p->tasks};
    v[n++] = (struct flag_value){"limit", limit_text};
    v[n++] = (struct flag_value){"max_length", length};
    v[n++] = (struct flag_value){"chat", p->chat ? "true" : "false"};
    if (p->data)
        v[n++] = (struct flag_value){"data", p->data};
    if (p->shots)
        v[n++] = (struct flag_value){"shots", p->shots};
    if (a->metrics)
        v[n++] = (struct flag_value){"metrics", a->metrics};
    return stage_manifest("lmeval", v, n, c, e);
}

static int run_model(const struct run_args *a, const struct common *c, struct lme_run_opts *o, struct err *e)
{
    struct cli_rt rt;
    struct model *m = NULL;
    struct lme_run_result *r = calloc(1, sizeof *r);
    struct prog prog = {.total = -1};
    char mp[1024];
    if (!r)
        return err_nomem(e, sizeof *r, "results");
    int rc = cli_open(&rt, c, NULL, e);
    struct model_open_opts mo = {.want_tokenizer = true, .tokenizer = a->p.tokenizer, .pretok = a->p.pretok};
    rc = rc ? rc : model_open(&m, rt.be, model_path(a->model, mp), &mo, e);
    if (rc == 0 && !m->tok)
        rc = ERR(e, E_INPUT, "'%s' has no tokenizer; give --tokenizer", mp);
    rc = rc ? rc : prompts_of(&a->p, m->tok, &o->prompts, e);
    o->ctx = &prog;
    o->progress = progress;
    o->model_name = a->model;
    rc = rc ? rc : lme_run(m, o, r, e);
    if (prog.total >= 0)
        prog_end(&prog);
    if (rc == 0)
        print_run(r, o, c->json);
    if (m)
        model_close(m);
    cli_close(&rt);
    free(r);
    return rc;
}

static int lmeval_run(int argc, char **argv, struct err *e)
{
    static const char *const parities[] = {"f32", "bf16", NULL};
    struct common c = COMMON_INIT;
    struct run_args a = {.p = PROMPT_ARGS_INIT, .batch = 16, .log_samples = true, .parity = "f32"};
    const struct opt opts[] = {
        O_STR("model", &a.model, "PATH", "model folder, .gguf, or run", "Run"),
        PROMPT_OPTS(&a.p),
        O_INT("batch", &a.batch, 1, 4096, "sequences computed together; changes no result", "Run"),
        O_WORD("parity", &a.parity, "f32|bf16", parities, "bf16: logits and log-probabilities rounded as a bf16 run of the harness does",
               "Run"),
        O_STR("metrics", &a.metrics, "M,..", "also acc_norm, acc_bytes, acc_mutual_info, brier_score, exact_match", "Run"),
        O_FLAG("log-samples", &a.log_samples, "write samples_TASK.jsonl (lmeval compare needs them)", "Run"),
        O_FLAG("harness-names", &a.harness_names, "the harness' folder and dated file names", "Run"),
        O_FLAG("allow-missing", &a.allow_missing, "go on without tasks that have no documents; their groups are then not reported", "Run"),
        O_FLAG("print-manifest", &a.print_manifest, "print the manifest that says the same (for 'dashlab reproduce'), and stop", "Run"),
        O_FLAG("force", &a.force, "replace results made with other parameters", "Run"),
        O_STR("out", &a.out, "DIR", "results.json, samples_TASK.jsonl, loglikelihoods.jsonl", "Run"),
        COMMON_OPTS(&c)};
    const struct cmd_spec spec = {
        .synopsis = "dashlab lmeval run --model PATH --tasks T,.. --out DIR [OPTIONS]",
        .about =
            "Multiple-choice benchmarks by log-likelihood, request for request as lm-evaluation-harness; killed and run again it goes on.",
        .examples = "  dashlab lmeval run --model experiments/tiny/teacher --tasks arc_easy,piqa --out evals/teacher\n  dashlab lmeval run "
                    "--model M --tasks mmlu --shots 5 --data D --out evals/mmlu",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts)};
    size_t n;
    bool done;
    char dir[1024];
    struct lme_run_opts o = {0};
    TRY(cli_parse(&spec, &c, argc, argv, NULL, &n, &done, e));
    if (done)
        return 0;
    if (a.print_manifest && a.model && a.p.tasks)
        return print_manifest(&a, &c, !strcmp(a.parity, "bf16"), e);
    if (!a.model || !a.p.tasks || !a.out)
        return ERR(e, E_USAGE, "--%s is needed", !a.model ? "model PATH" : !a.p.tasks ? "tasks T" : "out DIR");
    TRY(lmeval_data(a.p.data, dir, &o.bundled, e));
    o.tasks = a.p.tasks;
    o.data_dir = dir;
    o.out_dir = a.out;
    o.shots = a.p.shots;
    o.samples = a.p.samples;
    o.metrics = a.metrics;
    o.max_length = a.p.max_length;
    o.batch = (int32_t)a.batch;
    o.bf16 = !strcmp(a.parity, "bf16");
    o.log_samples = a.log_samples;
    o.harness_names = a.harness_names;
    o.force = a.force;
    o.allow_missing = a.allow_missing;
    return run_model(&a, &c, &o, e);
}

/* ---- compare ---- */

static int lmeval_compare(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab lmeval compare A B",
                                  .about = "Paired comparison of two result folders: B - A, 95 % normal interval of the paired difference, cut at "
                                           "+-1, exact McNemar p. Folders with other prompts are refused.",
                                  .examples = "  dashlab lmeval compare evals/teacher evals/hybrid",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 2,
                                  .max_pos = 2};
    const char *pos[2];
    size_t n, k = 0;
    bool done;
    const size_t cap = 2 * LME_N_TASKS + 1;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n, &done, e));
    if (done)
        return 0;
    struct lme_diff *d = calloc(cap, sizeof *d);
    int rc = d ? lme_compare(pos[0], pos[1], d, cap, &k, e) : err_nomem(e, cap * sizeof *d, "a comparison");
    if (rc == 0 && !c.json)
        printf("%-42s %-8s %6s %7s %7s %8s %20s %7s %7s %8s\n", "task", "metric", "n", "A", "B", "B - A", "95 % interval", "only A",
               "only B", "p");
    for (size_t i = 0; i < k; i++) {
        if (c.json)
            printf("%s{\"task\": \"%s\", \"metric\": \"%s\", \"n\": %" PRId64
                   ", \"a\": %.10g, \"b\": %.10g, \"diff\": %.10g, \"lo\": %.10g, \"hi\": %.10g, \"only_a\": %" PRId64
                   ", \"only_b\": %" PRId64 ", \"p\": %.6g}",
                   i ? ",\n " : "[", d[i].name, d[i].metric, d[i].n, d[i].a, d[i].b, d[i].diff, d[i].lo, d[i].hi, d[i].only_a, d[i].only_b,
                   d[i].p);
        else
            printf("%-42s %-8s %6" PRId64 " %7.4f %7.4f %+8.4f   [%+.4f, %+.4f] %7" PRId64 " %7" PRId64 " %8.4f\n", d[i].name, d[i].metric,
                   d[i].n, d[i].a, d[i].b, d[i].diff, d[i].lo, d[i].hi, d[i].only_a, d[i].only_b, d[i].p);
    }
    if (rc == 0 && c.json)
        printf("]\n");
    free(d);
    return rc;
}

int cmd_lmeval(int argc, char **argv, struct err *e)
{
    static const struct cmd subs[] = {{"list", "tasks, groups, and the documents found", lmeval_list},
                                      {"requests", "every request as text and ids, no model", lmeval_requests},
                                      {"run", "scores of a model", lmeval_run},
                                      {"compare", "two result folders, paired", lmeval_compare}};
    return cli_sub("lmeval", subs, ARRAY_LEN(subs), argc, argv, e);
}
