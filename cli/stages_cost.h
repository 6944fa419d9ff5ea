/*
 * What a run will cost, before anything is opened: the teacher's config.json, the models' own code on a backend that only counts (FLOPs
 * by the ops' cost functions, memory by the allocations that the stage will make), and token counts from the manifest. Estimates: rows
 * are taken as full, a search as one run at its first seed (more_runs says how many may follow), hybrids with as many Full layers as their
 * budget says (a DASH run's set is not known before). Decoding of `infer` counts by the bytes that it reads; that of RULER's short answers
 * does not count.
 */
#ifndef CLI_STAGES_COST_H
#define CLI_STAGES_COST_H

#include "cli/stages.h"

/* The plan hook of every kind. Tokens always; FLOPs and memory when env->estimate is set, time when env->rate (FLOP/s) is, too. An input
 * that is not there costs nothing. */
int stage_plan(void *env, const struct node *n, struct stage_cost *out, struct err *e);
/* What a stage may use: --memory-limit, else what the device has (the backend's, once it is open; else the host's). 0 = unknown. */
double cost_limit(const struct env *env);
/* E_ENV with the numbers, and what would help, when a stage that costs this does not fit. */
int cost_fits(const struct env *env, const struct node *n, const struct stage_cost *c, struct err *e);
/* The same for a stage that is about to run: plans it. Opens the backend. */
int stage_fits(struct env *env, const struct node *n, struct err *e);
/* Rates of this machine for the estimates: COST_SHARE of what its matrix product does at (512, 1536, 576), and of what a copy through its
 * memory moves, measured for a moment. */
#define COST_SHARE 0.5
int cost_rate(struct env *env, struct err *e);
/* Rates on a device in what it would compute in (cli_dtype), from experiments/rates.tsv. E_USAGE names the devices and types that it has.
 */
int cost_device(struct env *env, const char *device, struct err *e);

#endif
