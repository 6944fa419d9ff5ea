/* Whole searches on a small model: several lambdas side by side give what each gives alone; killed and resumed, with one thread or two,
 * every variant writes the same bytes; FLOPs agree with the counter. */
#include <unistd.h>

#include "core/fs.h"
#include "core/prog.h"
#include "dash/search.h"
#include "tests/killed.h"
#include "tests/small.h"

enum { LAYERS = 4, ROWS = 14 };

struct job {
    struct small on;
    struct search_opts o;
    const double *lambda;
    int n;
    char dir[3][1024];
    struct search_result out[3];
};

static void open_job_planted(struct job *j, const char *shard_dir, enum relax relax, int threads, int planted)
{
    *j = (struct job){.n = 1};
    small_open(&j->on, shard_dir, ROWS, LAYERS, planted, threads);
    j->o = (struct search_opts){.window_op = true, .window = 6, .lambda = 0.02, .steps = 11, .micro = 2, .accumulate = 3,
                                .anneal = ANNEAL_LINEAR, .relax = relax, .lr_weights = 1e-3, .t_hi = 1, .t_lo = 0.1, .lr = 0.1, .b1 = 0.9,
                                .b2 = 0.95, .eps = 1e-8, .tau = 1, .seed = 5, .row_hi = ROWS - 3, .heldout = 3, .ckpt_every = 2};
    j->lambda = &j->o.lambda;
}

static void open_job(struct job *j, const char *shard_dir, enum relax relax, int threads)
{
    open_job_planted(j, shard_dir, relax, threads, -1);
}

static void close_job(struct job *j)
{
    small_close(&j->on);
}

static void set_dirs(struct job *j, const char *root, const char *name)
{
    for (int i = 0; i < 3; i++)
        snprintf(j->dir[i], sizeof j->dir[i], "%.900s/%s-%d", root, name, i);
}

static void work(void *ctx)
{
    struct job *j = ctx;
    const char *dirs[3] = {j->dir[0], j->dir[1], j->dir[2]};
    CHECK_OK(search_sweep(j->on.teacher, j->on.lin, &j->on.shard, NULL, &j->o, j->lambda, j->n, dirs, j->out, e));
}

static void same_result(const struct search_result *a, const struct search_result *b, bool flops)
{
    CHECK(!memcmp(a->sel.p, b->sel.p, sizeof a->sel.p) && !memcmp(a->sel.kind, b->sel.kind, sizeof a->sel.kind));
    CHECK(a->soft.all == b->soft.all && a->argmax.all == b->argmax.all && a->argmax_full0.answers == b->argmax_full0.answers &&
          a->tokens == b->tokens);
    CHECK(!flops || (a->flops == b->flops && a->flops_forward == b->flops_forward));
}

static void test_sweep(const char *root, const char *shard_dir)
{
    static const double lambda[3] = {0.3, 0.02, 0};
    struct job all, one;
    open_job(&all, shard_dir, RELAX_SOFT, 1);
    all.lambda = lambda;
    all.n = 3;
    set_dirs(&all, root, "sweep");
    double before = all.on.be->flops, sum = 0;
    work(&all);
    for (int i = 0; i < 3; i++)
        sum += all.out[i].flops;
    CHECK(sum == all.on.be->flops - before); /* integers below 2^53: exact */
    CHECK(all.out[0].sel.budget < all.out[2].sel.budget);
    open_job(&one, shard_dir, RELAX_SOFT, 1);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "alone-%d", i);
        set_dirs(&one, root, name);
        one.lambda = lambda + i;
        before = one.on.be->flops;
        work(&one);
        same_result(&one.out[0], &all.out[i], i == 0); /* the first bears the teacher's passes */
        same_file(one.dir[0], all.dir[i], "log.tsv");
        CHECK(one.out[0].flops == one.on.be->flops - before && one.out[0].flops_forward > 0 && one.out[0].flops_forward < one.out[0].flops);
        CHECK(i == 0 || one.out[0].flops > all.out[i].flops);
    }
    close_job(&all);
    close_job(&one);
}

/* Unbroken with one thread, unbroken with two, and killed at several places. kl: how many calls of the KL until the end; each micro-step
 * makes `n` (bilevel: 2). */
static void test_killed(const char *root, const char *shard_dir, enum relax relax, const char *name, int n, const int *kl, int kills)
{
    static const double lambda[3] = {0.3, 0.02, 0};
    struct job whole, two, broken;
    open_job(&whole, shard_dir, relax, 1);
    open_job(&two, shard_dir, relax, 2);
    open_job(&broken, shard_dir, relax, 1);
    whole.n = two.n = broken.n = n;
    whole.lambda = two.lambda = broken.lambda = lambda;
    set_dirs(&whole, root, name);
    work(&whole);
    set_dirs(&two, root, "threads");
    work(&two);
    for (int i = 0; i < kills; i++) {
        set_dirs(&broken, root, "killed");
        run_and_kill(broken.on.be, 0, kl[i], 0, work, &broken);
        work(&broken);
        for (int k = 0; k < n; k++) {
            same_result(&whole.out[k], &broken.out[k], true);
            same_file(whole.dir[k], broken.dir[k], "log.tsv");
            same_file(whole.dir[k], broken.dir[k], "state.tsv");
            CHECK_OK(remove_tree(broken.dir[k], e));
        }
    }
    for (int k = 0; k < n; k++) {
        same_result(&whole.out[k], &two.out[k], true);
        same_file(whole.dir[k], two.dir[k], "log.tsv");
        CHECK_OK(remove_tree(two.dir[k], e));
    }
    close_job(&whole);
    close_job(&two);
    close_job(&broken);
}

