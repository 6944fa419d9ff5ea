/* What the two associative-recall probes share: keys, the sum of three as the answer, the substring rule. */
#ifndef BASELINES_AR_H
#define BASELINES_AR_H

#include "baselines/probe.h"

enum { AR_PAIRS = 50, AR_ASKED = 3 };
int ar_keys(struct probe_gen *g, const char *name, const char *key[AR_PAIRS], struct err *e); /* distinct tokenizer entries */
int ar_answer(struct probe_prompt *p, int sum, struct err *e);
double ar_right(const struct probe_prompt *p, const char *text, size_t n);

/* ar-mh: what each key holds. alias -1: the digit value; else the earlier or rewired key it stands for. depth: aliases to follow. */
struct ar_mh_pairs {
    int alias[AR_PAIRS], value[AR_PAIRS], depth[AR_PAIRS];
};
void ar_mh_draw(struct probe_gen *g, struct ar_mh_pairs *p);
int ar_mh_value(const struct ar_mh_pairs *p, int key);

#endif
