/* Stage kind: training from scratch. Defaults: the recipe of the bundled teacher (experiments/tiny/teacher/README.md). */
#include "cli/stages_pretrain.h"

#include <string.h>

#include "cli/stages_cost.h"
#include "cli/stages_work.h"
#include "core/hash.h"
#include "dash/pretrain.h"
#include "model/tok.h"
#include "model/tok_open.h"

static const char *const arch_words[] = {"qwen2", "qwen3", "llama", NULL};
static const char *const save_words[] = {"bfloat16", "float32", NULL};
enum { PART_BYTES = 16 << 20 }; /* checkpoints go through channels with a limit of 16 MiB a file */

static const struct param_spec train_params[] = {
    {.name = "tokenizer", .type = PT_REF,
     .help = "folder with a tokenizer (of a model, say), or a tokenizer.json; it is copied beside the weights"},
    P_DATA,
    {.name = "tokens", .type = PT_INT, .unit = "tokens", .def = NULL, .lo = 1, .hi = 1e13,
     .help = "training tokens (rounded to whole updates)"},
    {.name = "arch", .type = PT_WORD, .def = "qwen2", .words = arch_words,
     .help = "family: qwen2 has biases on q, k, v; qwen3 norms on q and k"},
    {.name = "layers", .type = PT_INT, .def = "12", .lo = 1, .hi = MCFG_MAX_LAYERS, .help = "layers"},
    {.name = "width", .type = PT_INT, .def = "128", .lo = 2, .hi = 131072, .help = "model width"},
    {.name = "heads", .type = PT_INT, .def = "4", .lo = 1, .hi = 1024, .help = "query heads"},
    {.name = "kv_heads", .type = PT_INT, .def = "2", .lo = 1, .hi = 1024, .help = "key and value heads"},
    {.name = "head_dim", .type = PT_INT, .def = "32", .lo = 2, .hi = MCFG_MAX_HEAD_DIM, .help = "dimension of a head"},
    {.name = "ffn", .type = PT_INT, .def = "384", .lo = 1, .hi = 1048576, .help = "width of the feed-forward block"},
    {.name = "vocab", .type = PT_INT, .unit = "tokens", .def = "0", .lo = 0, .hi = 16777216,
     .help = "rows of the embedding; 0 = the tokenizer's ids"},
    {.name = "tied", .type = PT_BOOL, .def = "true", .help = "the head is the embedding"},
    {.name = "rope_theta", .type = PT_NUM, .def = "10000.0", .lo = 1, .hi = 1e9, .help = "base of the rotary frequencies"},
    {.name = "norm_eps", .type = PT_NUM, .def = "1e-06", .lo = 1e-12, .hi = 0.1, .help = "RMSNorm"},
    {.name = "max_pos", .type = PT_INT, .unit = "tokens", .def = "2048", .lo = 2, .hi = 16777216,
     .help = "longest text, as config.json says it"},
    {.name = "init_std", .type = PT_NUM, .def = "0.02", .lo = 0, .hi = 10,
     .help = "matrices start normal with this spread, norms at 1, biases at 0"},
    {.name = "w_prompt", .type = PT_NUM, .def = "0.1", .lo = 0, .hi = 1,
     .help = "weight of prompt tokens in the loss; answers and prose have 1"},
    P_BATCH("128"),
    {.name = "lr", .type = PT_NUM, .def = "0.003", .lo = 0, .hi = 10, .help = "peak learning rate"},
    {.name = "beta1", .type = PT_NUM, .def = "0.9", .lo = 0, .hi = 0.9999, .help = "AdamW"},
    {.name = "beta2", .type = PT_NUM, .def = "0.95", .lo = 0, .hi = 0.99999, .help = "AdamW"},
    {.name = "eps", .type = PT_NUM, .def = "1e-08", .lo = 0, .hi = 1, .help = "AdamW"},
    {.name = "wd", .type = PT_NUM, .def = "0.1", .lo = 0, .hi = 1, .help = "weight decay of matrices"},
    {.name = "clip", .type = PT_NUM, .def = "1.0", .lo = 0, .hi = 1e6, .help = "gradient norm clip, 0 = none"},
    {.name = "warmup", .type = PT_INT, .unit = "steps", .def = "300", .lo = 0, .hi = 1e6, .help = "linear warm-up"},
    {.name = "schedule", .type = PT_WORD, .def = "linear", .words = schedule_words, .help = "learning rate after warm-up and hold"},
    {.name = "hold", .type = PT_NUM, .def = "0.55", .lo = 0, .hi = 1,
     .help = "share of the run, warm-up included, before a falling schedule begins to fall"},
    {.name = "lr_end", .type = PT_NUM, .def = "0.01", .lo = 0, .hi = 1, .help = "end of a falling schedule, as a factor of the peak"},
    {.name = "save_dtype", .type = PT_WORD, .def = "bfloat16", .words = save_words, .help = "type of the weights that are written"},
    P_ROWS, P_SEED, P_CKPT, P_RECOMPUTE};

