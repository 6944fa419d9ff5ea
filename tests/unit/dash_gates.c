/* Architecture logits: softmax, annealing, the gradient of alpha, AdamW, argmax, diagnostics. */
#include <math.h>

#include "dash/gates.h"
#include "tests/test.h"

/* Three operators, four layers; layer 0 is not searched (Full). */
static void setup(struct gates *g)
{
    static const double alpha[4][MAX_OPS] = {{0, 0, 0}, {0.4, -0.3, 0.1}, {-1.2, 0.7, 0.65}, {0, 0, 0}};
    *g = (struct gates){.layers = 4, .ops = 3, .kind = {MIX_FULL, MIX_WINDOW, MIX_GDN}, .cost = {1, 0.125, 0},
                        .searched = {false, true, true, true}};
    memcpy(g->alpha, alpha, sizeof alpha);
}

static void test_softmax(void)
{
    struct gates g;
    double p[MAX_OPS], want[MAX_OPS], sum = 0;
    setup(&g);
    const double T = 0.35;
    for (int o = 0; o < 3; o++)
        sum += want[o] = exp(g.alpha[1][o] / T);
    for (int o = 0; o < 3; o++)
        want[o] /= sum;
    gates_p(&g, 1, T, p);
    check_close_f64("softmax(alpha / T)", p, want, 3, 0, 1e-14, "a few roundings of exp and a division in double");
    gates_p(&g, 3, T, p);
    CHECK(p[0] == p[1] && p[1] == p[2]);
    gates_p(&g, 0, T, p);
    CHECK(p[0] == 1 && p[1] == 0 && p[2] == 0);
    g.alpha[1][0] = 900; /* exp(900 / T) would overflow */
    g.alpha[1][1] = -900;
    gates_p(&g, 1, T, p);
    CHECK(p[0] == 1 && p[1] == 0 && p[2] == 0);
    g.ops = 2;
    gates_p(&g, 2, T, p);
    CHECK(p[2] == 0 && fabs(p[0] + p[1] - 1) < 1e-15);
}

static void test_budget(void)
{
    struct gates g;
    setup(&g);
    double p1[MAX_OPS], p2[MAX_OPS], T = 0.6, want, got = gates_budget(&g, T);
    gates_p(&g, 1, T, p1);
    gates_p(&g, 2, T, p2);
    want = p1[0] + 0.125 * p1[1] + p2[0] + 0.125 * p2[1] + (1 + 0.125) / 3; /* layer 0 is left out */
    check_close_f64("soft budget", &got, &want, 1, 0, 1e-14, "six products and sums in double");
}

/* A smooth stand-in for the KL as a function of p, with its gradient. */
static double loss(const struct gates *g, double T, double lambda, double dkl[][MAX_OPS])
{
    double sum = 0, p[MAX_OPS];
    for (int l = 0; l < g->layers; l++) {
        gates_p(g, l, T, p);
        for (int o = 0; o < g->ops; o++) {
            double a = 0.3 + 0.2 * l - 0.45 * o;
            sum += a * p[o] * p[o] + sin(p[o] * (1 + o));
            if (dkl)
                dkl[l][o] = 2 * a * p[o] + (1 + o) * cos(p[o] * (1 + o));
        }
    }
    return sum + lambda * gates_budget(g, T);
}

static void test_gradient(double T)
{
    struct gates g;
    double dkl[4][MAX_OPS] = {{0}}, got[12], want[12], lambda = 0.7, h = 1e-5, scale = 0.25;
    size_t n = 0;
    char name[64];
    setup(&g);
    loss(&g, T, lambda, dkl);
    gates_backward(&g, dkl, lambda, T, scale);
    for (int l = 0; l < 4; l++)
        for (int o = 0; o < 3; o++) {
            double keep = g.alpha[l][o];
            g.alpha[l][o] = keep + h;
            double up = loss(&g, T, lambda, NULL);
            g.alpha[l][o] = keep - h;
            double down = loss(&g, T, lambda, NULL);
            g.alpha[l][o] = keep;
            got[n] = g.grad[l][o];
            want[n++] = scale * (up - down) / (2 * h);
        }
    snprintf(name, sizeof name, "gradient of alpha, T %g", T);
    /* third derivative / 6 * h^2 with derivatives below 50 / T^3, and 1e-16 * |loss| / h of rounding */
    check_close_f64(name, got, want, n, scale * (50 / (T * T * T) * h * h / 6 + 1e-9), 0, "central difference: h^2 f''' / 6 + eps |f| / h");
    CHECK(got[0] == 0 && got[1] == 0 && got[2] == 0); /* not searched: no gradient */
    for (int l = 1; l < 4; l++)
        CHECK(fabs(g.grad[l][0] + g.grad[l][1] + g.grad[l][2]) < 1e-15 / T * 8); /* softmax: the sum over operators vanishes */
    double once = g.grad[2][1];
    gates_backward(&g, dkl, lambda, T, scale);
    CHECK(g.grad[2][1] == 2 * once); /* it adds */
}

