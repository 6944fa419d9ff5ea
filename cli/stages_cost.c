/* Estimates for --dry-run and check. */
#include "cli/stages_cost.h"

#include <stdlib.h>
#include <string.h>

#include "cli/bench_infer.h"
#include "cli/report_kinds.h"
#include "cli/stages_pretrain.h"
#include "core/jread.h"
#include "dash/stream.h"
#include "kernels/bench.h"
#include "kernels/memory.h"

/* ---- the models of a node on a counting backend ---- */

struct shapes {
    struct backend be;
    struct model *full, *lin; /* the teacher; the same with every layer linear */
    struct linset set;        /* of lin's mixers; its parameters are lin's */
    int64_t T;                /* row length */
    double unreal;            /* bytes counted for `lin` that no stage allocates: all but the mixers */
    bool recompute, device;   /* activations are computed again; the backend has workspaces of its own */
};

static void shapes_close(struct shapes *s)
{
    free(s->set.mixer);
    model_close(s->lin);
    model_close(s->full);
    *s = (struct shapes){0};
}

/* Every layer linear, as Stage 1 makes it from this teacher. */
static void make_linear(struct mcfg *c, bool conv, bool gate)
{
    for (int64_t l = 0; l < c->L; l++) {
        c->mixer[l] = MIX_GDN;
        c->window[l] = 0;
    }
    c->layout = LAYOUT_FLA;
    c->gdn = (struct mcfg_gdn){.heads = c->H, .v_heads = c->H, .head_k_dim = c->head_dim, .head_v_dim = c->head_dim,
                               .conv_size = conv ? 4 : 0, .use_gate = gate, .norm_eps = 1e-6};
}

static bool setting_is(const struct node *n, const char *name, const char *value)
{
    const char *s = node_setting(n, name);
    return s && !strcmp(s, value);
}

static int64_t setting_i64(const struct node *n, const char *name, int64_t otherwise)
{
    const char *s = node_setting(n, name);
    int64_t v;
    return s && parse_i64(s, &v) ? v : otherwise;
}

/* What a node's `model` is in the end: a stage that trains one, or a path. Neither when it is not there. */
static const struct node *teacher_of(const struct node *n, char path[1024])
{
    path[0] = 0;
    for (size_t i = 0; i < n->kind->n_params; i++) {
        if (strcmp(n->kind->params[i].name, "model"))
            continue;
        if (n->ref[i] && n->ref[i][0])
            return !strcmp(n->ref[i][0]->kind->name, "train") ? n->ref[i][0] : teacher_of(n->ref[i][0], path);
        if (n->path[i])
            model_path(n->path[i], path);
    }
    return NULL;
}

/* The shape that a checkpoint's folder is called by ("models/Qwen2.5-3B-Instruct"), for one that is not there yet. */
static bool named_shape(const char *path, struct mcfg *c)
{
    char name[64];
    size_t n = 0;
    for (const char *s = path_base(path); *s && n + 1 < sizeof name; s++)
        name[n++] = *s >= 'A' && *s <= 'Z' ? (char)(*s + 32) : *s;
    name[n] = 0;
    char *tail = strstr(name, "-instruct");
    if (tail)
        *tail = 0;
    return infer_shape(name, c);
}

static bool teacher_cfg(const struct node *n, bool by_name, struct mcfg *c)
{
    char path[1024];
    struct err ignored = ERR_INIT;
    const struct node *made = teacher_of(n, path);
    if (made)
        return pretrain_cfg(made, c, &ignored) == 0;
    if (!*path)
        return false;
    return mcfg_load(c, path, &ignored) == 0 || (by_name && !dir_exists(path) && !file_exists(path) && named_shape(path, c));
}

/* Row length of the data: as packed here, or as the shard says that was given by flag. */
static int64_t row_length(const struct node *n)
{
    int64_t seq = setting_i64(n, "seq", 0);
    char path[1024], file[1024];
    struct jdoc d;
    struct err ignored = ERR_INIT;
    for (size_t i = 0; !seq && i < n->kind->n_params; i++)
        if (!strcmp(n->kind->params[i].name, "data") && n->path[i] &&
            file_exists(path_join(file, node_path(n, "data", path), "shard.json")) && jdoc_load(&d, file, 1 << 20, &ignored) == 0) {
            (void)jget_i64(&d, d.root, "", "seq", 1, INT32_MAX, &seq, &ignored);
            jdoc_free(&d);
        }
    return seq ? seq : 1024;
}

