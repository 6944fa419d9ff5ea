/*
 * MMLU, ARC-Easy, ARC-Challenge, PIQA and WinoGrande, request for request as lm-evaluation-harness 0.4.13 makes them, scored by
 * log-likelihood. Order of use: lme_pick_tasks -> for each task lme_load, lme_each (texts) or lme_set_make (ids) -> lme_score ->
 * lme_doc_scores -> lme_results. lme_run does all of it for one model. Errors: E_USAGE (names, options), E_INPUT (files, with file and
 * line), E_ENV, E_NUMERIC, E_INTERRUPTED.
 */
#ifndef LMEVAL_LMEVAL_H
#define LMEVAL_LMEVAL_H

#include "core/arena.h"
#include "core/str.h"
#include "model/chat.h"
#include "model/model.h"
#include "model/tok.h"

/* ---- tasks ---- */

enum lme_kind { LME_MMLU, LME_ARC, LME_PIQA, LME_WINOGRANDE };
enum { LME_N_SUBJECTS = 57, LME_N_TASKS = 61, LME_N_GROUPS = 5, LME_MAX_CHOICES = 16 };
struct lme_task {
    const char *name, *alias; /* "mmlu_anatomy", "anatomy" */
    const char *set;          /* MMLU subject, "ARC-Easy", "ARC-Challenge", "winogrande_xl"; NULL for PIQA */
    enum lme_kind kind;
    int group; /* 0 stem, 1 other, 2 social_sciences, 3 humanities; -1 none */
};
/* 57 subjects in the harness' order (group by group, alphabetical inside), then arc_easy, arc_challenge, piqa, winogrande. NULL past the
 * end. */
const struct lme_task *lme_task_at(int i);
/* Group i: the four of MMLU, then "mmlu" itself. */
const char *lme_group_name(int i);
const char *lme_group_alias(int i);
struct lme_pick {
    const struct lme_task *task[LME_N_TASKS];
    int n;
    bool group[LME_N_GROUPS]; /* groups asked for by name (mmlu asks for all five) */
};
/* Comma list of tasks and groups; each task once, in the order named. An unknown name is E_USAGE with the nearest. */
int lme_pick_tasks(const char *list, struct lme_pick *out, struct err *e);

/* ---- documents ---- */

struct lme_doc {
    const char *question; /* MMLU question, ARC stem, PIQA goal, WinoGrande sentence */
    int n_choice;
    const char *choice[LME_MAX_CHOICES]; /* texts; WinoGrande: the two options */
    const char *label[LME_MAX_CHOICES];  /* ARC */
    const char *id, *key;                /* ARC: id and answerKey */
    int gold;
    int64_t line; /* in its file, from 1 */
};
enum lme_split { LME_EVAL, LME_POOL };
struct lme_docs {
    struct arena arena;
    struct lme_doc *doc;
    int64_t n, cap;
    char path[1024], sha256[65];
};
/*
 * The evaluation documents or the few-shot pool of a task under `dir`: a root with one folder a task, or that folder itself. Original
 * distribution files (MMLU csv; ARC jsonl; PIQA and WinoGrande jsonl with *-labels.lst) or the hub's rows (.jsonl, or .json with an array
 * or {"rows": [{"row":
 * ..}]}). E_INPUT names file and line: bad rows, a label not among the choices, empty choices, missing labels or another number of them.
 * Free *out also after an error.
 */
int lme_load(const struct lme_task *t, enum lme_split split, const char *dir, struct lme_docs *out, struct err *e);
void lme_docs_free(struct lme_docs *d);
/* Where lme_load would read from; false when there is no such file. */
bool lme_find(const struct lme_task *t, enum lme_split split, const char *dir, char path[1024]);
/* The document as the hub has it, two spaces a level (what the harness hashes), or on one line. */
void lme_doc_json(const struct lme_task *t, const struct lme_doc *d, bool pretty, struct str *out);
struct jw;
void lme_doc_write(const struct lme_task *t, const struct lme_doc *d, struct jw *w);
/* SHA-256 over the documents' JSON lines: what sources.tsv lists; the same for every form of the files. */
int lme_content_sha(const struct lme_task *t, const struct lme_docs *d, char hex[65], struct err *e);
/* Python's str.strip: bytes to leave out at both ends. */
size_t py_rstrip(const char *s, size_t n);  /* length without trailing white space */
size_t py_lspaces(const char *s, size_t n); /* bytes of leading white space */

/* ---- requests as text ---- */

struct lme_range {
    int64_t lo, hi; /* inclusive */
};
struct lme_prompts {
    int shots;
    bool chat, multiturn; /* multiturn: examples as turns of their own */
    enum chat_kind template;
    const char *system;              /* system instruction or NULL */
    uint64_t seed;                   /* of the few-shot sampler; the harness': 1234 */
    double limit;                    /* < 0: all; < 1: that share, rounded up; else the first documents */
    const struct lme_range *samples; /* document indices, or NULL; examples are those of the full run */
    size_t n_samples;
    bool mutual_info; /* also the requests without context */
};
#define LME_PROMPTS_INIT                                                                                                                   \
    {                                                                                                                                      \
        .template = CHAT_NONE, .multiturn = true, .seed = 1234, .limit = -1                                                                \
    }
