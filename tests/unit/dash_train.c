/*
 * Stages 1 to 3 on a tiny random model: the loss goes down, a training or search that is interrupted after every single step ends with
 * the bits of an unbroken one, the best checkpoint is the one of the least held-out loss, and a weight that is not a number stops the
 * training with stage, step, layer and tensor named and the last good checkpoint kept.
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
#include "dash/distill.h"
#include "dash/search.h"
#include "model/st.h"
#include "tests/test.h"

enum { LAYERS = 3, VOCAB = 64, SEQ = 24, ROWS = 120, HELDOUT = 20, STEPS = 6, LONG = 40 };

static char root[] = "/tmp/dashlab-train-XXXXXX";

struct setup {
    struct pool *pool;
    struct backend *be;
    struct model *teacher;
    struct linset *lin;
    struct shard data;
};

static void make_shard(const char *dir)
{
    struct shard_out o;
    uint8_t mask[SEQ];
    int32_t ids[SEQ];
    for (int t = 0; t < SEQ; t++)
        mask[t] = (uint8_t)(TOK_PRESENT | (t >= 15 ? TOK_ANSWER : 0));
    CHECK_OK(shard_create(&o, dir, SEQ, VOCAB, e));
    for (int r = 0; r < ROWS; r++) {
        for (int t = 0; t < SEQ; t++)
            ids[t] = (int32_t)ctr_below(3, (uint64_t)r, (uint64_t)t, VOCAB);
        CHECK_OK(shard_add(&o, ids, mask, SEQ - r % 5, true, e));
    }
    CHECK_OK(shard_commit(&o, "0000000000000000000000000000000000000000000000000000000000000000", e));
}

/* Everything from nothing, as a new process has it. */
static void open_all(struct setup *s)
{
    struct mcfg c = {.arch = ARCH_QWEN2, .L = LAYERS, .d = 32, .H = 4, .G = 2, .head_dim = 8, .F = 24, .N = VOCAB, .max_pos = 64,
                     .eps = 1e-6, .tie_embeddings = true, .bos = -1, .pad = -1};
    struct init_normal in = {.seed = 7, .std = 0.3};
    struct linset_opts lo = LINSET_OPTS;
    char dir[1024];
    c.rope = (struct mcfg_rope){.theta = 1e4, .factor = 1, .attention_factor = 1, .truncate = true};
    *s = (struct setup){0};
    CHECK_OK(pool_open(&s->pool, 2, e));
    CHECK_OK(backend_open(&s->be, &(struct backend_opts){.name = "cpu", .pool = s->pool}, e));
    CHECK_OK(model_new(&s->teacher, s->be, &c, model_init_normal, &in, e));
    CHECK_OK(linset_make(&s->lin, s->teacher, &lo, e));
    CHECK_OK(shard_open(&s->data, path_join(dir, root, "shard"), false, e));
}

static void close_all(struct setup *s)
{
    shard_close(&s->data);
    linset_close(s->lin);
    model_close(s->teacher);
    backend_close(s->be);
    pool_close(s->pool);
}

static struct train_opts opts(const char *stage, const char *dir, const char *metrics, int64_t steps)
{
    return (struct train_opts){.stage = stage, .dir = dir, .metrics_path = metrics, .steps = steps, .batch = 4, .micro = 2,
                               .lr = {2e-3, 1e-2}, .schedule = SCHED_COSINE, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .wd = 0.01, .clip = 1,
                               .seed = 5, .row_hi = ROWS - HELDOUT, .eval_every = 2, .ckpt_every = 1, .log_every = 1,
                               .keep_best = dir != NULL};
}

enum which { ALIGN_FORCED, ALIGN_FREE, ALIGN_MSE, DISTILL, DISTILL_ANSWERS, KINDS };
static const char *const names[] = {"align, teacher-forced", "align, free-running", "align, mse", "distill", "distill, answers"};

/* One training into dir (NULL: nothing is kept); the weights that it ends with are hashed into hex. poison: the layer whose tensor gets
 * a NaN, -1 none; bad_teacher: the teacher's. */