/* A counting backend with the types of the one that will run. */
static void counting(const struct env *env, struct backend *be)
{
    bool bf16 = env->n_rates > 0 || (!env->rt.be && !strcmp(env->common->device, "cuda")) ? !strcmp(cli_dtype(env->common), "bf16")
                : env->rt.be && env->rt.be->act == DT_BF16;
    struct backend like = {.act = bf16 ? DT_BF16 : DT_F32, .stat = DT_F32, .determinism = "strict"};
    backend_count(be, &like);
}

static bool on_device(const struct env *env)
{
    return env->n_rates > 0 || (env->rt.be ? strcmp(env->rt.be->ops->name, "cpu") != 0 : !strcmp(env->common->device, "cuda"));
}

static bool recomputes(const struct env *env, const struct node *n)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (!strcmp(n->kind->params[i].name, "recompute"))
            return env->recompute || node_bool(n, "recompute");
    return false;
}

/* 1 = made, 0 = the model is not there or not readable (its run will say why), -1 = error. */
static int shapes_open(struct shapes *s, const struct env *env, const struct node *n, struct err *e)
{
    struct mcfg c, lc;
    *s = (struct shapes){.T = row_length(n), .recompute = recomputes(env, n), .device = on_device(env)};
    if (!teacher_cfg(n, env->by_name, &c))
        return 0;
    counting(env, &s->be);
    int rc = model_new(&s->full, &s->be, &c, NULL, NULL, e);
    if (rc == 0)
        rc = mcfg_copy(&lc, &c, e);
    if (rc == 0) {
        int64_t before = s->be.mem_used_bytes;
        make_linear(&lc, setting_is(n, "conv", "true"), !setting_is(n, "gate", "false"));
        rc = model_new(&s->lin, &s->be, &lc, NULL, NULL, e);
        s->unreal = (double)(s->be.mem_used_bytes - before);
        mcfg_free(&lc);
    }
    if (rc == 0) {
        s->set = (struct linset){.be = &s->be, .cfg = s->lin->cfg, .mixer = calloc((size_t)c.L, sizeof(struct mixer))};
        rc = s->set.mixer ? 0 : err_nomem(e, (size_t)c.L * sizeof(struct mixer), "an estimate");
    }
    for (int64_t l = 0; rc == 0 && l < c.L; l++)
        s->set.mixer[l] = *s->lin->layer[l].lin;
    for (size_t i = 0; rc == 0 && i < s->lin->params.n; i++)
        s->unreal -= s->lin->params.v[i]->group == PG_MIXER ? (double)s->lin->params.v[i]->n * 4 : 0;
    mcfg_free(&c);
    if (rc != 0)
        shapes_close(s);
    return rc ? -1 : 1;
}

/* ---- costs of passes ---- */

/* FLOPs of one row: forward alone, or with backward. */
static double pass(const struct model *m, int64_t T, bool backward, bool wgrad)
{
    struct err ignored = ERR_INIT;
    double f = 0;
    return model_flops(m, 1, T, backward, wgrad, &f, &ignored) == 0 ? f : 0;
}

/* KL of one row against the teacher through both heads. */
static double head(const struct model *m, int64_t T, bool grad, bool head_grad)
{
    struct view v = {(void *)(uintptr_t)64, DT_F32, 0}, none = NO_VIEW;
    struct op_head_kl op = {.dhs = grad ? v : none, .dws = head_grad ? v : none, .rows = T, .dim = m->cfg.d, .vocab = m->cfg.N};
    return cost_head_kl(&op).flops;
}

/* A hybrid with K Full layers, evenly spread: what is known before a choice is made. */
static int hybrid(struct model **out, struct shapes *s, const struct node *n, bool copy, struct err *e)
{
    unsigned ops[MCFG_MAX_LAYERS];
    int64_t L = s->full->cfg.L, K = setting_i64(n, "budget", L / 4);
    for (int64_t l = 0; l < L; l++)
        ops[l] = (l + 1) * K / L > l * K / L ? MIX_BIT(MIX_FULL) : MIX_BIT(MIX_GDN);
    struct assemble_opts ao = {.ops = ops, .window = setting_i64(n, "window", 128), .copy = copy};
    return model_assemble(out, s->full, &s->set, &ao, e);
}

/* ---- kinds ---- */

static double gen_tokens(const struct node *n)
{
    int64_t len[64];
    double sum = 0, tasks = 0;
    size_t k = node_list_i64(n, "lengths", len, ARRAY_LEN(len));
    for (size_t i = 0; i < k; i++)
        sum += (double)len[i];
    for (const char *s = node_str(n, "tasks"); *s; s += strcspn(s, ","), s += *s == ',')
        tasks++;
    if (tasks == 0)
        tasks = strcmp(node_str(n, "flavour"), "compact") ? 13 : 11;
    return sum * tasks * (double)node_i64(n, "samples");
}

