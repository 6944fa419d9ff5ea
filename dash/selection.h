/*
 * A choice of operators per layer: what search and select write (selection.json) and distil reads. Layer specs as text: "0,5,11" (Full
 * there, Linear elsewhere) or "full:0,5 window:2,3"; "none" keeps no layer, "all" keeps all. The canonical text ("full:0,5 window:2") is
 * the identity of a selection: equal sets are trained once.
 */
#ifndef DASH_SELECTION_H
#define DASH_SELECTION_H

#include "dash/gates.h"

struct selection {
    char method[32], variant[64];  /* variant: settings that are not the default, for the row's name; "" = none */
    int layers, version;           /* version of the method's definition */
    enum mixer_kind kind[MAX_LAYERS];
    bool has_score, has_p;
    double score[MAX_LAYERS];      /* higher = keep */
    double p[MAX_LAYERS][MAX_OPS]; /* by mixer kind: Full, Window, Linear */
    double budget;                 /* realised: Full + c_window * Window */
    int64_t asked, tokens, ties_at_cut;
    uint64_t seed;
    double flops_forward, flops_backward;
    bool filled;                   /* the column asked for was reached */
    bool has_base, uninformative;  /* probes: accuracy of the teacher is known; it is too low for the probe to say anything */
    double base;                   /* share of prompts right, 0..1 */
    bool reused;                   /* scores (and their cost) were taken from another run */
};
/* Layers by falling score, lower index first on ties: order[0] is kept first. */
void selection_order(const struct selection *s, int order[MAX_LAYERS]);
int layers_parse(const char *spec, int layers, enum mixer_kind *kind, struct err *e); /* E_USAGE */
void layers_text(const enum mixer_kind *kind, int layers, struct str *out);
/* One letter a layer: F, W, l (linear). */
void layers_mask(const enum mixer_kind *kind, int layers, char mask[MAX_LAYERS + 1]);
double layers_budget(const enum mixer_kind *kind, int layers, double window_cost);
/* DIR/selection.json (all of the above; `ranking` = selection_order when there are scores) and DIR/identity.txt */
int selection_save(const struct selection *s, const char *dir, struct err *e);
int selection_load(struct selection *s, const char *path, struct err *e);
/* The K largest scores become Full, lower index first on ties, layers in `exclude` never; counts ties at the cut. */
void selection_top(struct selection *s, int k, const bool *exclude);

#endif