static int train(enum which w, const char *dir, int64_t steps, int poison, bool bad_teacher, char hex[65], struct train_result *out,
                 struct err *why)
{
    struct setup s;
    char metrics[1024];
    struct model *student = NULL;
    float nan_value[1] = {NAN};
    open_all(&s);
    if (dir)
        path_join(metrics, dir, "metrics.tsv");
    struct train_opts o = opts(w >= DISTILL ? "distill" : "align", dir, dir ? metrics : NULL, steps);
    struct params *trained = &s.lin->params;
    if (w >= DISTILL) {
        unsigned ops[LAYERS] = {MIX_BIT(MIX_FULL), MIX_BIT(MIX_GDN), MIX_BIT(MIX_WINDOW)};
        CHECK_OK(model_assemble(&student, s.teacher, s.lin, &(struct assemble_opts){.ops = ops, .window = 8, .copy = true}, e));
        trained = &student->params;
    }
    if (poison >= 0) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.v_proj.weight", poison);
        struct param *p = params_find(bad_teacher ? &s.teacher->params : trained, name);
        CHECK(p != NULL);
        CHECK_OK(put_f32(s.be, view_at(p->w, 5, 1), nan_value, e));
    }
    int rc;
    if (w >= DISTILL) {
        struct distill_opts d = {.tau = 1, .positions = w == DISTILL ? POS_ALL : POS_ANSWERS, .heldout = HELDOUT, .train = o};
        struct distill_result r;
        rc = distill_run(student, s.teacher, &s.data, NULL, &d, &r, why);
        *out = r.train;
    } else {
        struct align_opts a = {.squared = w == ALIGN_MSE, .free_running = w == ALIGN_FREE, .heldout = HELDOUT, .train = o};
        struct align_result r;
        rc = align_run(s.teacher, s.lin, &s.data, &a, &r, why);
        *out = r.train;
    }
    struct str bytes = STR_INIT;
    for (size_t i = 0; rc == 0 && i < trained->n; i++) {
        float *v = calloc((size_t)trained->v[i]->n, sizeof *v);
        CHECK_OK(get_f32(s.be, v, trained->v[i]->w, e));
        CHECK_OK(be_sync(s.be, e));
        str_add(&bytes, (const char *)v, (size_t)trained->v[i]->n * sizeof *v);
        free(v);
    }
    CHECK_OK(sha256_buf(str_c(&bytes), bytes.len, hex, e));
    str_free(&bytes);
    if (student)
        model_close(student);
    close_all(&s);
    return rc;
}

static void folder(char dst[1024], const char *name)
{
    CHECK_OK(mkdir_p(path_join(dst, root, name), e));
}

static void test_loss_goes_down(void)
{
    for (enum which w = 0; w < KINDS; w++) {
        struct train_result r = {0};
        char hex[65];
        int k = w == DISTILL_ANSWERS; /* what it minimises stands second */
        CHECK_OK(train(w, NULL, LONG, -1, false, hex, &r, e));
        printf("%s: training loss %.5f -> %.5f, held-out %.5f -> %.5f\n", names[w], r.loss_first, r.loss_last, r.eval_first[k],
               r.eval_last[k]);
        CHECK(r.loss_last < r.loss_first);
        CHECK(w == DISTILL_ANSWERS || r.eval_last[0] < r.eval_first[0]);
        CHECK_EQ_I(r.steps, LONG);
    }
}

static int search(const char *dir, struct search_result *out, struct err *why)
{
    struct setup s;
    open_all(&s);
    struct search_opts o = {.window_op = true, .window = 8, .lambda = 0.1, .steps = STEPS, .micro = 2, .accumulate = 2,
                            .anneal = ANNEAL_LINEAR, .t_hi = 1, .t_lo = 0.1, .lr = 0.1, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8,
                            .alpha_init_std = 0.1, .tau = 1, .seed = 5, .row_hi = ROWS - HELDOUT, .heldout = HELDOUT, .ckpt_every = 1};
    int rc = search_run(s.teacher, s.lin, &s.data, NULL, &o, dir, out, why);
    close_all(&s);
    return rc;
}