static void test_update(void)
{
    struct gates g;
    setup(&g);
    double before = g.alpha[1][0], fixed = g.alpha[0][0];
    g.grad[1][0] = 3;
    g.grad[1][1] = -4;
    double norm = gates_update(&g, 0.1, 0.9, 0.95, 1e-8);
    CHECK(norm == 5);
    /* first AdamW step with bias correction: lr * sign(gradient), but for eps */
    CHECK(fabs(g.alpha[1][0] - (before - 0.1)) < 1e-9);
    CHECK(fabs(g.alpha[1][1] - (-0.3 + 0.1)) < 1e-9);
    CHECK(g.alpha[2][0] == -1.2 && g.alpha[0][0] == fixed); /* no gradient, no decay */
    CHECK(g.grad[1][0] == 0 && g.grad[1][1] == 0);
    CHECK_EQ_I(g.updates, 1);
}

static void test_anneal(void)
{
    static const enum anneal kinds[] = {ANNEAL_LINEAR, ANNEAL_EXP};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        CHECK(anneal_temperature(kinds[i], 0, 100, 1.0, 0.1) == 1.0);
        CHECK(fabs(anneal_temperature(kinds[i], 99, 100, 1.0, 0.1) - 0.1) < 1e-16 * 2); /* 1 + (0.1 - 1) is off by an ulp of 0.9 */
        CHECK(anneal_temperature(kinds[i], 0, 1, 1.0, 0.1) == 1.0);                    /* a single step */
        for (int s = 1; s < 100; s++)
            CHECK(anneal_temperature(kinds[i], s, 100, 1.0, 0.1) < anneal_temperature(kinds[i], s - 1, 100, 1.0, 0.1));
    }
    CHECK(fabs(anneal_temperature(ANNEAL_LINEAR, 1, 3, 1.0, 0.1) - 0.55) < 1e-15);
    CHECK(fabs(anneal_temperature(ANNEAL_EXP, 1, 3, 1.0, 0.1) - sqrt(0.1)) < 1e-15);
    CHECK(anneal_temperature(ANNEAL_NONE, 99, 100, 1.0, 0.1) == 1.0);
}

static void test_argmax(void)
{
    struct gates g;
    setup(&g);
    CHECK_EQ_I(gates_argmax(&g, 0), 0);
    CHECK_EQ_I(gates_argmax(&g, 1), 0);
    CHECK_EQ_I(gates_argmax(&g, 2), 1);
    CHECK_EQ_I(gates_argmax(&g, 3), 2); /* all equal: the cheapest */
    g.alpha[1][2] = g.alpha[1][0];
    CHECK_EQ_I(gates_argmax(&g, 1), 2);
    g.alpha[2][0] = g.alpha[2][1];
    CHECK_EQ_I(gates_argmax(&g, 2), 1);
    g.fixed[0] = 2;
    CHECK_EQ_I(gates_argmax(&g, 0), 2);
}

static void test_diagnose(void)
{
    struct gates g;
    struct gate_diag d;
    double T = 0.5, p[4][MAX_OPS], entropy = 0;
    setup(&g);
    gates_diagnose(&g, T, &d);
    for (int l = 1; l < 4; l++) {
        gates_p(&g, l, T, p[l]);
        for (int o = 0; o < 3; o++)
            entropy -= p[l][o] * log(p[l][o]) / 3;
    }
    CHECK(fabs(d.entropy - entropy) < 1e-14);
    CHECK(fabs(d.top1 - (p[1][0] + p[2][1] + p[3][0]) / 3) < 1e-15);
    CHECK(fabs(d.margin - ((p[1][0] - p[1][2]) + (p[2][1] - p[2][2])) / 3) < 1e-15); /* layer 3: margin 0 */
    CHECK_EQ_I(d.ambiguous, (p[1][0] - p[1][2] < 0.2) + (p[2][1] - p[2][2] < 0.2) + 1);
    CHECK(d.budget_soft == gates_budget(&g, T));
    CHECK(d.budget_hard == 1.125); /* Full, Window, Linear */
    CHECK(d.n[0] == 1 && d.n[1] == 1 && d.n[2] == 1);
    /* one layer decided, nothing to divide by when none is searched */
    struct gates none = {.layers = 2, .ops = 2};
    gates_diagnose(&none, T, &d);
    CHECK(d.entropy == 0 && d.top1 == 0 && d.budget_hard == 0);
}

int main(void)
{
    test_softmax();
    test_budget();
    test_gradient(1.0);
    test_gradient(0.37);
    test_gradient(0.1);
    test_update();
    test_anneal();
    test_argmax();
    test_diagnose();
    return test_end();
}
