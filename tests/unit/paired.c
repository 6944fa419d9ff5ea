/* Paired comparison: means and errors against closed forms, Holm against a hand-made case, max-t, and two seeds of one set as two
 * selectors. */
#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "reports/paired.h"
#include "tests/test.h"

#define CHECK_NEAR(got, want, limit) CHECK(fabs((got) - (want)) <= (limit))

enum { TASKS = 3 };
static const size_t task_n[TASKS] = {24, 24, 12};
enum { N = 60 };

static void random_row(double *x, uint64_t seed, double p)
{
    for (size_t i = 0; i < N; i++)
        x[i] = ctr_uniform(seed, 1, i) < p ? 100 : 0;
}

/* sum over tasks of var / n / T^2: the prompts' error of a difference, exactly */
static double prompt_se(const double *a, const double *b)
{
    double total = 0;
    for (size_t t = 0, at = 0; t < TASKS; at += task_n[t], t++) {
        double m = 0, v = 0, n = (double)task_n[t];
        for (size_t i = 0; i < task_n[t]; i++)
            m += (a[at + i] - b[at + i]) / n;
        for (size_t i = 0; i < task_n[t]; i++)
            v += pow(a[at + i] - b[at + i] - m, 2) / n;
        total += v / n / TASKS / TASKS;
    }
    return sqrt(total);
}

static struct paired_row row_of(const double *x, int64_t seed)
{
    return (struct paired_row){.n_seeds = 1, .seed = {seed}, .score = {x}};
}

static void test_errors(const struct paired *p)
{
    double a[N], b[N], c[N];
    struct paired_diff d;
    random_row(a, 1, 0.7);
    random_row(b, 2, 0.4);
    random_row(c, 3, 0.7);
    struct paired_row ra = row_of(a, 0), rb = row_of(b, 0);
    paired_compare(p, &ra, &rb, &d, NULL);
    CHECK_NEAR(d.d, paired_mean(p, a) - paired_mean(p, b), 1e-9);
    /* the standard deviation of 10,000 draws is known to 1 / sqrt(2 * 10000) = 0.7 %; four of these */
    CHECK_NEAR(d.se / prompt_se(a, b), 1, 0.029);
    CHECK_EQ_I(d.seeds, 1);
    CHECK_NEAR(d.se_seeds, 0, 0);
    /* a second seed with another difference adds its spread */
    struct paired_row two_a = {.n_seeds = 2, .seed = {0, 7}, .score = {a, c}}, two_b = {.n_seeds = 2, .seed = {7, 0}, .score = {b, b}};
    paired_compare(p, &two_a, &two_b, &d, NULL);
    double d0 = paired_mean(p, a) - paired_mean(p, b), d1 = paired_mean(p, c) - paired_mean(p, b);
    CHECK_EQ_I(d.seeds, 2);
    CHECK_NEAR(d.d, (d0 + d1) / 2, 1e-9);
    CHECK_NEAR(d.se_seeds, fabs(d0 - d1) / 2, 1e-9); /* sd of two is |d0 - d1| / sqrt 2, over sqrt 2 */
    struct paired_row other = row_of(b, 5);
    paired_compare(p, &ra, &other, &d, NULL);
    CHECK_EQ_I(d.seeds, 0);
    CHECK(isnan(d.d));
}

/* Two trainings of one set must not look like two selectors: with no true difference, |d| stays under the half-width in about 95 of 100
 * cases. */
static void test_no_difference(const struct paired *p)
{
    int apart = 0;
    for (uint64_t k = 0; k < 100; k++) {
        double a[3][N], b[3][N];
        struct paired_row ra = {.n_seeds = 3, .seed = {0, 1, 2}, .score = {a[0], a[1], a[2]}}, rb = {.n_seeds = 3, .seed = {0, 1, 2},
            .score = {b[0], b[1], b[2]}};
        struct paired_diff d;
        for (uint64_t s = 0; s < 3; s++) {
            random_row(a[s], 100 + 10 * k + s, 0.5);
            random_row(b[s], 5000 + 10 * k + s, 0.5);
        }
        paired_compare(p, &ra, &rb, &d, NULL);
        apart += fabs(d.d) > d.half;
    }
    CHECK(apart <= 12); /* binomial(100, 0.05): above 12 with probability 0.0015; the seeds' term makes the interval wider still */
    printf("no true difference: %d of 100 separated\n", apart);
}

static void test_holm(void)
{
    struct paired_diff d[4] = {{.p = 0.04}, {.p = 0.01}, {.p = 0.03}, {.p = 0.5}};
    struct paired_diff *f[4] = {&d[0], &d[1], &d[2], &d[3]};
    paired_holm(f, 4);
    CHECK_NEAR(d[1].p_holm, 0.04, 1e-12);
    CHECK_NEAR(d[2].p_holm, 0.09, 1e-12);
    CHECK_NEAR(d[0].p_holm, 0.09, 1e-12); /* 2 * 0.04 = 0.08 is raised to the one before */
    CHECK_NEAR(d[3].p_holm, 0.5, 1e-12);
}

static void test_max_t(const struct paired *p)
{
    double *draws = calloc(3 * PAIRED_DRAWS, sizeof *draws), x[4][N];
    const double *each[3];
    struct paired_diff d[3];
    struct paired_row base;
    random_row(x[3], 900, 0.5);
    base = row_of(x[3], 0);
    for (uint64_t i = 0; i < 3; i++) {
        random_row(x[i], 901 + i, 0.5);
        struct paired_row r = row_of(x[i], 0);
        each[i] = draws + i * PAIRED_DRAWS;
        paired_compare(p, &r, &base, &d[i], draws + i * PAIRED_DRAWS);
    }
    double one = paired_max_t(each, d, 1), three = paired_max_t(each, d, 3);
    CHECK_NEAR(one, 1.96, 0.08); /* a mean of 60 bounded scores: near normal */
    CHECK(three > one);
    CHECK(three < 2.394 + 0.1);  /* Bonferroni for three at 95 %: z = 2.394 */
    free(draws);
}

int main(void)
{
    struct paired p;
    CHECK_OK(paired_open(&p, task_n, TASKS, 17, e));
    test_errors(&p);
    test_no_difference(&p);
    test_holm();
    test_max_t(&p);
    paired_close(&p);
    return test_end();
}
