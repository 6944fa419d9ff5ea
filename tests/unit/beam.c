/* Beam search over layer sets against exhaustive search at L = 6; overlap of top-K sets. */
#include <math.h>

#include "baselines/trained.h"
#include "core/rng.h"
#include "tests/test.h"

enum { L = 6 };

struct costs {
    double of[1 << L];
    int asked[1 << L];
};

static int bits(const bool *full)
{
    int b = 0;
    for (int l = 0; l < L; l++)
        b |= full[l] << l;
    return b;
}

static int cost(void *ctx, const bool *full, double *out, struct err *e)
{
    struct costs *c = ctx;
    UNUSED(e);
    *out = c->of[bits(full)];
    c->asked[bits(full)]++;
    return 0;
}

static int size_of(int set)
{
    int n = 0;
    for (int l = 0; l < L; l++)
        n += set >> l & 1;
    return n;
}

/* Cheapest set of k layers outside `banned`; -1 none. */
static int exhaustive(const struct costs *c, int k, int banned)
{
    int best = -1;
    for (int s = 0; s < 1 << L; s++)
        if (size_of(s) == k && !(s & banned) && (best < 0 || c->of[s] < c->of[best]))
            best = s;
    return best;
}

static void run(struct costs *c, int width, int k, const bool *exclude, struct beam_result *r)
{
    struct beam_problem p = {.layers = L, .width = width, .k = k, .exclude = exclude, .ctx = c, .cost = cost};
    memset(c->asked, 0, sizeof c->asked);
    CHECK_OK(beam_search(&p, r, e));
    for (int s = 0; s < 1 << L; s++)
        CHECK(c->asked[s] <= 1);
}

static void same_as_exhaustive(const struct costs *c, const struct beam_result *r, int k, int banned)
{
    CHECK_EQ_I(r->k, k);
    for (int i = 0; i <= k; i++) {
        int want = exhaustive(c, i, banned);
        CHECK_EQ_I(bits(r->best[i]), want);
        CHECK(r->cost[i] == c->of[want]);
    }
}

/* Any costs at all: a beam as wide as the largest layer of the lattice (20 sets of 3) sees everything. */
static void test_full_width(struct beam_result *r)
{
    static struct costs c;
    static const bool no4[L] = {[4] = true};
    for (uint64_t seed = 0; seed < 50; seed++) {
        for (int s = 0; s < 1 << L; s++)
            c.of[s] = ctr_uniform(seed, 1, (uint64_t)s);
        run(&c, 20, L, NULL, r);
        same_as_exhaustive(&c, r, L, 0);
        CHECK_EQ_I(r->evaluated, 1 << L);
        run(&c, 20, 4, no4, r);
        same_as_exhaustive(&c, r, 4, 1 << 4);
        CHECK(isinf(r->with[4]) && r->with[bits(r->best[4]) & 1 ? 0 : 1] == r->cost[4]);
    }
}

/* Costs that layers reduce independently, with diminishing returns: the paper's setting; width 8 finds the optimum of every size. */
static void test_additive(struct beam_result *r)
{
    static struct costs c;
    for (uint64_t seed = 0; seed < 50; seed++) {
        for (int s = 0; s < 1 << L; s++) {
            double gain = 0;
            for (int l = 0; l < L; l++)
                gain += s >> l & 1 ? ctr_uniform(seed, 2, (uint64_t)l) : 0;
            c.of[s] = 1 / (1 + gain);
        }
        run(&c, 1, L, NULL, r);
        same_as_exhaustive(&c, r, L, 0);
    }
}

/* Layers 0 and 1 help only together, layer 2 a little alone: a beam of one falls into it, of two does not. */
static void test_trap(struct beam_result *r)
{
    static struct costs c;
    for (int s = 0; s < 1 << L; s++)
        c.of[s] = 10 + s * 1e-3 - (s & 4 ? 1 : 0) - ((s & 3) == 3 ? 5 : 0);
    run(&c, 1, 2, NULL, r);
    CHECK_EQ_I(bits(r->best[1]), 4);
    CHECK(bits(r->best[2]) != 3);
    run(&c, 2, 2, NULL, r);
    CHECK_EQ_I(bits(r->best[2]), 3);
    CHECK_EQ_I(exhaustive(&c, 2, 0), 3);
}

static void test_ties_and_errors(struct beam_result *r)
{
    static struct costs c;
    for (int s = 0; s < 1 << L; s++)
        c.of[s] = 1;
    run(&c, 3, 3, NULL, r);
    CHECK_EQ_I(bits(r->best[3]), 7); /* equal costs: the lower layers */
    c.of[2] = NAN;
    struct beam_problem p = {.layers = L, .width = 3, .k = 2, .ctx = &c, .cost = cost};
    CHECK_ERR(beam_search(&p, r, e), E_NUMERIC, "not finite");
    p.width = 0;
    CHECK_ERR(beam_search(&p, r, e), E_USAGE, "width 0");
    p.width = 3;
    p.k = L + 1;
    CHECK_ERR(beam_search(&p, r, e), E_USAGE, "7 of 6");
}

static void test_overlap(void)
{
    static const bool a[L] = {1, 1, 0, 1, 0, 1}, b[L] = {1, 0, 1, 1, 0, 1}, c[L] = {0, 0, 1, 0, 1, 0}, none[L];
    CHECK(sets_overlap(a, a, L) == 1);
    CHECK(sets_overlap(a, b, L) == 0.75 && sets_overlap(b, a, L) == 0.75);
    CHECK(sets_overlap(c, a, L) == 0);
    CHECK(sets_overlap(none, none, L) == 1);
}

int main(void)
{
    struct beam_result *r = malloc(sizeof *r);
    CHECK(r != NULL);
    test_full_width(r);
    test_additive(r);
    test_trap(r);
    test_ties_and_errors(r);
    test_overlap();
    free(r);
    return test_end();
}
