/*
 * RULER: synthetic long-context tasks: generator, runner and scorer. 13 tasks: niah_single_1..3, niah_multikey_1..3, niah_multivalue,
 * niah_multiquery, vt, cwe, fwe, and qa_1 (SQuAD), qa_2 (HotpotQA) where their question files are given. Flavours: `nvidia` writes the
 * bytes of NVIDIA/RULER c3f5e3b; `compact` is the same with smaller size steps, for windows below 2048 tokens; `lm-eval` writes the
 * documents of lm-evaluation-harness 4e7e0d47f. Their numbers are not comparable.
 *
 * Prompts depend on the tokenizer only through counter.count. In `nvidia` and `compact` every task starts from fresh generators, so tasks
 * may be made one at a time; in `lm-eval` all tasks of a call share one stream, in the build order, so the list of tasks is part of the
 * data. Task names in lists are separated by commas. Scores are percent (0..100). Errors: E_USAGE unknown task or flavour; E_INPUT data
 * missing or corrupt, a folder that does not match; a task that cannot fit (task, length and the smallest length that would do
 * are named; nothing is written for it) is E_CHECK where others of the call were made, E_USAGE where none was.
 */
#ifndef RULER_RULER_H
#define RULER_RULER_H

#include "core/err.h"
#include "core/str.h"

struct pool;

#define RULER_MAX_TASKS 64 /* 13, and users' own */
#define RULER_MAX_LENGTHS 64

/* Number of tokens of a text without special tokens; negative = failed. */
struct ruler_counter {
    int64_t (*count)(void *ctx, const char *text, size_t n);
    void *ctx;
};

/* Seconds of a generation, added up over its tasks; the parts do not overlap. */
struct ruler_timing {
    double load;   /* words, essay, sentence parameters, questions */
    double search; /* looking for the size, without the counting and splitting done for it */
    double draw;   /* random draws and the making of text */
    double split;  /* sentence boundaries */
    double tokenise, write;
    int64_t samples, tokens, splits; /* tokens: counted in all, tries included */
};
struct ruler_gen_opts {
    struct ruler_counter counter;
    const char *tokenizer_name, *tokenizer_sha256; /* for provenance.json; NULL allowed */
    const int64_t *lengths;                        /* tokens: prompt + answer prefix + generation budget */
    size_t n_lengths;
    const char *tasks; /* comma list, NULL = all of the flavour, or those of task_file */
    int64_t samples, seed;
    const char *flavour;     /* "compact", "nvidia" or "lm-eval" */
    const char *data_dir;    /* the bundled ruler/data */
    const char *essays;      /* .json {"text": ...}, .txt or .txt.zst, or a folder of them, joined; NULL = data_dir/essay.txt.zst */
    const char *wonderwords; /* "2.2.0" (NULL = this) or "3.0.0" (also "3.0") */
    /* All below may be left zero. */
    const char *squad, *hotpotqa; /* question files; NULL = data_dir/squad.json, data_dir/hotpotqa.json where they exist */
    const char *words;            /* RULER's english_words.json, for cwe beyond the word lists (nvidia, compact) */
    bool drawn;                   /* compact: every sample has its own place in the essay, or order of words (README.md, layout) */
    const char *chat;             /* chat template: a name of RULER's or a text with {task_template}; NULL = base. Not in lm-eval */
    bool remove_newline_tab;      /* not in lm-eval */
    int64_t chunk, n_chunks;      /* chunk `chunk` of n_chunks: its share of the samples, seed + chunk; 0 chunks = whole. Not in lm-eval */
    const int64_t *numpy_seed;    /* numpy's stream; NULL = seed (nvidia, compact), 1234 (lm-eval) */
    bool reversed;                /* lm-eval: build order of v0.4.9 to v0.4.11 */
    struct ruler_timing *timing;  /* NULL = not wanted; zeroed by the caller */
    bool force;                   /* replace data sets made with other parameters, make whole ones again */
    const char *task_file;        /* users' own tasks (README.md); NULL = none. A copy goes to out_dir/tasks.yaml */
    struct pool *pool;            /* NULL = one thread; changes no byte. lm-eval's tasks share one stream: for reading alone */
    /* Sets counter, tokenizer_name and tokenizer_sha256 of *o while words, essay and questions are read; NULL = they are set. */
    int (*open)(void *ctx, struct ruler_gen_opts *o, struct err *e);
    void *open_ctx;
};
/*
 * Writes out_dir/TASK/validation.jsonl and out_dir/TASK/provenance.json (with the share of the length that the samples use) for every task,
 * then out_dir/provenance.json, which lists all data sets there; each file appears whole or not at all. nvidia, compact: with several
 * lengths a file holds `samples` lines for lengths[0] made with seed, then `samples` for lengths[1] made with seed+1, and so on; each block
 * is what a run of that length and seed alone would write. lm-eval: the lengths follow one another in the shared stream. A task that cannot
 * fit does not keep the others from being made (lm-eval: it ends the call); the error names all of them. A folder that holds data sets made
 * with other parameters is E_USAGE without `force`; those of the same parameters that are whole are left as they are (lm-eval: all of them
 * or none), so a call that was cut short goes on.
 */
int ruler_gen(const struct ruler_gen_opts *o, const char *out_dir, struct err *e);

