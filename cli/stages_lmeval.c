/* Stage kind: MMLU, ARC, PIQA and WinoGrande of teachers and hybrids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lmeval_glue.h"
#include "cli/stages_cost.h"

static const struct param_spec lmeval_params[] = {
    {.name = "model", .type = PT_REF, .help = "a teacher or distill runs", .fan = true},
    {.name = "tasks",
     .type = PT_STRS,
     .def = "mmlu,arc_easy,arc_challenge,piqa,winogrande",
     .help = "tasks and groups; dashlab lmeval list"},
    {.name = "data", .type = PT_PATH, .def = "", .help = "root with one folder a task; default: the bundled first documents"},
    {.name = "shots", .type = PT_STR, .def = "0", .help = "few-shot examples: N or task=N,.."},
    {.name = "limit",
     .type = PT_INT,
     .unit = "documents",
     .def = "0",
     .lo = 0,
     .hi = 1e9,
     .help = "the first documents of each task; 0 = all"},
    {.name = "metrics", .type = PT_STRS, .def = "", .help = "also acc_norm, acc_bytes, acc_mutual_info, brier_score, exact_match"},
    {.name = "chat", .type = PT_BOOL, .def = "false", .help = "prompts by the model's chat template"},
    {.name = "max_length",
     .type = PT_INT,
     .unit = "tokens",
     .def = "0",
     .lo = 0,
     .hi = 1e9,
     .help = "cut longer requests from the left; 0 = the model's length, longer ones are errors"},
    {.name = "batch",
     .type = PT_INT,
     .unit = "sequences",
     .def = "16",
     .lo = 1,
     .hi = 4096,
     .help = "computed together; changes no result",
     .free = true}};

static void write_values(struct jw *w, const struct lme_run_result *s)
{
    for (int i = 0; i < s->n; i++) {
        const struct lme_result *t = &s->task[i];
        for (int m = 0; m < LME_N_METRICS; m++) {
            char key[96];
            const char *name = t->task ? t->task->name : lme_group_name(t->group);
            if (!(t->metrics & 1u << m))
                continue;
            snprintf(key, sizeof key, "%s_%s", name, lme_metric_names[m]);
            jw_kf64(w, key, t->v[m].mean);
            snprintf(key, sizeof key, "%s_%s_se", name, lme_metric_names[m]);
            if (t->v[m].se >= 0)
                jw_kf64(w, key, t->v[m].se);
            snprintf(key, sizeof key, "%s_n", name);
            if (m == LME_ACC)
                jw_ki64(w, key, t->n);
        }
    }
}

static int run_stage(struct model *m, const struct node *n, struct run *r, struct lme_run_result *s, const char *name, struct err *e)
{
    char dir[1024], path[1024];
    struct lme_run_opts o = {.tasks = node_str(n, "tasks"),
                             .out_dir = r->out,
                             .shots = node_str(n, "shots"),
                             .metrics = node_str(n, "metrics"),
                             .prompts = LME_PROMPTS_INIT,
                             .max_length = node_i64(n, "max_length"),
                             .batch = (int32_t)node_i64(n, "batch"),
                             .log_samples = true,
                             .no_dates = true,
                             .model_name = name};
    o.bundled = !node_has(n, "data"); /* a manifest means the same wherever it runs: $DASHLAB_DATA has no say */
    if (o.bundled)
        TRY(cli_bundled(dir, "lmeval/data", e));
    else
        snprintf(dir, sizeof dir, "%s", node_path(n, "data", path));
    o.data_dir = dir;
    if (node_i64(n, "limit"))
        o.prompts.limit = (double)node_i64(n, "limit");
    o.prompts.chat = node_bool(n, "chat");
    o.prompts.template = m->tok ? chat_detect(tok_chat_template(m->tok)) : CHAT_NONE;
    return lme_run(m, &o, s, e);
}

static int lmeval_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    struct model *m = NULL;
    struct result res;
    char path[1024], mp[1024];
    struct model_open_opts mo = {.want_tokenizer = true};
    struct lme_run_result *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, sizeof *s, "results");
    int rc = env_backend(env, e);
    rc = rc ? rc : model_open(&m, env->rt.be, model_path(node_path(n, "model", path), mp), &mo, e);
    rc = rc ? rc : run_stage(m, n, r, s, mp, e);
    if (rc == 0) {
        result_begin(&res);
        write_values(&res.w, s);
        jw_ki64(&res.w, "tokens", s->tokens);
        rc = result_save(&res, r, e);
    }
    if (m)
        model_close(m);
    free(s);
    return rc ? -1 : 0;
}
static int case_bytes(void *ctx, const struct lme_case *c, struct err *e)
{
    double *sum = ctx;
    UNUSED(e);
    for (int i = 0; i < c->n_ctx; i++)
        *sum += (double)c->ctx[i].len;
    for (int r = 0; r < c->n_req; r++)
        *sum += (double)c->cont[r].len;
    return 0;
}

/* Tokens of all requests, contexts once, from the documents themselves. Documents that are not there count as none: the run says why. */
static double request_tokens(const struct node *n, const struct lme_pick *pick)
{
    enum { TOKEN_BYTES = 4 }; /* English text */
    char root[1024], path[1024];
    double bytes = 0;
    struct err ignored = ERR_INIT;
    if (node_has(n, "data"))
        snprintf(root, sizeof root, "%s", node_path(n, "data", path));
    else if (cli_bundled(root, "lmeval/data", &ignored) != 0)
        return 0;
    for (int i = 0; i < pick->n; i++) {
        struct lme_docs docs = {0}, pool = {0};
        struct lme_prompts p = LME_PROMPTS_INIT;
        if (node_i64(n, "limit"))
            p.limit = (double)node_i64(n, "limit");
        int rc = lme_shots_of(node_str(n, "shots"), pick, pick->task[i], &p.shots, &ignored);
        rc = rc || lme_load(pick->task[i], LME_EVAL, root, &docs, &ignored) ? -1 : 0;
        if (rc == 0 && p.shots)
            rc = lme_load(pick->task[i], LME_POOL, root, &pool, &ignored);
        if (rc == 0)
            (void)lme_each(pick->task[i], &docs, p.shots ? &pool : NULL, &p, case_bytes, &bytes, &ignored);
        lme_docs_free(&docs);
        if (p.shots)
            lme_docs_free(&pool);
    }
    return bytes / TOKEN_BYTES;
}

/* Names and shots, before anything runs; with an estimate, the tokens of the documents. */
static int lmeval_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e)
{
    const struct env *env = ctx;
    struct lme_pick pick;
    unsigned bits;
    int shots;
    int rc = lme_pick_tasks(node_str(n, "tasks"), &pick, e) || lme_metrics_of(node_str(n, "metrics"), &bits, e) ? -1 : 0;
    for (int i = 0; rc == 0 && i < pick.n; i++)
        rc = lme_shots_of(node_str(n, "shots"), &pick, pick.task[i], &shots, e);
    if (rc != 0)
        return err_wrap(e, "stage '%s'", n->stage->id);
    c->tokens = env && env->estimate ? (int64_t)request_tokens(n, &pick) : 0;
    return stage_plan(ctx, n, c, e);
}

const struct stage_kind kind_lmeval = {.name = "lmeval",
                                       .about = "MMLU, ARC, PIQA, WinoGrande by log-likelihood",
                                       .version = 1,
                                       .params = lmeval_params,
                                       .n_params = ARRAY_LEN(lmeval_params),
                                       .plan = lmeval_plan,
                                       .run = lmeval_stage};
