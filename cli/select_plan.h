/*
 * What can be known of a selection, of a Stage 1 and of budgets before anything runs: errors of the plan, so that a manifest is refused
 * before its first stage. What is not known yet (a run that is not done, a checkpoint that is not there) is checked when the stage runs.
 */
#ifndef CLI_SELECT_PLAN_H
#define CLI_SELECT_PLAN_H

#include "baselines/selector.h"
#include "experiments/plan.h"

/* Plan hook of `select`: the budget, the inputs a method needs, layer lists, published sets, the Stage 1. E_USAGE. */
int select_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e);
/*
 * The stage's `linear` fits it: in a manifest the aligned teacher is its own `model` (hashes compared) and the KV expansion the one it asks
 * for (E_USAGE); of a run given by flag the KV expansion (E_INPUT; its teacher is compared when it is opened).
 */
int linear_plan(const struct node *n, struct err *e);
/* `layers` of distill given as text: layers out of range or named twice. E_USAGE. */
int layers_plan(const struct node *n, struct err *e);
/*
 * A Window layer costs w/T in a budget. Of a `ruler` stage: w/T of the search or selection that chose the layers is w/T of the hybrid at
 * every evaluation length, unless the stage says allow_cost_mismatch. E_USAGE.
 */
int cost_match_plan(const struct node *n, struct err *e);

/* The `exclude` list as flags; *any: there is one. E_USAGE for layers out of range or named twice. */
int select_exclude(const struct node *n, int64_t layers, bool exclude[MAX_LAYERS], bool *any, struct err *e);
/* Bundled files that a method reads; "" = none. */
int select_files(const struct selector *s, char sets[1024], char data[1024], struct err *e);

#endif