struct ruler_sample {
    const char *task;
    const char *prompt; /* input + answer_prefix (lm-eval: input, delimiter, gen_prefix): what the model is given */
    /*
     * The answer as the tiny teacher was measured to write it, with a leading space where the prompt does not end in one: needles " V1,
     * V2." (keys in the order asked, the values of one key in the order of the text), vt "NAME NAME ..." along the chain, cwe " 1. word 2.
     * word ..." by first appearance, fwe " w1 w2 w3" by frequency.
     */
    const char *answer;
    const char *const *refs;
    size_t n_refs;
    int64_t line, gen_tokens, length; /* line: from 0 inside the task's file; length: as recorded */
};
/* Calls fn for every sample of a generated folder, tasks in RULER's order, until it returns non-zero (returned as -1 with fn's error).
 * Pointers die after fn. */
int ruler_each_sample(const char *dir, const char *tasks, int (*fn)(void *ctx, const struct ruler_sample *s, struct err *e), void *ctx,
                      struct err *e);

/* Callbacks return 0 or -1 with *e set. Arrays they hand out are malloc'ed and freed by the runner. */
struct ruler_run_opts {
    const char *data_dir, *out_dir, *tasks; /* data_dir: a generated folder; tasks NULL = all there are */
    int32_t batch;
    void *ctx;
    int (*encode)(void *ctx, const char *text, size_t n, int32_t **ids, int32_t *len, struct err *e);
    int (*decode)(void *ctx, const int32_t *ids, int32_t n, struct str *out, struct err *e);
    /* Greedy; out[i] = up to max_new[i] new ids (without the stop token), malloc'ed one by one. out and out_len are arrays of n given by
     * the runner. */
    int (*generate)(void *ctx, int32_t n, const int32_t *const *prompt, const int32_t *len, const int32_t *max_new, int32_t **out,
                    int32_t *out_len, struct err *e);
    /*
     * Both at once, in place of the two below and above, so that a prompt is computed once: full[i] begins with the prompt, len[i] of its
     * full_len[i] ids; sum_logprob as below. NULL: the two are called one after the other.
     */
    int (*generate_scored)(void *ctx, int32_t n, const int32_t *const *full, const int32_t *full_len, const int32_t *len,
                           const int32_t *max_new, int32_t **out, int32_t *out_len, double *sum_logprob, struct err *e);
    /* sum over positions j >= answer_from[i] of log p(ids[i][j] | ids[i][..j]). NULL: no answer NLL. */
    int (*answer_logprob)(void *ctx, int32_t n, const int32_t *const *ids, const int32_t *len, const int32_t *answer_from,
                          double *sum_logprob, struct err *e);
};
/*
 * Writes out_dir/TASK/predictions.jsonl, one record a sample, in order of lines, appended batch by batch. A record that is there with the
 * same line and prompt sha256 is kept, so an interrupted run goes on; a torn last line is dropped; a record of another prompt is E_INPUT
 * (another data set: use a new folder). Keys: line, prompt_sha256, pred, outputs, score (percent), answer_nll (sum of -log p, nats; null
 * without answer_logprob), answer_tokens, prompt_tokens, new_tokens. The answer's ids are encode(answer) without the
 * ids encode("") gives (BOS), put behind encode(prompt): what a generation after this prompt would have to write. Provenance of the data
 * (flavour, sha256 of its provenance.json) goes to out_dir/ruler.json.
 */
int ruler_run(const struct ruler_run_opts *o, struct err *e);

struct ruler_task_score {
    char name[32];
    int64_t n, nulls; /* samples; empty predictions */
    double mean, se;  /* percent; se = sample standard deviation / sqrt(n) */
    double nll;       /* nats per answer token over the task; NAN when not measured */
    double *score;    /* [n] percent */
    double *nlls;     /* [n] nats per answer token of each sample, NAN when not measured */
};
struct ruler_scores {
    struct ruler_task_score task[RULER_MAX_TASKS];
    size_t n;
    double mean, se, nll; /* unweighted over tasks; se = sqrt(sum of task se^2) / n */
    double lo, hi;        /* of the mean: 95 %, Wilson's with the number of prompts that gives se */
    char flavour[16];
};
/* dir: a folder written by ruler_run. Scores are computed again from pred and outputs. Free *out also after an error. */
int ruler_score(const char *dir, struct ruler_scores *out, struct err *e);
/* The same with another flavour's metric (NULL = the folder's own): nvidia and compact take any answer for qa, lm-eval the share of
 * answers. */
int ruler_score_as(const char *dir, const char *flavour, struct ruler_scores *out, struct err *e);
/*
 * The same for predictions in the references' own layouts, too: NVIDIA's pred folders (TASK.jsonl), lm-evaluation-harness'
 * samples_TASK_*.jsonl; their flavour is taken where none is given, there is no NLL. length: chooses among the lengths of harness samples,
 * 0 = they have one.
 */
int ruler_score_at(const char *dir, const char *flavour, int64_t length, struct ruler_scores *out, struct err *e);
void ruler_scores_free(struct ruler_scores *s);

struct ruler_diff {
    char name[32];
    int64_t n;
    double diff, lo, hi, p; /* b - a in percent; 95 % normal interval, cut at -100 and 100; two-sided sign-flip p (20000 flips, fixed seed) */
};
/*
 * Paired comparison, sample by sample. per_task has room for RULER_MAX_TASKS; *n is set. overall->diff is the mean over tasks of the tasks'
 * mean differences. Folders whose tasks, line numbers or prompt hashes differ are refused (E_INPUT).
 */
int ruler_compare(const char *a, const char *b, struct ruler_diff *per_task, size_t *n, struct ruler_diff *overall, struct err *e);

/* The 13 tasks in RULER's order, NULL-terminated; the last two are qa. */
const char *const *ruler_task_names(void);
/* Score of one prediction against references in percent: share of references found, ignoring case (part: 100 when any is found). *null:
 * empty. */
double ruler_match(const char *pred, size_t n, const char *const *refs, size_t n_refs, bool part, bool *null);

#endif