/* Tokens of the data that a node works on: a shard or samples. */
static double data_tokens(const struct node *n)
{
    if (!n)
        return 0;
    if (!strcmp(n->kind->name, "ruler-gen"))
        return gen_tokens(n);
    if (strcmp(n->kind->name, "pack"))
        return 0;
    double sum = 0;
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            sum += data_tokens(n->ref[i][k]);
    if (sum == 0)
        return (double)(node_i64(n, "text_rows") * node_i64(n, "seq"));
    return node_has(n, "text") ? sum / (1 - MIN(node_f64(n, "text_share"), 0.99)) : sum;
}

static bool method_is(const struct node *n, const char *words)
{
    const char *m = node_str(n, "method");
    size_t len = strlen(m), w;
    for (; *words; words += w + (words[w] == ' ')) {
        w = strcspn(words, " ");
        if (w == len && !strncmp(words, m, w))
            return true;
    }
    return false;
}

/* Whether a select run sweeps over the layers with rows of a shard. */
static bool sweeps(const struct node *n)
{
    return node_has(n, "data") && !node_has(n, "scores") && method_is(n, "lm-ppl act-mse smart ga-s1 gr-s1");
}

/* Tokens of one pass over a probe's prompts with their answers. */
static double probe_tokens(const struct node *n)
{
    enum { RAW_PROMPT = 400 }; /* fifty pairs and a question */
    bool ruler = !strcmp(node_str(n, "probe_form"), "ruler");
    double each = ruler ? (double)node_i64(n, "length") : RAW_PROMPT + (double)node_i64(n, "max_new");
    if (node_has(n, "scores") || !method_is(n, "kv ar ar-mh vt cwe halo"))
        return 0;
    return (double)node_i64(n, "prompts") * each * (method_is(n, "halo") ? 3 : 1);
}

/* Tokens that `infer` reads: prompts of every length, warm-up and timed rounds. */
static double infer_tokens(const struct node *n)
{
    double ctx[64], sum = 0;
    size_t k = node_list_f64(n, "contexts", ctx, ARRAY_LEN(ctx));
    for (size_t i = 0; i < k; i++)
        sum += ctx[i];
    return sum * (double)(node_i64(n, "sequences") * (node_i64(n, "warmup") + node_i64(n, "reps")));
}

static double tokens_of(const struct node *n)
{
    const char *kind = n->kind->name;
    double list[64];
    if (!strcmp(kind, "align") || !strcmp(kind, "search") || !strcmp(kind, "distill") || !strcmp(kind, "train"))
        return (double)node_i64(n, "tokens") * (!strcmp(kind, "search") && node_has(n, "sweep")
                                                ? (double)node_list_f64(n, "sweep", list, ARRAY_LEN(list)) : 1);
    if (!strcmp(kind, "hidden") || !strcmp(kind, "ruler"))
        return data_tokens(node_ref(n, "data"));
    if (!strcmp(kind, "select") && sweeps(n))
        return (double)(node_i64(n, "rows") * setting_i64(n, "seq", 1024));
    if (!strcmp(kind, "select"))
        return probe_tokens(n);
    if (!strcmp(kind, "infer"))
        return infer_tokens(n);
    if (!strcmp(kind, "landscape"))
        return (double)(node_i64(n, "heldout") * setting_i64(n, "seq", 1024));
    return 0;
}

/* What a device's ops take beside: matrix products, logits of a chunk of rows in float through n heads, decays and inverses of the gated
 * delta rule. The host's scratch is small. */
static double workspace(const struct shapes *s, int64_t rows, int heads, bool grad)
{
    const struct mcfg *c = &s->full->cfg;
    double ldz = (double)(CEIL_DIV(c->N, 8) * 8), each = ldz * 4 * MAX(heads, 1);
    double chunk = MIN((double)rows, MIN(MAX(1024.0, 268435456.0 / each), 1310720000.0 / each));
    double act = (double)dtype_size(s->be.act), gdn = (double)rows * (double)c->H * 64 * 2 * act;
    return s->device ? 67108864.0 + heads * chunk * ldz * 4 + (grad && act < 4 ? chunk * ldz * act : 0) + gdn : 0;
}