/* A child that was told to stop before it began: one step, a checkpoint, E_INTERRUPTED. KINDS: a search. */
static void one_step(enum which w, const char *dir)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct err why = ERR_INIT;
        struct train_result r;
        char hex[65];
        interrupt_install();
        raise(SIGTERM);
        struct search_result sr;
        int rc = w == KINDS ? search(dir, &sr, &why) : train(w, dir, STEPS, -1, false, hex, &r, &why);
        _exit(rc != 0 && why.code == E_INTERRUPTED && strstr(why.msg, "run the same command again") ? 0 : 1);
    }
    int status = 0;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool same_file(const char *a, const char *b, const char *name)
{
    char path[1024], x[65], y[65];
    CHECK_OK(sha256_file(path_join(path, a, name), x, e));
    CHECK_OK(sha256_file(path_join(path, b, name), y, e));
    return !strcmp(x, y);
}

static void test_resume(enum which w)
{
    char whole[1024], broken[1024], name[64], want[65], got[65];
    struct train_result a = {0}, b = {0};
    snprintf(name, sizeof name, "whole-%d", (int)w);
    folder(whole, name);
    snprintf(name, sizeof name, "broken-%d", (int)w);
    folder(broken, name);
    CHECK_OK(train(w, whole, STEPS, -1, false, want, &a, e));
    for (int i = 0; i + 1 < STEPS; i++)
        one_step(w, broken);
    CHECK_OK(train(w, broken, STEPS, -1, false, got, &b, e));
    CHECK_STR(got, want);
    CHECK(same_file(whole, broken, "last.safetensors") && same_file(whole, broken, "best.safetensors") &&
          same_file(whole, broken, "metrics.tsv"));
    CHECK(a.loss_first == b.loss_first && a.loss_last == b.loss_last && a.eval_first[0] == b.eval_first[0] &&
          a.eval_last[0] == b.eval_last[0] && a.tokens == b.tokens && a.flops == b.flops);
    CHECK(a.best == b.best && a.best_step == b.best_step);
    CHECK_OK(train(w, broken, STEPS, -1, false, got, &b, e)); /* once more: nothing is trained again */
    CHECK_STR(got, want);
}

static void test_resume_search(void)
{
    char whole[1024], broken[1024];
    struct search_result a, b;
    folder(whole, "search-whole");
    folder(broken, "search-broken");
    CHECK_OK(search(whole, &a, e));
    for (int i = 0; i + 1 < STEPS; i++)
        one_step(KINDS, broken);
    CHECK_OK(search(broken, &b, e));
    CHECK(same_file(whole, broken, "state.tsv") && same_file(whole, broken, "log.tsv"));
    CHECK(!memcmp(a.sel.kind, b.sel.kind, sizeof a.sel.kind) && !memcmp(a.sel.p, b.sel.p, sizeof a.sel.p) && a.tokens == b.tokens);
    CHECK(a.soft.all == b.soft.all && a.argmax.all == b.argmax.all && a.argmax_full0.answers == b.argmax_full0.answers);
    CHECK(a.flops == b.flops && a.flops_forward == b.flops_forward && a.flops > a.flops_forward && a.flops_forward > 0);
    CHECK_OK(search(broken, &b, e)); /* once more: searched already, evaluated again, counted once */
    CHECK(a.flops == b.flops && a.flops_forward == b.flops_forward);
}

