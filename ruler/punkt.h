/*
 * Sentence boundaries as NLTK 3.8's Punkt finds them with the English parameters (Kiss and Strunk 2006); the decisions are those of the
 * reference, including how overlapping candidates are merged. A `struct punkt` is constant after loading.
 */
#ifndef RULER_PUNKT_H
#define RULER_PUNKT_H

#include "core/err.h"

struct punkt;
/* dir holds abbrev_types.txt, collocations.tab, sent_starters.txt, ortho_context.tab (the punkt_tab layout). */
int punkt_load(struct punkt **out, const char *dir, struct err *e);
void punkt_free(struct punkt *p);

struct span {
    size_t from, to; /* bytes */
};
/* Sentences of a UTF-8 text; *out is malloc'ed. */
int punkt_split(const struct punkt *p, const char *text, size_t n, struct span **out, size_t *n_out, struct err *e);

#endif
