/* Inside the generator: what the tasks share. One `struct gen` makes one task at one length; its two random streams start fresh. */
#ifndef RULER_GEN_H
#define RULER_GEN_H

#include "core/arena.h"
#include "core/jwrite.h"
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
    size_t *sentence; /* [n_sentences] the word each of the essay's sentences begins with; NULL = not asked for */
    size_t n_sentences;
    struct punkt *punkt;
    char essay_sha[65], nouns_sha[65], adjs_sha[65], verbs_sha[65], punkt_sha[65];
    struct list english; /* words of RULER's english_words.json, in its order; empty = not given */
    char words_sha[65];
    struct ruler_qa {
        struct list docs; /* sorted and unique */
        int64_t *order;   /* [docs.n] place -> document: 0, 1, 2, ...; the harness shuffles it for good once it asks for all */
        struct question {
            const char *query, **answer;
            int64_t *ctx, *more; /* documents: gold ones; others of the same article */
            size_t n_answers, n_ctx, n_more;
        } * q;
        size_t n_q;
        struct arena mem; /* holds the questions */
        char sha[65];
    } qa[2]; /* qa_1 (SQuAD), qa_2 (HotpotQA); docs.n = 0: not loaded */
};
/* What ruler_res_load reads; data_dir is needed, paths that are NULL are left out or have a default. */
struct ruler_sources {
    const char *data_dir;
    const char *essays, *wonderwords; /* as in ruler_gen_opts */
    bool sentences;                   /* ruler_res.sentence is wanted */
    const char *words;                /* english_words.json: an object whose values are the words */
    const char *qa[2];                /* as ruler_qa_load takes them */
    int (*also)(void *ctx, struct err *e); /* something of the caller's to be done at the same time, or NULL */
    void *also_ctx;
    struct pool *pool; /* reads side by side; NULL = one after the other */
};
/* Several files may be bad: the first error in a fixed order is reported. Free *r also after an error. */
int ruler_res_load(struct ruler_res *r, const struct ruler_sources *s, struct err *e);
void ruler_res_free(struct ruler_res *r);
int64_t ruler_words_count(const struct ruler_res *r);
void ruler_word(const struct ruler_res *r, int64_t i, struct str *out);
/* Texts of the essay, split into sentences: one set for each thread. */
struct splits {
    struct split_cache {
        int64_t n; /* words, 0 = free */
        size_t first;
        struct str text;
        struct span *s;
        size_t n_s;
    } v[16];
    int next;
    double seconds; /* spent on sentence boundaries */
    int64_t made;
};
void splits_free(struct splits *s);
/* n words from word `first` on, behind the last one the first again, split into sentences; borrowed until 16 others were asked for. */
int ruler_essay(const struct ruler_res *r, struct splits *s, size_t first, int64_t n, const struct split_cache **out, struct err *e);
/* E_INPUT for an empty file and for what a server answers in place of a file. */
int ruler_not_html(const char *path, struct err *e);
/* which 0: SQuAD 2.0's JSON; 1: HotpotQA's (context as pairs, or as the columns of the Hugging Face form). */
int ruler_qa_load(struct ruler_res *r, int which, const char *path, struct err *e);
void ruler_qa_free(struct ruler_qa *q);

enum ruler_kind { K_NIAH, K_VT, K_CWE, K_FWE, K_QA };
enum niah_stack { S_NOISE, S_ESSAY, S_NEEDLE };
enum niah_type { T_NUMBERS, T_WORDS, T_UUIDS };
enum { MAX_REFS = 256 }; /* reference answers of a sample */
struct ruler_task {
    const char *name;
    enum ruler_kind kind;
    int64_t gen_tokens;
    enum niah_stack stack;       /* niah, vt: the haystack */
    enum niah_type key, value;   /* niah */
    int k, v, q;                 /* niah: keys (not fewer than q), values of a key, keys asked for */
    int chains, hops;            /* vt */
    int freq_cw, freq_ucw, n_cw; /* cwe: how often common and other words stand in the list (4096 tokens and more), common words */
    double alpha;                /* fwe: counts fall with rank to this power */
    int word_len;                /* fwe */
    int64_t vocab;               /* fwe: coded words; -1 = one for 50 tokens */
    int dataset;                 /* qa: 0 SQuAD, 1 HotpotQA */
    const int64_t *lengths;      /* in place of the call's lengths, or NULL */
    size_t n_lengths;
    bool custom;
};
/* NULL when there is none of the name. The built-in ones: */
const struct ruler_task *ruler_task_find(const char *name, size_t n);
extern const struct ruler_task ruler_tasks[];
extern const size_t ruler_n_tasks;
bool ruler_in_essay(const struct ruler_task *t);   /* hides things in essays */
bool ruler_has_layout(const struct ruler_task *t); /* differs between the two layouts */
/* Start of the answer prefix: its first 10 characters. */
const char *ruler_cut(enum ruler_kind kind);

/* The built-in tasks, then those of a task file (README.md). */
struct task_set {
    struct ruler_task task[RULER_MAX_TASKS];
    bool listed[RULER_MAX_TASKS]; /* named in the file */
    size_t n;
    struct arena mem; /* names and lengths */
    struct str text;  /* of the file, empty = there is none */
    char sha[65];     /* of it, "" = there is none */
};
/* file NULL: the built-in ones alone. flavour NULL: nothing that depends on it is checked. All problems at once (E_USAGE, FILE:LINE:COL).
 */
