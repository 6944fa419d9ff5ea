/* Architecture logits: softmax, annealing, gradient, AdamW, diagnostics. */
#include "dash/gates.h"

#include <math.h>
#include <string.h>

double anneal_temperature(enum anneal a, int64_t s, int64_t n, double t_hi, double t_lo)
{
    double f = n > 1 ? (double)s / (double)(n - 1) : 0;
    switch (a) {
    case ANNEAL_LINEAR:
        return t_hi + (t_lo - t_hi) * f;
    case ANNEAL_EXP:
        return t_hi * pow(t_lo / t_hi, f);
    case ANNEAL_NONE:
        break;
    }
    return t_hi;
}

void gates_p(const struct gates *g, int layer, double T, double p[MAX_OPS])
{
    for (int o = 0; o < MAX_OPS; o++)
        p[o] = 0;
    if (!g->searched[layer]) {
        p[g->fixed[layer]] = 1;
        return;
    }
    double top = g->alpha[layer][0], sum = 0;
    for (int o = 1; o < g->ops; o++)
        top = fmax(top, g->alpha[layer][o]);
    for (int o = 0; o < g->ops; o++)
        sum += p[o] = exp((g->alpha[layer][o] - top) / T);
    for (int o = 0; o < g->ops; o++)
        p[o] /= sum;
}

double gates_budget(const struct gates *g, double T)
{
    double p[MAX_OPS], b = 0;
    for (int l = 0; l < g->layers; l++) {
        if (!g->searched[l])
            continue;
        gates_p(g, l, T, p);
        for (int o = 0; o < g->ops; o++)
            b += p[o] * g->cost[o];
    }
    return b;
}

void gates_backward(struct gates *g, double dkl[][MAX_OPS], double lambda, double T, double scale)
{
    for (int l = 0; l < g->layers; l++) {
        if (!g->searched[l])
            continue;
        double p[MAX_OPS], G[MAX_OPS], mean = 0;
        gates_p(g, l, T, p);
        for (int o = 0; o < g->ops; o++) {
            G[o] = dkl[l][o] + lambda * g->cost[o];
            mean += p[o] * G[o];
        }
        for (int o = 0; o < g->ops; o++)
            g->grad[l][o] += scale * p[o] / T * (G[o] - mean);
    }
}

double gates_update(struct gates *g, double lr, double b1, double b2, double eps)
{
    double norm = 0;
    g->updates++;
    double bc1 = 1 - pow(b1, (double)g->updates), bc2 = 1 - pow(b2, (double)g->updates);
    for (int l = 0; l < g->layers; l++)
        for (int o = 0; g->searched[l] && o < g->ops; o++) {
            double d = g->grad[l][o], *m = &g->m[l][o], *v = &g->v[l][o];
            norm += d * d;
            *m = b1 * *m + (1 - b1) * d;
            *v = b2 * *v + (1 - b2) * d * d;
            g->alpha[l][o] -= lr * (*m / bc1) / (sqrt(*v / bc2) + eps);
        }
    memset(g->grad, 0, sizeof g->grad);
    return sqrt(norm);
}

int gates_argmax(const struct gates *g, int layer)
{
    if (!g->searched[layer])
        return g->fixed[layer];
    int best = 0;
    for (int o = 1; o < g->ops; o++)
        if (g->alpha[layer][o] >= g->alpha[layer][best])
            best = o;
    return best;
}

void gates_diagnose(const struct gates *g, double T, struct gate_diag *d)
{
    *d = (struct gate_diag){.budget_soft = gates_budget(g, T)};
    int n = 0;
    for (int l = 0; l < g->layers; l++) {
        if (!g->searched[l])
            continue;
        double p[MAX_OPS], a = 0, b = 0;
        gates_p(g, l, T, p);
        for (int o = 0; o < g->ops; o++) {
            if (p[o] > 0)
                d->entropy -= p[o] * log(p[o]);
            if (p[o] > a) {
                b = a;
                a = p[o];
            } else if (p[o] > b)
                b = p[o];
        }
        d->top1 += a;
        d->margin += a - b;
        d->ambiguous += a - b < 0.2;
        int best = gates_argmax(g, l);
        d->n[best]++;
        d->budget_hard += g->cost[best];
        n++;
    }
    if (n) {
        d->entropy /= n;
        d->top1 /= n;
        d->margin /= n;
    }
}