/* Allocations of one KL stream of `micro` rows, with the activations of a student. */
static int stream_memory(struct shapes *s, struct model *student, int64_t micro, bool cached, bool train, bool wgrad,
                         struct stage_cost *c, struct err *e)
{
    struct shard shard = {.seq = s->T, .vocab = s->full->cfg.N};
    struct hcache cache = {0};
    struct stream st;
    struct acts a = {0};
    struct acts_opts ao = {.rows = micro * s->T, .seqs = (int32_t)micro, .train = train, .wgrad = wgrad, .recompute = s->recompute};
    if (train && wgrad)
        TRY(params_alloc(&student->params, true, true, e));
    double stays = (double)s->be.mem_used_bytes;
    TRY(stream_open(&st, &s->be, &shard, s->full, cached ? &cache : NULL, micro, 1, e));
    int rc = student ? acts_open(&a, student, &ao, e) : 0;
    double extra = workspace(s, micro * s->T, 2, train);
    c->memory_bytes = (double)s->be.mem_peak_bytes + extra;
    c->act_bytes = c->memory_bytes - stays;
    if (a.layer)
        acts_close(&a);
    stream_close(&st);
    return rc;
}

/* Free-running alignment: the student's activations, and the teacher's outputs of every layer, on top. */
static int free_memory(struct shapes *s, int64_t micro, struct stage_cost *c, struct err *e)
{
    size_t keep, tmp;
    struct acts_opts ao = {.rows = micro * s->T, .seqs = (int32_t)micro, .train = true, .wgrad = true, .recompute = s->recompute};
    TRY(acts_plan(s->lin, &ao, &keep, &tmp, e));
    double more = (double)(keep + tmp) + (double)(s->full->cfg.L * micro * s->T * s->full->cfg.d) * (double)dtype_size(s->be.act);
    c->act_bytes += more;
    c->memory_bytes += more;
    return 0;
}

static int align_cost(struct shapes *s, const struct node *n, double rows, struct stage_cost *c, struct err *e)
{
    double mix = 0;
    int64_t micro = MIN(node_i64(n, "micro"), node_i64(n, "batch")), R = micro * s->T;
    size_t keep = 0, tmp = 0, k, t;
    struct acts a;
    struct acts_opts ao = {.rows = R, .seqs = (int32_t)micro};
    for (int64_t l = 0; l < s->full->cfg.L; l++) {
        double f = 0;
        TRY(mixer_plan(&s->set.mixer[l], &s->be, R, (int32_t)micro, &k, &t, e));
        TRY(mixer_flops(&s->set.mixer[l], &s->be, s->T, &f, e));
        keep = MAX(keep, k);
        tmp = MAX(tmp, t);
        mix += f;
    }
    c->flops = rows * (pass(s->full, s->T, false, false) + mix);
    TRY(acts_open(&a, s->full, &ao, e));
    double mixers = 0; /* weights stand in mem_used; gradient and two moments */
    for (size_t i = 0; i < s->lin->params.n; i++)
        mixers += s->lin->params.v[i]->group == PG_MIXER ? (double)s->lin->params.v[i]->n * 4 : 0;
    double act = (double)dtype_size(s->be.act), rows_bytes = (double)R * (double)s->full->cfg.d * act;
    c->act_bytes = (double)(a.keep.cap_bytes + a.tmp.cap_bytes + keep + tmp) + 2 * rows_bytes + workspace(s, R, 0, false);
    c->memory_bytes = (double)s->be.mem_used_bytes - (double)(a.keep.cap_bytes + a.tmp.cap_bytes) + 3 * mixers + c->act_bytes;
    acts_close(&a);
    return node_bool(n, "free_running") ? free_memory(s, micro, c, e) : 0;
}

static int search_cost(struct shapes *s, const struct node *n, double rows, struct stage_cost *c, struct err *e)
{
    unsigned ops[MCFG_MAX_LAYERS];
    bool three = setting_is(n, "ops", "full,window,linear");
    struct model *super;
    for (int64_t l = 0; l < s->full->cfg.L; l++)
        ops[l] = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN) | (three ? MIX_BIT(MIX_WINDOW) : 0);
    struct assemble_opts ao = {.ops = ops, .window = node_i64(n, "window")};
    TRY(model_assemble(&super, s->full, &s->set, &ao, e));
    c->flops = rows * (pass(super, s->T, true, false) + head(s->full, s->T, true, false) + (node_has(n, "hidden") ? 0
                           : pass(s->full, s->T, false, false)));
    int rc = stream_memory(s, super, node_i64(n, "micro"), node_has(n, "hidden"), true, false, c, e);
    model_close(super);
    return rc;
}

static int distill_cost(struct shapes *s, const struct node *n, double rows, struct stage_cost *c, struct err *e)
{
    struct model *m;
    bool train = node_i64(n, "tokens") > 0;
    TRY(hybrid(&m, s, n, true, e));
    params_set_trainable(&m->params, -1, train);
    c->flops = rows * (pass(m, s->T, true, true) + head(s->full, s->T, true, true) + (node_has(n, "hidden") ? 0
                           : pass(s->full, s->T, false, false)));
    int rc = stream_memory(s, m, MIN(node_i64(n, "micro"), node_i64(n, "batch")), node_has(n, "hidden"), train, train, c, e);
    model_close(m);
    return rc;
}

