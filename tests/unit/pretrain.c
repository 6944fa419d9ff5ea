/*
 * Training from scratch on a tiny model: what a position weighs; the loss goes from ln(vocabulary) towards ln(tokens in use), which it
 * cannot pass; interrupted after every step, with another number of threads, or with activations computed again, it ends with the same
 * bytes; its checkpoints come in parts under their limit, large tensors in pieces; a weight that is not a number stops it.
 */
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/prov.h"
#include "core/rng.h"
#include "dash/align.h"
#include "dash/pretrain.h"
#include "dash/search.h"
#include "tests/test.h"

enum { VOCAB = 3000, USED = 64, SEQ = 48, ROWS = 80, HELDOUT = 8, STEPS = 5, LONG = 60, WIDTH = 128, PART = 2 << 20 };

static char root[] = "/tmp/dashlab-pretrain-XXXXXX";

/* Row 0 is prose (no answers); of the others the last quarter is an answer. Tokens are drawn evenly from 64 of the vocabulary's ids. */
static void make_shard(const char *dir)
{
    struct shard_out o;
    uint8_t mask[SEQ];
    int32_t ids[SEQ];
    CHECK_OK(shard_create(&o, dir, SEQ, VOCAB, e));
    for (int r = 0; r < ROWS; r++) {
        for (int t = 0; t < SEQ; t++) {
            ids[t] = (int32_t)(40 * ctr_below(3, (uint64_t)r, (uint64_t)t, USED));
            mask[t] = (uint8_t)(TOK_PRESENT | (r > 0 && t >= 36 && t < 44 ? TOK_ANSWER : 0));
        }
        CHECK_OK(shard_add(&o, ids, mask, SEQ - r % 3, r > 0, e));
    }
    CHECK_OK(shard_commit(&o, "0000000000000000000000000000000000000000000000000000000000000000", e));
}

struct how {
    int threads;
    bool recompute;
    int64_t steps, part_bytes;
    double lr;
    int poison; /* a layer whose tensor gets a NaN; -1 = none */
};

static int train(const struct how *h, const char *dir, char hex[65], struct pretrain_result *out, struct err *why)
{
    struct mcfg c = {.arch = ARCH_QWEN3,
                     .L = 3,
                     .d = WIDTH,
                     .H = 4,
                     .G = 2,
                     .head_dim = 16,
                     .F = 96,
                     .N = VOCAB,
                     .max_pos = 64,
                     .eps = 1e-6,
                     .tie_embeddings = true,
                     .qk_norm = true,
                     .bos = -1,
                     .pad = -1};
    struct init_normal in = {.seed = 7, .std = 0.02};
    struct pool *pool;
    struct backend *be;
    struct model *m;
    struct shard d;
    char path[1024], metrics[1024];
    c.rope = (struct mcfg_rope){.theta = 1e4, .factor = 1, .attention_factor = 1, .truncate = true};
    CHECK_OK(pool_open(&pool, h->threads, e));
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "cpu", .pool = pool}, e));
    CHECK_OK(model_new(&m, be, &c, model_init_normal, &in, e));
    CHECK_OK(shard_open(&d, path_join(path, root, "shard"), false, e));
    if (h->poison >= 0) {
        float bad[1] = {NAN};
        snprintf(path, sizeof path, "model.layers.%d.mlp.up_proj.weight", h->poison);
        CHECK_OK(put_f32(be, view_at(params_find(&m->params, path)->w, 3, 1), bad, e));
    }
    struct pretrain_opts o = {.w_prompt = 0.1, .heldout = HELDOUT, .recompute = h->recompute};
    o.train = (struct train_opts){.stage = "train",
                                  .dir = dir,
                                  .steps = h->steps,
                                  .batch = 4,
                                  .micro = 2,
                                  .warmup = 2,
                                  .lr = {h->lr, h->lr},
                                  .lr_end = 0.01,
                                  .schedule = SCHED_LINEAR,
                                  .hold = 0.55,
                                  .b1 = 0.9,
                                  .b2 = 0.95,
                                  .eps = 1e-8,
                                  .wd = 0.1,
                                  .clip = 1,
                                  .seed = 5,
                                  .row_hi = ROWS - HELDOUT,
                                  .eval_every = 2,
                                  .ckpt_every = 1,
                                  .log_every = 1,
                                  .keep_best = dir != NULL,
                                  .part_bytes = h->part_bytes};
    if (dir)
        o.train.metrics_path = path_join(metrics, dir, "metrics.tsv");
    int rc = pretrain_run(m, &d, &o, out, why);
    struct str bytes = STR_INIT;
    for (size_t i = 0; rc == 0 && i < m->params.n; i++) {
        float *v = calloc((size_t)m->params.v[i]->n, sizeof *v);
        CHECK_OK(get_f32(be, v, m->params.v[i]->w, e));
        str_add(&bytes, (const char *)v, (size_t)m->params.v[i]->n * sizeof *v);
        free(v);
    }
    CHECK_OK(sha256_buf(str_c(&bytes), bytes.len, hex, e));
    str_free(&bytes);
    shard_close(&d);
    model_close(m);
    backend_close(be);
    pool_close(pool);
    return rc;
}