/* The weights do learn in a bilevel search, and the teacher is left alone. */
static void test_bilevel(const char *root, const char *shard_dir)
{
    struct job j, frozen;
    open_job(&j, shard_dir, RELAX_BILEVEL, 1);
    set_dirs(&j, root, "bilevel-teacher");
    const struct param *q = j.on.teacher->layer[1].attn->p[0];
    float *w0 = malloc((size_t)q->n * sizeof *w0), *w1 = malloc((size_t)q->n * sizeof *w1);
    CHECK_OK(get_f32(j.on.be, w0, q->w, e));
    work(&j);
    CHECK_OK(get_f32(j.on.be, w1, q->w, e));
    CHECK(!memcmp(w0, w1, (size_t)q->n * sizeof *w0));
    CHECK_STR(j.out[0].sel.variant, " bilevel");
    open_job(&frozen, shard_dir, RELAX_BILEVEL, 1);
    frozen.o.lr_weights = 0;
    set_dirs(&frozen, root, "bilevel-frozen");
    work(&frozen);
    CHECK(frozen.out[0].soft.all != j.out[0].soft.all);
    CHECK(frozen.out[0].tokens == j.out[0].tokens);
    /* with a rate of 0 it is the soft search on the first half of the rows */
    frozen.o.relax = RELAX_SOFT;
    frozen.o.row_hi = frozen.o.row_lo + (frozen.o.row_hi - frozen.o.row_lo) / 2;
    set_dirs(&frozen, root, "bilevel-soft");
    struct search_result rate0 = frozen.out[0];
    work(&frozen);
    CHECK(!memcmp(rate0.sel.p, frozen.out[0].sel.p, sizeof rate0.sel.p));
    static const double two[2] = {0.1, 0.2};
    struct search_result out[2];
    const char *dirs[2] = {j.dir[0], j.dir[1]};
    CHECK_ERR(search_sweep(j.on.teacher, j.on.lin, &j.on.shard, NULL, &j.o, two, 2, dirs, out, e), E_USAGE, "takes one");
    static const double negative = -1;
    j.o.relax = RELAX_SOFT;
    CHECK_ERR(search_sweep(j.on.teacher, j.on.lin, &j.on.shard, NULL, &j.o, &negative, 1, dirs, out, e), E_USAGE, "negative");
    free(w0);
    free(w1);
    close_job(&j);
    close_job(&frozen);
}

/* One layer is indispensable by construction: every form of the search keeps its attention, and no other layer's. */
static void test_planted(const char *root, const char *shard_dir)
{
    static const char *const name[] = {"planted-soft", "planted-ste", "planted-bilevel"};
    for (int planted = 0; planted < LAYERS; planted += 3)
        for (int r = RELAX_SOFT; r <= RELAX_BILEVEL; r++) {
            struct job j;
            open_job_planted(&j, shard_dir, (enum relax)r, 1, planted);
            j.o.window_op = false;
            j.o.layer0 = LAYER0_SEARCH;
            j.o.steps = 40;
            j.o.accumulate = 1;
            j.o.lambda = 0.02;
            set_dirs(&j, root, name[r]);
            work(&j);
            for (int l = 0; l < LAYERS; l++) {
                CHECK_EQ_I(j.out[0].sel.kind[l], l == planted ? MIX_FULL : MIX_GDN);
                CHECK(l == planted || j.out[0].sel.p[planted][MIX_FULL] > j.out[0].sel.p[l][MIX_FULL]);
            }
            CHECK(j.out[0].sel.budget == 1);
            CHECK_OK(remove_tree(j.dir[0], e));
            close_job(&j);
        }
}

int main(void)
{
    char root[] = "/tmp/dashlab-search-XXXXXX", shard[1100];
    CHECK(mkdtemp(root) != NULL);
    prog_quiet(true);
    snprintf(shard, sizeof shard, "%s/shard", root);
    test_planted(root, shard);
    test_sweep(root, shard);
    /* after 1 micro-step (nothing saved), 7, and in the last evaluation */
    test_killed(root, shard, RELAX_SOFT, "soft", 1, (const int[]){2, 8, 13}, 3);
    test_killed(root, shard, RELAX_STE, "ste", 1, (const int[]){8}, 1);
    /* three lambdas: in the middle of a micro-step whose first searches have saved */
    test_killed(root, shard, RELAX_SOFT, "three", 3, (const int[]){3 * 5 + 3, 3 * 7 + 2}, 2);
    test_killed(root, shard, RELAX_BILEVEL, "bilevel", 1, (const int[]){2 * 7 + 1, 2 * 8 + 2, 2 * 11 + 2}, 3);
    test_bilevel(root, shard);
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
