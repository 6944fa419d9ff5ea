/* Small random models, linear mixers and token shards for tests of searches and selectors. */
#ifndef TESTS_SMALL_H
#define TESTS_SMALL_H

#include "core/fs.h"
#include "core/rng.h"
#include "model/data.h"
#include "model/model.h"
#include "tests/test.h"

enum { SMALL_VOCAB = 40, SMALL_SEQ = 24 };

static inline struct mcfg small_cfg(int layers)
{
    struct mcfg c = {.arch = ARCH_QWEN2, .L = layers, .d = 16, .H = 4, .G = 2, .head_dim = 4, .F = 12, .N = SMALL_VOCAB, .max_pos = 128,
                     .eps = 1e-6, .tie_embeddings = true, .qkv_bias = true, .bos = -1, .pad = -1};
    c.rope = (struct mcfg_rope){.theta = 1e4, .factor = 1, .attention_factor = 1, .truncate = true};
    return c;
}

/* A random teacher (frozen) and its untrained linear mixers. planted >= 0: the output of that layer's mixer is made large and of all
 * others small, in the teacher and, with it, in the mixers made from it: so the layer's attention matters and no other's does. */
static inline void small_model(struct backend *be, int layers, int planted, struct model **t, struct linset **lin)
{
    struct mcfg c = small_cfg(layers);
    struct linset_opts lo = LINSET_OPTS;
    struct init_normal init = {.seed = 7, .std = 0.25};
    CHECK_OK(model_new(t, be, &c, model_init_normal, &init, e));
    params_set_trainable(&(*t)->params, -1, false);
    for (size_t i = 0; planted >= 0 && i < (*t)->params.n; i++) {
        struct param *p = (*t)->params.v[i];
        if (!strstr(p->name, "self_attn.o_proj.weight"))
            continue;
        float *w = malloc((size_t)p->n * sizeof *w);
        CHECK_OK(get_f32(be, w, p->w, e));
        for (int64_t j = 0; j < p->n; j++)
            w[j] *= p->layer == planted ? 4.0f : 0.02f;
        CHECK_OK(put_f32(be, p->w, w, e));
        free(w);
    }
    lo.init.seed = 7;
    CHECK_OK(linset_make(lin, *t, &lo, e));
}

/* `rows` random rows of SMALL_SEQ tokens (every third one shorter); the last quarter of a row is an answer. */
static inline void small_shard(const char *dir, int rows, struct shard *s)
{
    struct shard_out o;
    CHECK_OK(shard_create(&o, dir, SMALL_SEQ, SMALL_VOCAB, e));
    for (int r = 0; r < rows; r++) {
        int32_t ids[SMALL_SEQ];
        uint8_t mask[SMALL_SEQ];
        int n = r % 3 == 2 ? SMALL_SEQ - 5 : SMALL_SEQ;
        for (int t = 0; t < n; t++) {
            ids[t] = (int32_t)ctr_below(11, (uint64_t)r, (uint64_t)t, SMALL_VOCAB);
            mask[t] = (uint8_t)(TOK_PRESENT | (t >= n - n / 4 ? TOK_ANSWER : 0));
        }
        CHECK_OK(shard_add(&o, ids, mask, n, true, e));
    }
    CHECK_OK(shard_commit(&o, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", e));
    CHECK_OK(shard_open(s, dir, true, e));
}

/* A CPU backend with its pool (none for one thread), a model, its mixers and a shard: what searches and selections run on. */
struct small {
    struct backend *be;
    struct pool *pool;
    struct model *teacher;
    struct linset *lin;
    struct shard shard;
};
static inline void small_open(struct small *s, const char *shard_dir, int rows, int layers, int planted, int threads)
{
    *s = (struct small){0};
    if (threads > 1)
        CHECK_OK(pool_open(&s->pool, threads, e));
    CHECK_OK(backend_open(&s->be, &(struct backend_opts){.name = "cpu", .pool = s->pool}, e));
    small_model(s->be, layers, planted, &s->teacher, &s->lin);
    small_shard(shard_dir, rows, &s->shard);
}
static inline void small_close(struct small *s)
{
    linset_close(s->lin);
    model_close(s->teacher);
    shard_close(&s->shard);
    CHECK_EQ_I(s->be->mem_used_bytes, 0);
    backend_close(s->be);
    if (s->pool)
        pool_close(s->pool);
}

static inline void same_file(const char *a, const char *b, const char *name)
{
    char path[1024];
    struct str x = STR_INIT, y = STR_INIT;
    CHECK_OK(file_read(path_join(path, a, name), 0, &x, e));
    CHECK_OK(file_read(path_join(path, b, name), 0, &y, e));
    CHECK(x.len > 0 && x.len == y.len && !memcmp(x.p, y.p, x.len));
    str_free(&x);
    str_free(&y);
}

#endif