int pretrain_cfg(const struct node *n, struct mcfg *c, struct err *e)
{
    char path[1024], mp[1024];
    struct tok *t;
    TRY(tok_open(&t, model_path(node_path(n, "tokenizer", path), mp), NULL, e));
    int64_t vocab = node_i64(n, "vocab"), ids = tok_vocab_size(t);
    const char *arch = node_str(n, "arch");
    *c = (struct mcfg){.arch = !strcmp(arch, "qwen3") ? ARCH_QWEN3 : !strcmp(arch, "llama") ? ARCH_LLAMA : ARCH_QWEN2,
                       .layout = LAYOUT_HF,
                       .L = node_i64(n, "layers"),
                       .d = node_i64(n, "width"),
                       .H = node_i64(n, "heads"),
                       .G = node_i64(n, "kv_heads"),
                       .head_dim = node_i64(n, "head_dim"),
                       .F = node_i64(n, "ffn"),
                       .N = vocab ? vocab : ids,
                       .max_pos = node_i64(n, "max_pos"),
                       .eps = node_f64(n, "norm_eps"),
                       .tie_embeddings = node_bool(n, "tied"),
                       .qkv_bias = !strcmp(arch, "qwen2"),
                       .qk_norm = !strcmp(arch, "qwen3"),
                       .rope = {.theta = node_f64(n, "rope_theta"), .factor = 1, .attention_factor = 1, .truncate = true},
                       .bos = tok_bos(t),
                       .pad = -1};
    if (tok_eos(t) >= 0)
        c->eos[c->n_eos++] = tok_eos(t);
    tok_free(t);
    if (c->N < ids)
        return ERR(e, E_USAGE, "stage '%s': vocab %" PRId64 " is less than the tokenizer's %" PRId64 " ids", n->stage->id, c->N, ids);
    if (mcfg_check(c, n->stage->id, e) != 0) {
        e->code = E_USAGE; /* a manifest, not a file */
        return err_wrap(e, "stage '%s'", n->stage->id);
    }
    return 0;
}

static int save_model(struct model *m, const struct node *n, struct run *r, const char *dir, struct err *e)
{
    TRY(mkdir_p(dir, e));
    return model_save(m, dir, node_str(n, "save_dtype"), r->key, e);
}

static int train_go(const struct node *n, struct run *r, struct work *w, struct model *m, struct err *e)
{
    char metrics[1024], best[1024], weights[1024], hash[65];
    struct pretrain_opts o = {.w_prompt = node_f64(n, "w_prompt"), .heldout = w->heldout, .recompute = node_bool(n, "recompute")};
    struct pretrain_result out;
    struct result res;
    work_train_opts(&o.train, n, w, r, "train", node_i64(n, "tokens"), path_join(metrics, r->out, "metrics.tsv"));
    o.train.hold = node_f64(n, "hold");
    o.train.part_bytes = PART_BYTES;
    TRY(pretrain_run(m, &w->data, &o, &out, e));
    TRY(save_model(m, n, r, r->out, e));
    if (o.train.keep_best) {
        TRY(train_load_best(m->be, &m->params, r->work, e));
        TRY(save_model(m, n, r, path_join(best, r->out, "best"), e));
    }
    TRY(sha256_file(path_join(weights, r->out, "model.safetensors"), hash, e));
    result_begin(&res);
    jw_ki64(&res.w, "parameters", params_count(&m->params, false));
    jw_ki64(&res.w, "tokens", out.train.tokens);
    jw_ki64(&res.w, "steps", out.train.steps);
    jw_kf64(&res.w, "loss_first", out.train.loss_first);
    jw_kf64(&res.w, "loss_last", out.train.loss_last);
    jw_kf64(&res.w, "heldout_before", out.train.eval_first[0]);
    jw_kf64(&res.w, "heldout_after", out.train.eval_last[0]);
    jw_kf64(&res.w, "heldout_answers_before", out.train.eval_first[1]);
    jw_kf64(&res.w, "heldout_answers_after", out.train.eval_last[1]);
    jw_kf64(&res.w, "answer_accuracy", out.train.eval_last[2]);
    jw_kf64(&res.w, "flops", out.train.flops);
    work_put_best(&res, &o.train, &out.train);
    jw_kstr(&res.w, "weights_sha256", hash);
    return result_save(&res, r, e);
}

static int train_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    struct work w = {0};
    struct mcfg c;
    struct model *m = NULL;
    char path[1024], mp[1024];
    TRY(stage_fits(env, n, e));
    TRY(env_backend(env, e));
    TRY(pretrain_cfg(n, &c, e));
    struct init_normal init = {.seed = (uint64_t)node_i64(n, "seed"), .std = node_f64(n, "init_std"), .pool = env->rt.pool};
    int rc = model_new(&m, env->rt.be, &c, model_init_normal, &init, e);
    mcfg_free(&c);
    if (rc == 0) {
        snprintf(m->tok_path, sizeof m->tok_path, "%s", model_path(node_path(n, "tokenizer", path), mp));
        rc = shard_open(&w.data, node_path(n, "data", path), false, e) || work_rows(&w, n, e) ? -1 : 0;
    }
    if (rc == 0 && w.data.seq > m->cfg.max_pos)
        rc = ERR(e, E_USAGE, "stage '%s': rows of %" PRId64 " tokens, but max_pos is %" PRId64, n->stage->id, w.data.seq, m->cfg.max_pos);
    if (rc == 0)
        rc = train_go(n, r, &w, m, e);
    model_close(m);
    work_close(&w);
    return rc;
}

const struct stage_kind kind_train = {.name = "train",
                                      .about = "a model from scratch, by cross-entropy on packed rows",
                                      .version = 1,
                                      .params = train_params,
                                      .n_params = ARRAY_LEN(train_params),
                                      .plan = stage_plan,
                                      .run = train_stage};