/* One document's requests. Request r has context ctx[r] (WinoGrande), ctx[0], or none (r >= n_choice), and continuation cont[r]. */
struct lme_case {
    int64_t id; /* document index */
    const struct lme_doc *doc;
    int n_choice, n_req, n_ctx;
    struct str ctx[2];
    struct str cont[2 * LME_MAX_CHOICES];
};
static inline const struct str *lme_ctx(const struct lme_case *c, int r)
{
    static const struct str none = {0};
    return r >= c->n_choice ? &none : &c->ctx[c->n_ctx > 1 ? r : 0];
}
/* How many of n documents the limit and the samples select. */
int64_t lme_selected(const struct lme_prompts *p, int64_t n);
/* Calls fn for every selected document in order; pool may be NULL without shots. */
int lme_each(const struct lme_task *t, const struct lme_docs *docs, const struct lme_docs *pool, const struct lme_prompts *p,
             int (*fn)(void *ctx, const struct lme_case *c, struct err *e), void *ctx, struct err *e);
/* What acc_norm divides by and what the harness calls target: the choice as it is listed (WinoGrande: the filled prefix), and str(target).
 */
void lme_choice_text(const struct lme_task *t, const struct lme_doc *d, int i, struct str *out);
void lme_target_text(const struct lme_task *t, const struct lme_doc *d, struct str *out);
void lme_description(const struct lme_task *t, struct str *out);

/* ---- requests as ids ---- */

struct lme_req {
    const int32_t *ctx, *cont; /* after truncation */
    int32_t n_ctx, n_cont;
    int32_t cut; /* ids cut from the context's left */
    double ll;
    bool greedy, done;
};
struct lme_set {
    struct arena arena;
    struct lme_req *req;
    int64_t n, cap;
    int64_t *first; /* [n_docs + 1] first request of a selected document */
    int64_t *id;    /* [n_docs] its index */
    const struct lme_doc **doc;
    int64_t n_docs, cap_docs;
    int64_t truncated, cut; /* requests, tokens */
    int64_t one_token;
};
struct lme_encoder;
struct lme_encode_opts {
    int64_t max_length; /* ids of context and continuation without the last one; 0 = no limit */
    bool truncate;      /* cut from the left, as the harness does; else a longer request is E_INPUT */
    int32_t prefix;     /* in place of an empty context: -1 = BOS, else EOS */
    bool plain;         /* every text whole, no reuse (tests) */
};
int lme_encoder_open(struct lme_encoder **out, const struct tok *t, const struct lme_encode_opts *o, struct err *e);
void lme_encoder_close(struct lme_encoder *x);
/* Ids of one document's requests [lmeval.md 2.1, 2.3], appended to the set. `where` (file) is for messages. */
int lme_encode_case(struct lme_encoder *x, const struct lme_case *c, const char *where, struct lme_set *s, struct err *e);
/* All requests of a task. */
int lme_set_make(const struct lme_task *t, const struct lme_docs *docs, const struct lme_docs *pool, const struct lme_prompts *p,
                 struct lme_encoder *x, struct lme_set *out, struct err *e);
void lme_set_free(struct lme_set *s);

/* ---- scoring ---- */

struct lme_cost {
    int64_t tokens;          /* distinct prefixes that are computed: the tree's size */
    int64_t no_sharing;      /* sum over requests */
    int64_t one_token_cache; /* distinct inputs, what the harness computes at batch 1 */
    int64_t nodes, levels;
};
int lme_count(const struct lme_req *req, int64_t n, struct lme_cost *out, struct err *e);

struct lme_score_opts {
    int32_t batch;       /* sequences computed together; changes no result on the CPU */
    bool bf16;           /* the harness' rounding for bf16 models [lmeval.md 2.2] */
    int64_t cache_bytes; /* states kept at once; 0 = 1 GiB. Changes no result */
    void *ctx;
    int (*done)(void *ctx, const int64_t *req, int64_t n, struct err *e); /* these requests are complete; may be NULL */
    void (*progress)(void *ctx, int64_t tokens, int64_t total);           /* may be NULL */
};
/*
 * ll and greedy of every request that is not done. The requests form a prefix tree; every prefix is computed once, and where several
 * continuations take their token from one place, one row of logits serves them all. How texts are cut into steps depends on the whole set,
 * not on what is done.
 */
int lme_score(struct model *m, struct lme_req *req, int64_t n, const struct lme_score_opts *o, int64_t *tokens, struct err *e);

/* ---- metrics ---- */

enum lme_metric { LME_ACC, LME_ACC_BYTES, LME_MUTUAL_INFO, LME_ACC_NORM, LME_BRIER, LME_EXACT, LME_N_METRICS };
extern const char *const lme_metric_names[];
/* Comma list of further metrics (acc_bytes, acc_mutual_info, brier_score, exact_match, acc_norm) as bits; acc is always there. */
int lme_metrics_of(const char *list, unsigned *bits, struct err *e);
unsigned lme_task_metrics(const struct lme_task *t); /* the harness' own: acc, and acc_norm but for MMLU and WinoGrande */
/* numpy's argmax: the first of equal ones, the first NaN wins. */
int lme_argmax(const double *v, int n);
/* Scores of one document from its lls (choices, then the unconditional ones when mutual information is asked for). */
int lme_doc_scores(const struct lme_task *t, const struct lme_doc *d, const double *ll, const bool *greedy, unsigned metrics,
                   double out[LME_N_METRICS], struct err *e);