/* Rows of training with all weights moving, or with gates alone, as the methods that train do; every method is counted for the tokens that
 * it takes and what it keeps in memory is that of a distillation. */
static int trained_cost(struct shapes *s, const struct node *n, struct stage_cost *c, struct err *e)
{
    struct model *m;
    double L = (double)s->full->cfg.L, K = (double)node_i64(n, "budget"), rows = (double)node_i64(n, "tokens") / (double)s->T;
    double forward = pass(s->full, s->T, false, false), kl = head(s->full, s->T, false, false), held = (double)node_i64(n, "heldout");
    bool gates = method_is(n, "flashmorph"), each = method_is(n, "ga-s2 gr-s2");
    TRY(hybrid(&m, s, n, true, e));
    params_set_trainable(&m->params, -1, true);
    double step = gates ? 4 * forward : pass(m, s->T, true, true) + head(s->full, s->T, true, true); /* gates: both paths, there and back */
    int64_t micro = MIN(node_i64(n, "micro"), node_i64(n, "train_batch"));
    int rc = stream_memory(s, m, micro, node_has(n, "hidden"), true, !gates, c, e);
    c->tokens = (int64_t)((each ? L : 1) * (double)node_i64(n, "tokens"));
    c->flops = (each ? L : 1) * rows * step + (each ? L * held * (forward + kl) : 0);
    if (method_is(n, "postnas")) { /* the beam scores every extension of every set that it keeps */
        double sets = (double)node_i64(n, "beam") * L * K;
        c->flops += sets * held * (forward + kl);
        c->tokens += (int64_t)(sets * held * (double)s->T);
    }
    model_close(m);
    return rc;
}

/*
 * Sweeps: the teacher's (or student's) forward over rows, once with each layer's mixer left out, restored or converted; one that begins at
 * that layer takes half of a forward on average. Probes: prompts with their answers, once for each layer and once whole.
 */
static int select_cost(struct shapes *s, const struct node *n, double rows, struct stage_cost *c, struct err *e)
{
    double L = (double)s->full->cfg.L, forward = pass(s->full, s->T, false, false), kl = head(s->full, s->T, false, false);
    if (node_has(n, "scores"))
        return 0;
    if (method_is(n, "ga-s2 gr-s2 flashmorph postnas"))
        return trained_cost(s, n, c, e);
    if (method_is(n, "lm-ppl act-mse"))
        c->flops = rows * (forward * (1 + (L + 1) / 2) + kl * (L + 1));
    else if (sweeps(n))
        c->flops = rows * (L + 2) * (forward + (method_is(n, "smart") ? kl : 0));
    else if (probe_tokens(n) > 0) {
        c->flops = (L + 1) * probe_tokens(n) / (double)s->T * forward;
        c->tokens = (int64_t)((L + 1) * probe_tokens(n));
    } else
        return 0;
    TRY(stream_memory(s, s->full, node_i64(n, "micro"), node_has(n, "hidden"), false, false, c, e));
    c->memory_bytes += L * (double)(node_i64(n, "micro") * s->T * s->full->cfg.d) * 4;
    return 0;
}

/* Every binary set of the budget over the held-out rows; a set begins where it differs from the one before: half of a forward on average.
 */
static int landscape_cost(struct shapes *s, const struct node *n, double rows, struct stage_cost *c, struct err *e)
{
    double sets = 1, K = (double)node_i64(n, "budget"), L = (double)s->full->cfg.L;
    for (double k = 1; k <= K; k++)
        sets *= (L - K + k) / k;
    c->tokens = (int64_t)(sets * rows * (double)s->T);
    c->flops = sets * rows * (pass(s->full, s->T, false, false) / 2 + head(s->full, s->T, false, false));
    TRY(stream_memory(s, s->full, node_i64(n, "micro"), true, false, false, c, e));
    return 0;
}

/* One length of `infer`: prefill by its FLOPs, decoding by what it reads. A length that memory_gib keeps from being tried costs nothing. */
static int infer_length(const struct node *n, struct model *m, double idle_bytes, int64_t context, struct stage_cost *c, struct err *e)
{
    struct infer_opts o = {.context = context, .decode = node_i64(n, "decode"), .batch = (int32_t)node_i64(n, "sequences"),
                           .piece = node_i64(n, "piece")};
    struct infer_run r;
    double limit = node_f64(n, "memory_gib") * 1073741824, rounds = (double)(node_i64(n, "warmup") + node_i64(n, "reps"));
    TRY(infer_need(m, &o, &r, e));
    if (limit > 0 && r.need_bytes - idle_bytes > limit)
        return 0;
    double weights = r.weight_bytes - idle_bytes, cache = (double)cache_bytes(m, o.batch, context + o.decode / 2);
    c->flops += rounds * (double)o.batch * pass(m, context, false, false);
    c->read_bytes += rounds * (double)o.decode * (weights + cache);
    c->memory_bytes = MAX(c->memory_bytes, r.need_bytes);
    return 0;
}