static void test_weights(void)
{
    struct shard d;
    char path[1024];
    CHECK_OK(shard_open(&d, path_join(path, root, "shard"), false, e));
    CHECK(pretrain_weight(&d, 0, 5, true, 0.1) == 1 &&
          pretrain_weight(&d, 0, SEQ - 1, true, 0.1) == 0); /* prose; the last position predicts nothing */
    CHECK(pretrain_weight(&d, 3, 34, false, 0.1) == 0.1 &&
          pretrain_weight(&d, 3, 35, false, 0.1) == 1); /* the answer's first token is the target of the one before it */
    CHECK(pretrain_weight(&d, 3, 43, false, 0.1) == 1 &&
          pretrain_weight(&d, 3, 44, false, 0.1) == 0.1); /* what stands right behind an answer counts, too */
    CHECK_EQ_I(d.len[4], SEQ - 1);
    CHECK(pretrain_weight(&d, 4, SEQ - 2, false, 0.1) == 0); /* a shorter row */
    shard_close(&d);
}

static void test_loss_falls(void)
{
    struct how h = {.threads = 2, .steps = LONG, .lr = 1e-2, .poison = -1};
    struct pretrain_result r;
    char hex[65];
    CHECK_OK(train(&h, NULL, hex, &r, e));
    double start = log(VOCAB), floor = log(USED);
    printf("loss %.4f (ln %d = %.4f) -> %.4f; the least possible is ln %d = %.4f; held-out %.4f, answers %.4f, arg max right %.3f\n",
           r.train.eval_first[0], VOCAB, start, r.train.eval_last[0], USED, floor, r.train.eval_last[0], r.train.eval_last[1],
           r.train.eval_last[2]);
    /* At the start logits are within a few hundredths of one another (width 128, weights of 0.02), so the loss is ln(vocabulary). Tokens
       are independent draws from 64 ids, so what is to be learned is which 64, and no held-out loss below ln 64 is possible but by chance:
       of 376 held-out positions, deviation of a mean below 0.05. */
    CHECK(fabs(r.train.eval_first[0] - start) < 0.1);
    CHECK(r.train.eval_last[0] < floor + 0.3);
    CHECK(r.train.eval_last[0] > floor - 0.1);
    CHECK_EQ_I(r.train.steps, LONG);
}

static void folder(char dst[1024], const char *name)
{
    CHECK_OK(mkdir_p(path_join(dst, root, name), e));
}

/* sha256 of all names and contents below a folder. */
static void tree_hash(const char *dir, struct str *out, int64_t *largest)
{
    struct names names;
    CHECK_OK(dir_list(dir, &names, e));
    for (size_t i = 0; i < names.n; i++) {
        char path[1024], hex[65];
        if (dir_exists(path_join(path, dir, names.v[i]))) {
            str_printf(out, "%s:\n", names.v[i]);
            tree_hash(path, out, largest);
            continue;
        }
        CHECK_OK(sha256_file(path, hex, e));
        *largest = MAX(*largest, file_size(path));
        str_printf(out, "%s %s\n", names.v[i], hex);
    }
    names_free(&names);
}

