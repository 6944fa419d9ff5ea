/*
 * Selectors that train or compare hybrids, on small random models: a planted layer comes first; killed runs go on and write the same
 * bytes; same bits with one thread or two and any micro-batch (where nothing is trained); scoring in rounds continues one training
 * exactly and stops by overlap; sequential choice; counted FLOPs agree with the backend's counter.
 */
#include <math.h>
#include <unistd.h>

#include "baselines/trained.h"
#include "core/fs.h"
#include "core/prog.h"
#include "tests/killed.h"
#include "tests/small.h"

enum { LAYERS = 5, ROWS = 16 };

struct job {
    struct small on;
    const struct selector *method;
    struct select_input in;
    struct select_train train;
    struct selection out;
    char out_dir[1024], work_dir[1024];
};
static const struct selector *const methods[] = {&sel_ga_s1, &sel_gr_s1, &sel_ga_s2, &sel_gr_s2, &sel_flashmorph, &sel_postnas};

static void open_job(struct job *j, const char *root, const struct selector *method, int planted, int threads)
{
    char shard[1024];
    *j = (struct job){.method = method};
    small_open(&j->on, path_join(shard, root, "shard"), ROWS, LAYERS, planted, threads);
    j->train = (struct select_train){.tokens = method == &sel_flashmorph ? 2200 : 270, .batch = 2,
                                     .lr = method == &sel_flashmorph ? 2e-2 : 1e-3, .lr_mixer = 1e-3, .heldout = 4, .ckpt_every = 1,
                                     .beam = 3, .gate_weight = 0.1};
    j->in = (struct select_input){.be = j->on.be, .teacher = j->on.teacher, .lin = j->on.lin, .data = &j->on.shard, .layers = LAYERS,
                                  .budget = 2, .row_hi = 6, .micro = 2, .seed = 9, .train = &j->train};
}

static void close_job(struct job *j)
{
    small_close(&j->on);
}

static void set_dirs(struct job *j, const char *root, const char *name)
{
    snprintf(j->out_dir, sizeof j->out_dir, "%.900s/%s-out", root, name);
    snprintf(j->work_dir, sizeof j->work_dir, "%.900s/%s-work", root, name);
    CHECK_OK(mkdir_p(j->out_dir, e));
    CHECK_OK(mkdir_p(j->work_dir, e));
    j->in.out_dir = j->out_dir;
    j->in.work_dir = j->work_dir;
}

static void drop_dirs(struct job *j)
{
    CHECK_OK(remove_tree(j->out_dir, e));
    CHECK_OK(remove_tree(j->work_dir, e));
}

static void work(void *ctx)
{
    struct job *j = ctx;
    CHECK_OK(selector_run(j->method, &j->in, &j->out, e));
}

static void same_selection(const struct selection *a, const struct selection *b, bool cost)
{
    CHECK(a->has_score && b->has_score && !memcmp(a->score, b->score, sizeof a->score) && !memcmp(a->kind, b->kind, sizeof a->kind));
    CHECK_STR(a->variant, b->variant);
    CHECK(!cost || (a->tokens == b->tokens && a->flops_forward == b->flops_forward && a->flops_backward == b->flops_backward &&
                    a->flops_forward > 0));
}

static void same_files(const char *a, const char *b)
{
    struct names n;
    CHECK_OK(dir_list(a, &n, e));
    for (size_t i = 0; i < n.n; i++)
        same_file(a, b, n.v[i]);
    names_free(&n);
}

static int full_layers(const struct selection *s)
{
    int n = 0;
    for (int l = 0; l < s->layers; l++)
        n += s->kind[l] == MIX_FULL;
    return n;
}

/* Avg-S1, Avg-S2: of two rankings that begin with the planted layer. */
static void average_planted(const struct selection *ga, const struct selection *gr, const struct selector *avg, int planted)
{
    struct select_input in = {.layers = LAYERS, .budget = 1, .first = ga, .second = gr};
    struct selection out;
    CHECK_OK(selector_run(avg, &in, &out, e));
    CHECK(full_layers(&out) == 1 && out.kind[planted] == MIX_FULL);
}