static int infer_cost(struct shapes *s, const struct node *n, struct stage_cost *c, struct err *e)
{
    double ctx[64], idle = s->unreal;
    size_t k = node_list_f64(n, "contexts", ctx, ARRAY_LEN(ctx));
    bool own = node_ref(n, "model") && strcmp(node_ref(n, "model")->kind->name, "train");
    struct model *m = s->full;
    if (own)
        TRY(hybrid(&m, s, n, false, e));
    for (size_t i = 0; !own && i < s->lin->params.n; i++) /* a teacher has no mixers */
        idle += s->lin->params.v[i]->group == PG_MIXER ? (double)s->lin->params.v[i]->n * 4 : 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < k; i++)
        rc = infer_length(n, m, idle, (int64_t)ctx[i], c, e);
    if (own)
        model_close(m);
    return rc;
}

/* Short requests: contexts once, their continuations after them. */
static void lmeval_cost(const struct shapes *s, struct stage_cost *c)
{
    enum { REQUEST = 128 };
    c->flops = (double)c->tokens / REQUEST * pass(s->full, REQUEST, false, false);
    c->memory_bytes = (double)s->be.mem_used_bytes;
}

static int hidden_cost(struct shapes *s, const struct node *n, double rows, struct stage_cost *c, struct err *e)
{
    c->flops = rows * pass(s->full, s->T, false, false);
    TRY(stream_memory(s, NULL, node_i64(n, "micro"), false, false, false, c, e));
    return 0;
}

/* On a device prompts are read twice: to decode from, and with the reference answer for its likelihood; on the host once (gen_opts.full),
 * and what prompts have in common, which is not known here, once for all of them. Memory: weights, caches of a batch, a
 * prefill of 2048 rows. */
static int ruler_cost(struct shapes *s, const struct node *n, struct stage_cost *c, struct err *e)
{
    int64_t len[64], longest = 0;
    const struct node *data = node_ref(n, "data");
    size_t k = data ? node_list_i64(data, "lengths", len, ARRAY_LEN(len)) : 0;
    for (size_t i = 0; i < k; i++)
        longest = MAX(longest, len[i]);
    if (!longest)
        return 0;
    struct model *m = NULL;
    bool own = node_ref(n, "model") && strcmp(node_ref(n, "model")->kind->name, "train");
    if (own)
        TRY(hybrid(&m, s, n, false, e));
    else
        m = s->full;
    struct acts a;
    struct acts_opts ao = {.rows = MAX((int64_t)2048, longest), .seqs = (int32_t)node_i64(n, "batch")};
    c->flops = (s->device ? 2 : 1) * (double)c->tokens / (double)longest * pass(m, longest, false, false);
    int rc = acts_open(&a, m, &ao, e);
    c->memory_bytes = (double)s->be.mem_used_bytes + (double)cache_bytes(m, (int32_t)node_i64(n, "batch"), longest);
    if (rc == 0)
        acts_close(&a);
    if (own)
        model_close(m);
    return rc;
}

/* A model from scratch: weights, gradients, moments; activations of a micro-batch. */
static int train_cost(const struct env *env, const struct node *n, struct stage_cost *c, struct err *e)
{
    struct shapes s = {.T = row_length(n), .device = on_device(env)};
    struct err ignored = ERR_INIT;
    struct mcfg cfg;
    struct acts a = {0};
    int64_t micro = MIN(node_i64(n, "micro"), node_i64(n, "batch")), R = micro * s.T;
    struct acts_opts ao = {.rows = R, .seqs = (int32_t)micro, .train = true, .wgrad = true, .recompute = recomputes(env, n)};
    if (pretrain_cfg(n, &cfg, &ignored) != 0)
        return 0; /* its run will say why */
    counting(env, &s.be);
    int rc = model_new(&s.full, &s.be, &cfg, NULL, NULL, e);
    mcfg_free(&cfg);
    if (rc == 0)
        rc = params_alloc(&s.full->params, true, true, e);
    double stays = (double)s.be.mem_used_bytes;
    if (rc == 0)
        rc = acts_open(&a, s.full, &ao, e);
    if (rc == 0) {
        struct view v = {(void *)(uintptr_t)64, DT_F32, 0};
        struct op_head_ce op = {.dh = v, .dw = v, .rows = s.T, .dim = s.full->cfg.d, .vocab = s.full->cfg.N};
        c->flops = (double)c->tokens / (double)s.T * (pass(s.full, s.T, true, true) + cost_head_ce(&op).flops);
        c->memory_bytes = (double)s.be.mem_peak_bytes + workspace(&s, R, 1, true) +
                          (double)R * ((double)s.full->cfg.d * (double)dtype_size(s.be.act) + 16);
        c->act_bytes = c->memory_bytes - stays;
    }
    if (a.layer)
        acts_close(&a);
    model_close(s.full);
    return rc;
}

