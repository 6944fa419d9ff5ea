/* Inside the generator: what the tasks share. One `struct gen` makes one task at one length; its two random streams start fresh. */
#ifndef RULER_GEN_H
#define RULER_GEN_H

#include "core/rng.h"
#include "ruler/punkt.h"
#include "ruler/ruler.h"
#include "ruler/text.h"

/* Data loaded once: words, essay, sentence parameters. */
struct ruler_res {
    struct list nouns, adjs, cwe; /* sorted and unique; cwe = nouns, adjectives and verbs */
    /*
     * The sorted list of "adjective-noun" never exists as a whole: adjectives in the order of "adjective-" are blocks of nouns.n words,
     * except where one adjective continues another ("old-", "old-fashioned-"): the blocks of such a group are merged, in `merged`, sorted.
     */
    struct word_group {
        size_t first_adj, n_adj;
        struct list merged; /* empty when n_adj = 1 */
    } * groups;
    size_t n_groups;
    struct str essay; /* white space collapsed */
    size_t *word_end; /* [n_words] byte offset behind each word */
    size_t n_words;
    struct punkt *punkt;
    char essay_sha[65], nouns_sha[65];
    struct split_cache {
        int64_t n; /* words, 0 = free */
        struct str text;
        struct span *s;
        size_t n_s;
    } split[16];
    int split_next;
};
int ruler_res_load(struct ruler_res *r, const char *data_dir, const char *essays, const char *wonderwords, struct err *e);
void ruler_res_free(struct ruler_res *r);
int64_t ruler_words_count(const struct ruler_res *r);
void ruler_word(const struct ruler_res *r, int64_t i, struct str *out);
/* The first n words (repeated when there are fewer), split into sentences; borrowed until 16 other sizes were asked for. */
int ruler_essay(struct ruler_res *r, int64_t n, const struct split_cache **out, struct err *e);

enum ruler_kind { K_NIAH, K_VT, K_CWE, K_FWE, K_QA };
enum niah_stack { S_NOISE, S_ESSAY, S_NEEDLE };
enum niah_type { T_NUMBERS, T_WORDS, T_UUIDS };
struct ruler_task {
    const char *name;
    enum ruler_kind kind;
    int64_t gen_tokens;
    const char *cut; /* start of the answer prefix: its first 10 characters */
    enum niah_stack stack;
    enum niah_type key, value;
    int k, v, q;
};
/* NULL when there is none of the name. */
const struct ruler_task *ruler_task_find(const char *name, size_t n);
extern const struct ruler_task ruler_tasks[];
extern const size_t ruler_n_tasks;

extern const char *const ruler_noise;
enum { GEN_OK = 0, GEN_RETRY = 1 }; /* -1 = error; RETRY: the reference raises an exception here, which its retry loop swallows */

struct gen {
    const struct ruler_task *task;
    struct ruler_res *res;
    struct ruler_counter counter;
    bool compact, flat;         /* flat: the reference's remove_newline_tab */
    const char *before, *after; /* chat template around the task's, "" = none */
    int64_t max_len, seed;
    struct mt19937 py, np;
    struct str text; /* the generated prompt with its answer prefix */
    struct list answers;
    struct list needles, keys, values; /* niah */
    struct str tmp, tmp2, icl;
    int64_t icl_tokens;
    bool in_icl;       /* vt: making the few-shot example */
    struct list names; /* vt */
    struct list vocab; /* fwe */
    struct qa *qa;
    struct perm {
        int64_t *v;
        size_t n;
    } perm[16];
    int perm_next;
    int64_t smallest; /* of the tries that did not fit at the smallest size: tokens needed */
};
/* The order in which a fresh Random(seed).shuffle leaves n things: new[i] = old[perm[i]]. Borrowed, cached. */
const int64_t *gen_perm(struct gen *g, size_t n, struct err *e);
int gen_count(struct gen *g, const char *p, size_t n, int64_t *out, struct err *e);
/* {name} of the template becomes the value: type_needle_v, context, query, num_v. */
struct fill {
    const char *name;
    const struct str *value;
};
void gen_fill(struct str *out, const char *templ, const struct fill *f, size_t n);

/* Size rules of a search (spec section 2, section 15). */
struct size_rule {
    int64_t inc, lower, probe, limit; /* limit: the source ends there, 0 = no end */
    int64_t max, extra;               /* tokens allowed; tokens counted on top of the text */
    bool cwe_upper;
};
typedef int (*gen_fn)(struct gen *g, int64_t size, struct err *e);
int gen_search(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t *size, struct err *e);
/* Step 5: tries from `size` downwards; fn makes the text complete; *tokens = count(text) + add. */
int gen_fit(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t size, int64_t add, int64_t *tokens, struct err *e);

/* Each appends `samples` lines of JSON for g->task to out. */
int niah_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
int vt_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
int cwe_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
int fwe_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
/* Name of the question file in data_dir. */
const char *qa_file(const struct ruler_task *t);
int qa_make(struct gen *g, int64_t samples, const char *data_dir, struct str *out, struct err *e);
/* One task at one length; g->task, res, counter, compact, flat, before, after, max_len, seed are set. Frees what g holds. */
int gen_task(struct gen *g, int64_t samples, const char *data_dir, struct str *out, struct err *e);
/* The record of g->text (cut at the prefix), g->answers. niah: index is found here. */
int gen_record(struct gen *g, int64_t index, int64_t tokens, struct str *out, struct err *e);
int gen_add(struct list *l, const struct str *s, struct err *e);

#endif