static void test_planted(const char *root)
{
    static struct selection first[LAYERS];
    for (size_t m = 0; m < ARRAY_LEN(methods); m++)
        for (int planted = 0; planted < LAYERS; planted += 2) {
            struct job j;
            open_job(&j, root, methods[m], planted, 1);
            double before = j.on.be->flops;
            work(&j);
            CHECK_EQ_I(full_layers(&j.out), 2);
            CHECK(j.out.kind[planted] == MIX_FULL);
            for (int l = 0; l < LAYERS; l++) /* strictly first; postnas: first of the sets' scores, shared within the best set */
                CHECK(l == planted || j.out.score[planted] > j.out.score[l] || (methods[m] == &sel_postnas && j.out.kind[l] == MIX_FULL));
            CHECK(j.out.flops_forward + j.out.flops_backward == j.on.be->flops - before);
            CHECK((j.out.flops_backward > 0) == (methods[m] != &sel_ga_s1 && methods[m] != &sel_gr_s1));
            if (m == 1 || m == 3)
                average_planted(&first[planted], &j.out, m == 1 ? &sel_avg_s1 : &sel_avg_s2, planted);
            first[planted] = j.out;
            j.in.budget = 1; /* alone */
            work(&j);
            CHECK(full_layers(&j.out) == 1 && j.out.kind[planted] == MIX_FULL);
            close_job(&j);
        }
}

/* Whole, with two threads, and killed: within a layer's training, between layers, in an evaluation. */
static void test_killed(const char *root)
{
    static const struct {
        int method, adamw, kl, align;
    } kill[] = {{2, 4, 0, 0}, {2, 0, 40, 0}, {2, 0, 45, 0}, {3, 0, 33, 0}, {4, 0, 0, 7}, {4, 0, 0, 201}, {5, 100, 0, 0}, {5, 0, 0, 5},
                {5, 0, 31, 0}};
    struct job whole, two, broken;
    for (size_t m = 0; m < ARRAY_LEN(methods); m++) {
        open_job(&whole, root, methods[m], -1, 1);
        open_job(&two, root, methods[m], -1, 2);
        open_job(&broken, root, methods[m], -1, 1);
        set_dirs(&whole, root, "whole");
        work(&whole);
        set_dirs(&two, root, "two");
        work(&two);
        same_selection(&whole.out, &two.out, true);
        same_files(whole.out_dir, two.out_dir);
        drop_dirs(&two);
        for (size_t k = 0; k < ARRAY_LEN(kill); k++) {
            if ((size_t)kill[k].method != m)
                continue;
            set_dirs(&broken, root, "killed");
            run_and_kill(broken.on.be, kill[k].adamw, kill[k].kl, kill[k].align, work, &broken);
            work(&broken);
            same_selection(&whole.out, &broken.out, true);
            same_files(whole.out_dir, broken.out_dir);
            drop_dirs(&broken);
        }
        drop_dirs(&whole);
        close_job(&whole);
        close_job(&two);
        close_job(&broken);
    }
}

/* Finished layers are not computed again: the second run of a finished folder runs no KL at all. */
static void test_finished(const char *root)
{
    struct job j;
    struct selection first;
    open_job(&j, root, &sel_ga_s2, -1, 1);
    set_dirs(&j, root, "finished");
    work(&j);
    first = j.out;
    double before = j.on.be->flops;
    work(&j);
    CHECK(j.on.be->flops == before);
    same_selection(&first, &j.out, true);
    drop_dirs(&j);
    close_job(&j);
}

/* The untrained scores do not depend on how many rows are computed at once, and positions change them. */
static void test_micro(const char *root)
{
    for (int m = 0; m < 2; m++) {
        struct job j;
        open_job(&j, root, methods[m], -1, 1);
        work(&j);
        struct selection two = j.out;
        for (int micro = 1; micro <= 5; micro += 2) {
            j.in.micro = micro;
            work(&j);
            same_selection(&two, &j.out, false);
        }
        j.in.positions = POS_ANSWERS;
        work(&j);
        CHECK(memcmp(two.score, j.out.score, sizeof two.score) != 0);
        close_job(&j);
    }
}