static const struct stage_rate *rate_line(const struct env *env, const char *kind)
{
    for (size_t i = 0; i < env->n_rates; i++)
        if (!strcmp(env->rates[i].kind, kind))
            return &env->rates[i];
    return NULL;
}

static void put_seconds(const struct env *env, const char *kind, struct stage_cost *c)
{
    const struct stage_rate *own = rate_line(env, kind), *any = own ? own : rate_line(env, "*");
    double rate = any ? any->rate : env->rate;
    if (rate > 0)
        c->seconds = c->flops / rate + (env->bandwidth > 0 ? c->read_bytes / env->bandwidth : 0);
    c->assumed = any && !any->measured;
}

/* Searches whose column the first seed does not fill are made again with other seeds, then with other lambdas. */
static int64_t more_runs(const struct node *n)
{
    int64_t seeds[64];
    size_t k;
    if (strcmp(n->kind->name, "search") || !node_has(n, "budget"))
        return 0;
    k = node_list_i64(n, "seeds", seeds, ARRAY_LEN(seeds));
    return (int64_t)(k ? k - 1 : 0) + node_i64(n, "bisect");
}

int stage_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e)
{
    const struct env *env = ctx;
    const char *kind = n->kind->name;
    struct shapes s;
    double tokens = tokens_of(n);
    if (tokens > 0) /* else what the kind's own hook said: methods that train */
        c->tokens = (int64_t)tokens;
    if (!env || !env->estimate || c->tokens == 0)
        return 0;
    int rc = 0;
    if (!strcmp(kind, "train"))
        rc = train_cost(env, n, c, e);
    else {
        int have = shapes_open(&s, env, n, e);
        if (have <= 0)
            return have;
        double rows = (double)c->tokens / (double)s.T;
        rc = !strcmp(kind, "align")     ? align_cost(&s, n, rows, c, e)
             : !strcmp(kind, "search")  ? search_cost(&s, n, rows, c, e)
             : !strcmp(kind, "distill") ? distill_cost(&s, n, rows, c, e)
             : !strcmp(kind, "select")  ? select_cost(&s, n, rows, c, e)
             : !strcmp(kind, "hidden")  ? hidden_cost(&s, n, rows, c, e)
             : !strcmp(kind, "ruler")   ? ruler_cost(&s, n, c, e)
             : !strcmp(kind, "infer")   ? infer_cost(&s, n, c, e)
             : !strcmp(kind, "landscape") ? landscape_cost(&s, n, rows, c, e)
                                        : 0;
        if (!strcmp(kind, "lmeval"))
            lmeval_cost(&s, c);
        c->memory_bytes = MAX(c->memory_bytes - s.unreal, 0);
        shapes_close(&s);
    }
    c->more_runs = more_runs(n);
    put_seconds(env, kind, c);
    return rc;
}

/* One line of rates.tsv for the device: into the env, and into what is said of the rates. */
static int take_rate(struct env *env, const struct tsv *t, size_t i, const char *path, struct str *measured, struct str *assumed,
                     struct err *e)
{
    const char *kind = tsv_cell(t, i, "kind"), *unit = tsv_cell(t, i, "unit");
    double rate = 1e12 * tsv_number(t, i, "rate");
    bool yes = !strcmp(tsv_cell(t, i, "measured"), "yes"), bytes = !strcmp(unit, "TB/s");
    if (!(rate > 0))
        return ERR(e, E_INPUT, "%s: row %zu: 'rate' is no number above 0", path, i);
    if (env->n_rates == ARRAY_LEN(env->rates))
        return ERR(e, E_INPUT, "%s: more than %zu lines for one device", path, ARRAY_LEN(env->rates));
    if (bytes)
        env->bandwidth = rate;
    struct stage_rate *r = &env->rates[env->n_rates++];
    *r = (struct stage_rate){.rate = rate, .measured = yes};
    snprintf(r->kind, sizeof r->kind, "%.15s", kind);
    struct str *s = yes ? measured : assumed;
    str_printf(s, "%s%s %s %s (%s)", s->len ? ", " : "", strcmp(kind, "*") ? kind : "every other kind", tsv_cell(t, i, "rate"), unit,
               tsv_cell(t, i, "source"));
    return 0;
}