/* A child that was told to stop before it began: one step, a checkpoint, E_INTERRUPTED. */
static void one_step(const struct how *h, const char *dir)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct err why = ERR_INIT;
        struct pretrain_result r;
        char hex[65];
        interrupt_install();
        raise(SIGTERM);
        _exit(train(h, dir, hex, &r, &why) != 0 && why.code == E_INTERRUPTED ? 0 : 1);
    }
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_resume(int64_t part_bytes)
{
    struct how one = {.threads = 1, .steps = STEPS, .part_bytes = part_bytes, .lr = 3e-3, .poison = -1}, two = one;
    char whole[1024], broken[1024], want[65], got[65], path[1024];
    struct pretrain_result a, b;
    struct str x = STR_INIT, y = STR_INIT;
    int64_t largest = 0;
    two.threads = 2;
    two.recompute = true;
    folder(whole, part_bytes ? "whole-parts" : "whole");
    folder(broken, part_bytes ? "broken-parts" : "broken");
    CHECK_OK(train(&two, whole, want, &a, e));
    for (int i = 0; i + 1 < STEPS; i++)
        one_step(&one, broken);
    if (part_bytes) { /* what a process leaves that is killed while it writes: no index, so it does not count */
        char junk[1024];
        CHECK_OK(mkdir_p(path_join(junk, broken, "last-9"), e));
        CHECK_OK(file_write(path_join(path, junk, "model-00001-of-00002.safetensors"), "junk", 4, e));
    }
    CHECK_OK(train(&one, broken, got, &b, e));
    CHECK_STR(got, want);
    CHECK(a.train.loss_first == b.train.loss_first && a.train.loss_last == b.train.loss_last && a.train.tokens == b.train.tokens &&
          a.train.flops == b.train.flops);
    CHECK(a.train.best == b.train.best && a.train.best_step == b.train.best_step && a.train.eval_last[2] == b.train.eval_last[2]);
    tree_hash(whole, &x, &largest);
    tree_hash(broken, &y, &largest);
    CHECK_STR(str_c(&y), str_c(&x));
    if (part_bytes) {
        printf("%s", str_c(&x));
        CHECK(largest <= part_bytes);
        CHECK(strstr(str_c(&x), "last-5:\n") && strstr(str_c(&x), "model-00003-of-"));
    }
    str_free(&x);
    str_free(&y);
}

static void test_damage(void)
{
    struct how h = {.threads = 1, .steps = STEPS + 1, .part_bytes = PART, .lr = 3e-3, .poison = -1};
    char dir[1024], path[1024], hex[65];
    struct pretrain_result r;
    struct str s = STR_INIT;
    path_join(dir, root, "broken-parts");
    path_join(path, dir, "last-5/model-00002-of-00008.safetensors");
    if (!file_exists(path)) /* another number of parts: this test is to be looked at again */
        CHECK(!"part 2 of 8");
    CHECK_OK(file_read(path, 0, &s, e));
    CHECK_OK(file_write(path, str_c(&s), s.len / 2, e));
    CHECK_ERR(train(&h, dir, hex, &r, e), E_INPUT, "model-00002-of-00008.safetensors");
    str_free(&s);
    h.part_bytes = 1000;
    CHECK_ERR(train(&h, root, hex, &r, e), E_USAGE, "checkpoint parts of 1000 bytes");
}

static void test_not_a_number(void)
{
    struct how h = {.threads = 1, .steps = STEPS, .lr = 3e-3, .poison = 1};
    struct err why = ERR_INIT;
    struct pretrain_result r;
    char hex[65];
    CHECK(train(&h, NULL, hex, &r, &why) != 0);
    printf("%s\n", why.msg);
    CHECK_EQ_I(why.code, E_NUMERIC);
    CHECK(strstr(why.msg, "train: step 0 of 5") && strstr(why.msg, "model.layers.1.mlp.up_proj.weight"));
}

int main(void)
{
    char dir[1024];
    if (!mkdtemp(root)) {
        printf("no temporary folder\n");
        return 1;
    }
    make_shard(path_join(dir, root, "shard"));
    test_weights();
    test_loss_falls();
    test_resume(0);
    test_resume(PART);
    test_damage();
    test_not_a_number();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
