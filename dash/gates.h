/*
 * Architecture logits of the search (DASH eq. 12-17): alpha[L][O], p = softmax(alpha / T_arch), cost vector c, AdamW on alpha alone,
 * annealing, diagnostics. Host doubles: at most a few hundred numbers. Operators of a layer stand in the order Full, Window, Linear,
 * absent ones left out; layers that are not searched have one operator and no gradient.
 */
#ifndef DASH_GATES_H
#define DASH_GATES_H

#include "core/err.h"
#include "model/cfg.h"

enum { MAX_OPS = 3, MAX_LAYERS = 256 };
enum anneal { ANNEAL_LINEAR, ANNEAL_EXP, ANNEAL_NONE };
enum relax { RELAX_SOFT, RELAX_STE /* forward one-hot argmax, gradient of the softmax (App. G) */,
             RELAX_BILEVEL /* soft; the mixers' weights learn too, see bilevel.h */ };

struct gates {
    int layers, ops;
    enum mixer_kind kind[MAX_OPS];      /* operators in the search */
    double cost[MAX_OPS];               /* c: Full 1, Window w/T, Linear 0 */
    bool searched[MAX_LAYERS];
    int fixed[MAX_LAYERS];              /* operator of a layer that is not searched (index into kind) */
    double alpha[MAX_LAYERS][MAX_OPS], m[MAX_LAYERS][MAX_OPS], v[MAX_LAYERS][MAX_OPS], grad[MAX_LAYERS][MAX_OPS];
    int64_t updates;
};

/* T_arch of micro-step s of S (0-based): first 1 = t_hi, last = t_lo. NONE: t_hi throughout. */
double anneal_temperature(enum anneal a, int64_t s, int64_t n, double t_hi, double t_lo);
/* p of one layer at temperature T; one-hot for a fixed layer. */
void gates_p(const struct gates *g, int layer, double T, double p[MAX_OPS]);
/* sum over searched layers of p.c: the soft budget (layer 0 held Full is left out, as in App. B). */
double gates_budget(const struct gates *g, double T);
/*
 * Adds to grad the gradient of scale * (KL + lambda sum p.c): dkl[l][o] = dKL/dp_o for the micro-batch. d alpha_o = (p_o / T)(G_o -
 * sum_j p_j G_j), G_o = dkl_o + lambda c_o.
 */
void gates_backward(struct gates *g, double dkl[][MAX_OPS], double lambda, double T, double scale);
/* One AdamW step (decay 0) with the mean gradient, then grad = 0. Returns the gradient's norm. */
double gates_update(struct gates *g, double lr, double b1, double b2, double eps);
/* argmax per layer; ties go to the cheaper operator (later index). */
int gates_argmax(const struct gates *g, int layer);

struct gate_diag {
    double entropy, top1, margin; /* means over searched layers; entropy in nats */
    int ambiguous;                /* layers with margin < 0.2 */
    double budget_soft, budget_hard;
    int n[MAX_OPS];               /* searched layers whose argmax is this operator */
};
void gates_diagnose(const struct gates *g, double T, struct gate_diag *d);

#endif