/* The best held-out value is the least of those in metrics.tsv, and best.safetensors holds the weights of that step. */
static void test_best(void)
{
    char dir[1024], path[1024], hex[65];
    struct train_result r = {0};
    struct str text = STR_INIT;
    double least = INFINITY;
    long long at = 0;
    folder(dir, "best");
    CHECK_OK(train(DISTILL, dir, STEPS, -1, false, hex, &r, e));
    CHECK_OK(file_read(path_join(path, dir, "metrics.tsv"), 1 << 20, &text, e));
    for (const char *p = strchr(str_c(&text), '\n'); p && p[1]; p = strchr(p + 1, '\n')) {
        long long step;
        double v;
        if (sscanf(p + 1, "%lld %*s %*s %*s %*s %*s %lf", &step, &v) == 2 && v < least) {
            least = v;
            at = step;
        }
    }
    str_free(&text);
    CHECK_EQ_I(r.best_step, at);
    CHECK(fabs(r.best - least) < 1e-8 * least); /* nine digits are printed */
    struct setup s;
    struct model *m = NULL;
    unsigned ops[LAYERS] = {MIX_BIT(MIX_FULL), MIX_BIT(MIX_GDN), MIX_BIT(MIX_WINDOW)};
    open_all(&s);
    CHECK_OK(model_assemble(&m, s.teacher, s.lin, &(struct assemble_opts){.ops = ops, .window = 8, .copy = true}, e));
    params_set_trainable(&m->params, -1, true);
    CHECK_OK(train_load_best(s.be, &m->params, dir, e));
    struct stream st;
    struct acts acts = {0};
    struct kl_sums k = {0};
    CHECK_OK(stream_open(&st, s.be, &s.data, s.teacher, NULL, 2, 1, e));
    CHECK_OK(acts_open(&acts, m, &(struct acts_opts){.rows = 2 * SEQ, .seqs = 2}, e));
    CHECK_OK(stream_eval(&st, m, &acts, ROWS - HELDOUT, ROWS, 2, &k, e));
    CHECK(k.all / k.n_all == r.best); /* the same weights, the same bits */
    acts_close(&acts);
    stream_close(&st);
    model_close(m);
    close_all(&s);
    CHECK_ERR(train_load_best(NULL, &(struct params){0}, root, e), E_INPUT, "best.safetensors");
}

static void test_not_a_number(void)
{
    struct train_result r;
    char dir[1024], before[65], after[65], path[1024], hex[65];
    for (enum which w = ALIGN_FORCED; w <= DISTILL; w++) {
        struct err why = ERR_INIT;
        CHECK(train(w, NULL, STEPS, 1, false, hex, &r, &why) != 0);
        printf("%s: %s\n", names[w], why.msg);
        CHECK_EQ_I(why.code, E_NUMERIC);
        CHECK(strstr(why.msg, w == DISTILL ? "distill: step 0 of 6" : "align: step 0 of 6") && strstr(why.msg,
                  "first bad weights: layer 1, tensor 'model.layers.1.self_attn.v_proj.weight'"));
    }
    /* In the middle: one good step, then a teacher that turned bad. The checkpoint of step 1 stays as it is, and the training goes on
     * from it. */
    folder(dir, "bad");
    one_step(DISTILL, dir);
    CHECK_OK(sha256_file(path_join(path, dir, "last.safetensors"), before, e));
    struct err why = ERR_INIT;
    CHECK(train(DISTILL, dir, STEPS, 2, true, hex, &r, &why) != 0);
    printf("teacher: %s\n", why.msg);
    CHECK_EQ_I(why.code, E_NUMERIC);
    CHECK(strstr(why.msg, "distill: step 2 of 6") && strstr(why.msg, "the last good checkpoint is kept"));
    CHECK_OK(sha256_file(path, after, e));
    CHECK_STR(after, before);
    char whole[1024], want[65];
    folder(whole, "good");
    CHECK_OK(train(DISTILL, whole, STEPS, -1, false, want, &r, e));
    CHECK_OK(train(DISTILL, dir, STEPS, -1, false, hex, &r, e));
    CHECK_STR(hex, want);
}

int main(void)
{
    char dir[1024];
    if (!mkdtemp(root)) {
        printf("no temporary folder\n");
        return 1;
    }
    make_shard(path_join(dir, root, "shard"));
    test_loss_goes_down();
    for (enum which w = 0; w < KINDS; w++)
        test_resume(w);
    test_resume_search();
    test_best();
    test_not_a_number();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