struct lme_value {
    double mean, se; /* se < 0: "N/A" */
    double lo, hi;   /* 95 %, Wilson; of accuracies */
};
struct lme_result {
    const struct lme_task *task; /* NULL: a group */
    int group;
    int shots;
    int64_t n, original;
    unsigned metrics;
    struct lme_value v[LME_N_METRICS];
    char hash[65]; /* task_hashes */
    int64_t truncated, cut, ties, requests;
    struct lme_cost cost;
    char data[1024], data_sha256[65];
};
void lme_mean(const double *x, int64_t n, struct lme_value *out);
/* A group from its leaves. False when a subject of it is not among them. */
bool lme_group_result(int group, const struct lme_result *leaf, int n, struct lme_result *out);

/* ---- a run ---- */

struct lme_run_opts {
    const char *tasks, *data_dir, *out_dir;
    const char *shots;   /* "5" or "mmlu=5,arc_challenge=25" */
    const char *samples; /* "0-3,7" or NULL */
    const char *metrics;
    struct lme_prompts prompts; /* shots and samples are taken from the texts above */
    int64_t max_length;         /* 0: the model's; longer requests are then errors, else they are cut */
    int32_t batch;
    bool bf16, log_samples, harness_names, force, allow_missing, no_dates, bundled;
    const char *model_name;
    void *ctx;
    void (*progress)(void *ctx, const char *task, int64_t done, int64_t total, const char *extra);
};
struct lme_run_result {
    struct lme_result task[LME_N_TASKS + LME_N_GROUPS]; /* tasks in order, then groups */
    int n_tasks, n;
    int64_t tokens, computed; /* of the trees; by this call */
    char results_path[1200];
};
/* Writes out_dir/results.json, samples_TASK.jsonl and loglikelihoods.jsonl (every request's value; an interrupted run goes on from it). */
int lme_run(struct model *m, const struct lme_run_opts *o, struct lme_run_result *out, struct err *e);
/* "5" or "task=5,group=3,..": the shots of a task; names that are not in the pick are E_USAGE. */
int lme_shots_of(const char *spec, const struct lme_pick *pick, const struct lme_task *t, int *out, struct err *e);
int lme_samples_of(const char *spec, struct lme_range *out, size_t cap, size_t *n, struct err *e);
/* The harness' table (and that of groups), then ours with intervals. */
void lme_table(const struct lme_run_result *r, struct str *out);
void lme_intervals(const struct lme_run_result *r, struct str *out);

/* ---- two result folders ---- */

struct lme_diff {
    char name[64];
    const char *metric;
    int64_t n, only_a, only_b; /* documents right in one alone */
    double a, b, diff, lo, hi; /* means; b - a with a 95 % normal interval of the paired difference, cut at -1 and 1 */
    double p;                  /* exact McNemar, two-sided */
};
/* Tasks present in both; folders with other prompts are refused. out has room for LME_N_TASKS + 1 entries a metric; the last is over all
 * documents. */
int lme_compare(const char *a, const char *b, struct lme_diff *out, size_t cap, size_t *n, struct err *e);

/* ---- WikiText ---- */

/* The page as the harness gives it to the model [lmeval.md 2.5]. */
int wikitext_detokenize(const char *page, size_t n, struct str *out, struct err *e);
/* Pieces of re.split(\s+): white space runs + 1. */
int64_t wikitext_words(const char *page, size_t n);
/* Documents of a raw WikiText file: each begins at a " = Title = " line. fn gets the pages in order. */
int wikitext_pages(const char *text, size_t n, int (*fn)(void *ctx, const char *page, size_t n, struct err *e), void *ctx, struct err *e);
/* Windows of the rolling log-likelihood: fn(input ids [n_in], the last n_pred positions predict pred). */
int lme_rolling(const int32_t *ids, int64_t n, int32_t prefix, int64_t max_length,
                int (*fn)(void *ctx, const int32_t *input, int64_t n_in, const int32_t *pred, int64_t n_pred, struct err *e), void *ctx,
                struct err *e);
struct wikitext_result {
    int64_t pages, words, bytes, tokens; /* words and bytes of the pages as they stand in the file; tokens that were scored */
    double ll;                           /* nats */
    double word_ppl, byte_ppl, bits_per_byte;
};
/* The harness' task `wikitext`: rolling log-likelihood of every page (max_pages 0 = all), windows of max_length tokens. */
int wikitext_perplexity(struct model *m, const char *text, size_t n, int64_t max_length, int64_t max_pages, void *ctx,
                        void (*progress)(void *ctx, int64_t pages, const struct wikitext_result *r), struct wikitext_result *out,
                        struct err *e);

#endif