int cost_device(struct env *env, const char *device, struct err *e)
{
    char path[1024];
    struct arena a;
    struct tsv t;
    struct str have = STR_INIT, measured = STR_INIT, assumed = STR_INIT;
    const char *dtype = cli_dtype(env->common);
    TRY(cli_bundled(path, "experiments/rates.tsv", e));
    arena_init(&a, 0);
    int rc = tsv_load(&t, &a, path, e);
    for (size_t i = 1; rc == 0 && i < t.n; i++) {
        const char *one = arena_printf(&a, "%s in %s", tsv_cell(&t, i, "device"), tsv_cell(&t, i, "dtype"));
        if (one && !strstr(str_c(&have), one))
            str_printf(&have, "%s%s", have.len ? ", " : "", one);
        if (!strcmp(tsv_cell(&t, i, "device"), device) && !strcmp(tsv_cell(&t, i, "dtype"), dtype))
            rc = take_rate(env, &t, i, path, &measured, &assumed, e);
    }
    if (rc == 0 && env->n_rates == 0)
        rc = ERR(e, E_USAGE, "no rates are known of '%s' in %s (--dtype takes another); '%s' has: %s", device, dtype, path, str_c(&have));
    snprintf(env->rates_about, sizeof env->rates_about, "measured: %s; assumed: %s", measured.len ? str_c(&measured) : "nothing",
             assumed.len ? str_c(&assumed) : "nothing");
    str_free(&have);
    str_free(&measured);
    str_free(&assumed);
    arena_free(&a);
    return rc;
}

/* ---- what fits ---- */

double cost_limit(const struct env *env)
{
    if (env->common->memory_limit_bytes > 0)
        return env->common->memory_limit_bytes;
    if (env->rt.be)
        return (double)backend_device_bytes(env->rt.be);
    return (double)host_memory_bytes();
}

int cost_fits(const struct env *env, const struct node *n, const struct stage_cost *c, struct err *e)
{
    const double gib = 1 << 30, limit = cost_limit(env);
    char help[160] = "take a smaller 'micro'";
    if (limit <= 0 || c->memory_bytes <= limit)
        return 0;
    if (!recomputes(env, n) && n->kind->plan) { /* would computing activations again help? */
        struct env other = *env;
        struct stage_cost again = {0};
        struct err ignored = ERR_INIT;
        other.recompute = other.estimate = true;
        other.rate = 0;
        if (recomputes(&other, n) && n->kind->plan(&other, n, &again, &ignored) == 0 && again.memory_bytes < 0.99 * c->memory_bytes)
            snprintf(help, sizeof help, "take a smaller 'micro', or set recompute: true (%.2f GiB then)", again.memory_bytes / gib);
    }
    return ERR(e, E_ENV,
               "stage '%s' %s%sdoes not fit: %.2f GiB (%.2f for weights, gradients and moments, %.2f for activations and other memory of a "
               "step), %s has %.2f GiB; %s",
               n->stage->id, n->point, *n->point ? " " : "", c->memory_bytes / gib, (c->memory_bytes - c->act_bytes) / gib,
               c->act_bytes / gib, env->common->memory_limit_bytes > 0 ? "--memory-limit" : env->rt.be ? "the device" : "this machine",
               limit / gib, help);
}

int stage_fits(struct env *env, const struct node *n, struct err *e)
{
    struct stage_cost c = {0};
    TRY(env_backend(env, e));
    struct env own = *env;
    own.estimate = true;
    own.rate = 0;
    return n->kind->plan ? n->kind->plan(&own, n, &c, e) || cost_fits(&own, n, &c, e) ? -1 : 0 : 0;
}

static void take_row(void *ctx, const struct bench_row *r)
{
    *(double *)ctx = r->gflops * 1e9;
}

int cost_rate(struct env *env, struct err *e)
{
    struct bench_opts o = {.op = "gemm", .shape = "m=512,n=1536,k=576", .seconds = 0.1, .no_check = true};
    double gemm = 0;
    struct bench_peak peak;
    TRY(env_backend(env, e));
    TRY(bench_op(env->rt.be, &o, NULL, NULL, take_row, &gemm, e));
    TRY(bench_peak_measure(env->rt.be, &peak, e));
    env->rate = COST_SHARE * gemm;
    env->bandwidth = COST_SHARE * 1e9 * peak.gbs;
    return 0;
}