static void test_rounds(const char *root)
{
    struct job j, once;
    open_job(&j, root, &sel_ga_s2, 2, 1);
    open_job(&once, root, &sel_ga_s2, 2, 1);
    j.train.tokens = 405; /* 9 updates: 3 rounds of 3 */
    j.train.rounds = 3;
    j.in.budget = 1;
    set_dirs(&j, root, "rounds");
    work(&j);
    CHECK_STR(j.out.variant, "3 of 3 rounds");
    once.in.budget = 1;
    once.train.tokens = 405;
    work(&once);
    CHECK(!memcmp(once.out.score, j.out.score, sizeof once.out.score)); /* three rounds are one training */
    CHECK_EQ_I(once.out.tokens, j.out.tokens);
    drop_dirs(&j);
    j.train.stop_overlap = 1; /* the planted layer leads from the first round on */
    set_dirs(&j, root, "stopped");
    work(&j);
    CHECK_STR(j.out.variant, "2 of 3 rounds");
    CHECK_EQ_I(j.out.tokens * 3 > once.out.tokens * 2 - 200 && j.out.tokens < once.out.tokens, 1);
    CHECK(j.out.kind[2] == MIX_FULL);
    drop_dirs(&j);
    CHECK_ERR((j.train.sequential = true, selector_run(j.method, &j.in, &j.out, e)), E_USAGE, "exclude each other");
    j.train.sequential = false;
    j.in.work_dir = NULL;
    CHECK_ERR(selector_run(j.method, &j.in, &j.out, e), E_USAGE, "needs a work folder");
    j.train.rounds = 1;
    CHECK_ERR(selector_run(j.method, &j.in, &j.out, e), E_USAGE, "at least two rounds");
    close_job(&j);
    close_job(&once);
}

/* One layer at a time, the others scored again: step by step against runs over explicit sets. */
static void test_sequential(const char *root)
{
    static const bool no0[LAYERS] = {true};
    for (int removal = 0; removal < 2; removal++) {
        struct job j;
        open_job(&j, root, removal ? &sel_gr_s2 : &sel_ga_s2, 3, 1);
        j.train.sequential = true;
        set_dirs(&j, root, "sequential");
        work(&j);
        CHECK_STR(j.out.variant, "sequential");
        CHECK_EQ_I(full_layers(&j.out), 2);
        CHECK(j.out.kind[3] == MIX_FULL);
        struct names n;
        CHECK_OK(dir_list(j.work_dir, &n, e));
        CHECK_EQ_I((int)n.n, removal ? 5 + 4 + 3 : 5 + 4); /* trials */
        names_free(&n);
        bool seen[LAYERS + 1] = {0}; /* ranks are a permutation */
        for (int l = 0; l < LAYERS; l++)
            seen[(int)j.out.score[l]] = true;
        for (int i = 0; i < LAYERS; i++)
            CHECK(seen[removal ? i : i + 1]);
        drop_dirs(&j);
        set_dirs(&j, root, "excluded");
        j.in.exclude = no0;
        work(&j);
        CHECK(j.out.kind[0] == MIX_GDN && j.out.kind[3] == MIX_FULL && full_layers(&j.out) == 2);
        CHECK_STR(j.out.variant, "sequential, 1 layer excluded");
        drop_dirs(&j);
        close_job(&j);
    }
}

/* PostNAS: sets of smaller budgets come from the same run; excluded layers are in none. FlashMorph needs answers. */
static void test_more(const char *root)
{
    struct job j;
    static const bool no2[LAYERS] = {false, false, true};
    open_job(&j, root, &sel_postnas, 2, 1);
    j.in.budget = 3;
    set_dirs(&j, root, "beam");
    work(&j);
    struct selection three = j.out, again;
    j.in.scores = &three;
    j.in.scores_dir = j.out_dir;
    j.in.budget = 1;
    CHECK_OK(selector_run(j.method, &j.in, &again, e));
    CHECK(full_layers(&again) == 1 && again.kind[2] == MIX_FULL && again.tokens == three.tokens);
    j.in.budget = 4;
    CHECK_ERR(selector_run(j.method, &j.in, &again, e), E_USAGE, "no set of 4 layers");
    j.in.scores = NULL;
    j.in.scores_dir = NULL;
    j.in.exclude = no2;
    j.in.budget = 2;
    drop_dirs(&j);
    set_dirs(&j, root, "beam2");
    work(&j);
    CHECK(j.out.kind[2] == MIX_GDN && full_layers(&j.out) == 2);
    drop_dirs(&j);
    j.train.heldout = ROWS;
    CHECK_ERR(selector_run(j.method, &j.in, &j.out, e), E_USAGE, "held-out rows");
    j.train.heldout = 4;
    j.in.train = NULL;
    CHECK_ERR(selector_run(j.method, &j.in, &j.out, e), E_USAGE, "training parameters");
    close_job(&j);
}

int main(void)
{
    char root[] = "/tmp/dashlab-trained-XXXXXX";
    CHECK(mkdtemp(root) != NULL);
    prog_quiet(true);
    test_planted(root);
    test_killed(root);
    test_finished(root);
    test_micro(root);
    test_rounds(root);
    test_sequential(root);
    test_more(root);
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