int task_set_load(struct task_set *s, const char *file, const char *flavour, struct err *e);
/* Those of a folder of data sets or predictions: it has a copy of its task file. */
int task_set_of(struct task_set *s, const char *dir, struct err *e);
#define TASK_SET_FILE "tasks.yaml"
/* Writes that copy; a folder with another task file is refused unless force. */
int task_set_keep(const struct task_set *s, const char *dir, bool force, struct err *e);
void task_set_free(struct task_set *s);
const struct ruler_task *task_set_find(const struct task_set *s, const char *name, size_t n);
/* ", did you mean" a name of the set: "" when none is near. */
const char *task_set_hint(const struct task_set *s, const char *name, size_t n, char out[96]);
/* A custom task's parameters, as members of an object that is open. */
void task_put(const struct ruler_task *t, struct jw *w);

extern const char *const ruler_noise;
enum { GEN_OK = 0, GEN_RETRY = 1 }; /* -1 = error; RETRY: the reference raises an exception here, which its retry loop swallows */

struct gen {
    const struct ruler_task *task;
    struct ruler_res *res;       /* constant, but for the harness' order of documents */
    struct splits *splits;       /* NULL: own ones */
    struct ruler_timing *timing; /* or NULL */
    struct ruler_counter counter;
    bool compact, flat; /* flat: the reference's remove_newline_tab */
    bool harness;       /* lm-evaluation-harness' variant: seed is that of the fixed shuffles, py, np and cwe_py go on from task to task */
    bool drawn;         /* compact: gen_place draws the two below */
    size_t essay_first; /* the word the essay begins with */
    uint64_t perm_seed; /* of gen_perm */
    const char *before, *after; /* chat template around the task's, "" = none */
    int64_t max_len, seed;
    bool np_given; /* numpy's stream starts from np_start, not from seed */
    uint32_t np_start;
    struct mt19937 py, np, cwe_py; /* cwe_py: harness only */
    struct str text;               /* the generated prompt with its answer prefix */
    struct list answers;
    struct str counted;                /* harness: what the size search counts */
    struct str gen_prefix;             /* harness: start of the answer, kept apart from the prompt */
    struct str example;                /* harness, cwe: the few-shot example, which is not in the prompt */
    struct list needles, keys, values; /* niah */
    struct str tmp, tmp2, icl;
    int64_t icl_tokens;
    bool in_icl;                   /* vt: making the few-shot example */
    struct list names;             /* vt */
    struct list vocab;             /* fwe; vt: the example's answers */
    double zeta;                   /* fwe: of alpha */
    int64_t pre_samples, question; /* qa: questions before this chunk's first; the one being asked */
    struct perm {
        int64_t *v;
        size_t n;
        uint64_t seed;
    } perm[16];
    int perm_next;
    int64_t smallest; /* of the tries that did not fit at the smallest size: tokens needed */
    /* Records go there as they are made when set, so that memory does not grow with the number of samples. */
    int (*sink)(void *ctx, const char *p, size_t n, struct err *e);
    void *sink_ctx;
    int64_t records, sum_length, least_length, most_length; /* of the records made: their `length` */
};
/* The order in which a fresh Random(perm_seed).shuffle leaves n things: new[i] = old[perm[i]]. Borrowed, cached. */
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
    bool words; /* harness: the limit is a number of words and is met after a try, not before it */
};
typedef int (*gen_fn)(struct gen *g, int64_t size, struct err *e);
/* Calls gen_place. */
int gen_search(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t *size, struct err *e);
/* Step 5: tries from `size` downwards; fn makes the text complete; *tokens = count(text) + add. */
int gen_fit(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t size, int64_t add, int64_t *tokens, struct err *e);

/* Each appends `samples` lines of JSON for g->task to out (or passes them to the sink). */
int niah_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
int vt_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
int cwe_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
int fwe_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
int qa_make(struct gen *g, int64_t samples, struct str *out, struct err *e);
/* One task at one length; g->task, res, counter, compact, flat, before, after, max_len, seed are set. Frees what g holds. Harness: the
 * streams too are set. */
int gen_task(struct gen *g, int64_t samples, struct str *out, struct err *e);
/*
 * drawn: draws where the essay of sample `index` begins (the start of a sentence); in cwe and fwe the order of its words. For all its
 * tries; PLACE_SEARCH and below: of the size search (and of vt's example). From a stream of seed, task and index alone: the tasks' own
 * streams do not notice.
 */
enum { PLACE_SEARCH = -1 };
void gen_place(struct gen *g, int64_t index);
/*
 * n words of the essay from essay_first on with things inserted at depths that are drawn, in the order given. GEN_RETRY: more than the
 * 40 depths there are.
 */
int gen_essay(struct gen *g, int64_t n, const struct list *insert, struct str *ctx, struct err *e);
/* The record of g->text (cut at the prefix), g->answers. niah: index is found here. The harness' form: gen_prefix set = the text holds no
 * prefix. */
int gen_record(struct gen *g, int64_t index, int64_t tokens, struct str *out, struct err *e);
int gen_add(struct list *l, const struct str *s, struct err *e);
/* Chat templates of the reference by name, or a text that holds {task_template}. */
int ruler_chat(const char *name, struct str *before, struct str *after, struct err *e);

#endif
