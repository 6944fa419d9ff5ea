/* Task files: users' own tasks, in the layout of the reference's synthetic.yaml (README.md has an example). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/yamlx.h"
#include "ruler/gen.h"

enum { NAME_MAX_LEN = 31, MAX_LENGTHS = 64, DEPTHS = 40 };

/* ---- arguments ---- */

enum arg_id {
    A_STACK,
    A_KEY,
    A_VALUE,
    A_K,
    A_V,
    A_Q,
    A_CHAINS,
    A_HOPS,
    A_FCW,
    A_FUCW,
    A_NCW,
    A_FEWSHOT,
    A_ALPHA,
    A_WORDLEN,
    A_VOCAB,
    A_DATASET,
    N_ARGS
};
static const char *const stacks[] = {"noise", "essay", "needle", NULL};
static const char *const types[] = {"numbers", "words", "uuids", NULL};
static const char *const datasets[] = {"squad", "hotpotqa", NULL};
#define IN(kind) (1u << (kind))
static const struct arg {
    const char *name;
    unsigned kinds;
    const char *const *words; /* NULL: a number */
    double lo, hi;
    bool whole;
    double def; /* the reference's scripts' own default; NAN = must be given */
} args[N_ARGS] = {
    [A_STACK] = {"type_haystack", IN(K_NIAH) | IN(K_VT), stacks, .def = S_ESSAY},
    [A_KEY] = {"type_needle_k", IN(K_NIAH), types, .def = T_WORDS},
    [A_VALUE] = {"type_needle_v", IN(K_NIAH), types, .def = T_NUMBERS},
    [A_K] = {"num_needle_k", IN(K_NIAH), NULL, 1, 256, true, 1},
    [A_V] = {"num_needle_v", IN(K_NIAH), NULL, 1, 256, true, 1},
    [A_Q] = {"num_needle_q", IN(K_NIAH), NULL, 1, 256, true, 1},
    [A_CHAINS] = {"num_chains", IN(K_VT), NULL, 1, 40, true, 1},
    [A_HOPS] = {"num_hops", IN(K_VT), NULL, 1, 10, true, 4},
    [A_FCW] = {"freq_cw", IN(K_CWE), NULL, 2, 1000, true, 30},
    [A_FUCW] = {"freq_ucw", IN(K_CWE), NULL, 1, 1000, true, 3},
    [A_NCW] = {"num_cw", IN(K_CWE), NULL, 1, 19, true, 10},
    [A_FEWSHOT] = {"num_fewshot", IN(K_CWE), NULL, 1, 1, true, 1},
    [A_ALPHA] = {"alpha", IN(K_FWE), NULL, 1.01, 10, false, 2},
    [A_WORDLEN] = {"coded_wordlen", IN(K_FWE), NULL, 1, 16, true, 6},
    [A_VOCAB] = {"vocab_size", IN(K_FWE), NULL, -1, 1000000, true, -1},
    [A_DATASET] = {"dataset", IN(K_QA), datasets, .def = NAN},
};
/* Names of kinds: the reference's, and ours for short. */
static const char *const kinds[] = {"niah", "variable_tracking", "common_words_extraction", "freq_words_extraction", "qa"};
static const char *const kinds_short[] = {"niah", "vt", "cwe", "fwe", "qa"};
static const int64_t kind_gen_tokens[] = {128, 30, 120, 50, 32};
static const char *const keys[] = {"task", "args", "tokens_to_generate", "lengths"};

struct reader {
    struct task_set *s;
    struct yproblems *pr;
    bool harness;
};

static const char *hint(const char *near, char out[96])
{
    out[0] = 0;
    if (near)
        snprintf(out, 96, "; did you mean '%s'?", near);
    return out;
}

static bool scalar(struct reader *r, const struct ynode *v, const char *name)
{
    if (v->kind != Y_SCALAR)
        y_problem(r->pr, v, "'%s' must be a single value", name);
    return v->kind == Y_SCALAR;
}

/* A number of [lo, hi] into *out. */
static bool number(struct reader *r, const struct ynode *v, const char *name, double lo, double hi, bool whole, double *out)
{
    double x;
    if (!scalar(r, v, name))
        return false;
    if (!parse_f64(v->s, &x) || (whole && x != floor(x))) {
        y_problem(r->pr, v, "'%s': '%.40s' is not a %s", name, v->s, whole ? "whole number" : "number");
        return false;
    }
    if (x < lo || x > hi) {
        y_problem(r->pr, v, "'%s': %.12g; the range is %.12g to %.12g", name, x, lo, hi);
        return false;
    }
    *out = x;
    return true;
}

static size_t count_words(const char *const *words)
{
    size_t n = 0;
    while (words[n])
        n++;
    return n;
}

static bool word(struct reader *r, const struct ynode *v, const char *name, const char *const *words, double *out)
{
    char near[96];
    if (!scalar(r, v, name))
        return false;
    for (size_t i = 0; words[i]; i++) {
        if (strcmp(words[i], v->s) == 0) {
            *out = (double)i;
            return true;
        }
    }
    struct str list = STR_INIT;
    for (size_t i = 0; words[i]; i++)
        str_printf(&list, "%s%s", i ? ", " : "", words[i]);
    y_problem(r->pr, v, "'%s': '%.40s' is none of %s%s", name, v->s, str_c(&list),
              hint(nearest_word(v->s, words, count_words(words)), near));
    str_free(&list);
    return false;
}

static int arg_of(const char *name)
{
    for (int i = 0; i < N_ARGS; i++)
        if (strcmp(args[i].name, name) == 0)
            return i;
    return -1;
}

static void unknown_arg(struct reader *r, const struct ynode *key, enum ruler_kind kind)
{
    const char *names[N_ARGS];
    char near[96];
    size_t n = 0;
    int i = arg_of(key->s);
    for (int k = 0; k < N_ARGS; k++)
        if (args[k].kinds & IN(kind))
            names[n++] = args[k].name;
    for (int k = 0; i >= 0 && k <= K_QA; k++) {
        if (args[i].kinds & IN(k)) {
            y_problem(r->pr, key, "'%s' is an argument of %s, not of %s", key->s, kinds[k], kinds[kind]);
            return;
        }
    }
    y_problem(r->pr, key, "unknown argument '%.40s' of %s%s", key->s, kinds[kind], hint(nearest_word(key->s, names, n), near));
}

/* Values into v[N_ARGS], their nodes into at[N_ARGS]; false when something was wrong with them. */
static bool read_args(struct reader *r, const struct ynode *task, const struct ynode *map, enum ruler_kind kind, double *v,
                      const struct ynode **at)
{
    int before = r->pr->n;
    for (int i = 0; i < N_ARGS; i++) {
        v[i] = args[i].def;
        at[i] = task;
    }
    if (kind == K_VT)
        v[A_STACK] = S_NOISE;
    if (map && map->kind != Y_MAP) {
        y_problem(r->pr, map, "'args' must be a map of argument: value");
        return false;
    }
    for (size_t k = 0; map && k < map->n; k++) {
        int i = arg_of(map->key[k]->s);
        if (i < 0 || !(args[i].kinds & IN(kind))) {
            unknown_arg(r, map->key[k], kind);
            continue;
        }
        at[i] = map->item[k];
        if (args[i].words)
            word(r, map->item[k], args[i].name, args[i].words, &v[i]);
        else
            number(r, map->item[k], args[i].name, args[i].lo, args[i].hi, args[i].whole, &v[i]);
    }
    for (int i = 0; i < N_ARGS; i++)
        if ((args[i].kinds & IN(kind)) && isnan(v[i]) && at[i] == task)
            y_problem(r->pr, task, "a task of %s needs '%s' in 'args'", kinds[kind], args[i].name);
    return r->pr->n == before;
}

/* ---- what cannot be ---- */

static void check_niah(struct reader *r, const struct ruler_task *t, const struct ynode *const *at)
{
    int needles = t->k * t->v;
    if (t->stack == S_ESSAY && needles > DEPTHS)
        y_problem(r->pr,
                  at[t->v > 1       ? A_V
                     : t->q == t->k ? A_Q
                                    : A_K],
                  "%d keys of %d values are %d needles; an essay has %d places for them", t->k, t->v, needles, DEPTHS);
    else if (needles > MAX_REFS)
        y_problem(r->pr, at[t->v > 1 ? A_V : A_K], "%d keys of %d values are %d needles; at most %d", t->k, t->v, needles, MAX_REFS);
}

static void check_vt(struct reader *r, const struct ruler_task *t, const struct ynode *const *at)
{
    int lines = t->chains * (t->hops + 1);
    if (t->stack == S_NEEDLE)
        y_problem(r->pr, at[A_STACK], "'type_haystack': variable_tracking hides its lines in noise or an essay, not among needles");
    if (t->stack == S_ESSAY && lines > DEPTHS)
        y_problem(r->pr, at[A_CHAINS], "%d chains of %d hops are %d lines; an essay has %d places for them", t->chains, t->hops, lines,
                  DEPTHS);
    if (t->stack == S_ESSAY && r->harness)
        y_problem(r->pr, at[A_STACK], "'type_haystack': variable_tracking of lm-evaluation-harness knows noise alone");
}

static void check_fwe(struct reader *r, const struct ruler_task *t, const struct ynode *const *at)
{
    double words = pow(26, t->word_len);
    if (t->vocab != -1 && t->vocab < 4)
        y_problem(r->pr, at[A_VOCAB], "'vocab_size': %" PRId64 "; -1 (one word for 50 tokens) or at least 4: the filler and three answers",
                  t->vocab);
    else if ((double)t->vocab > words / 2)
        y_problem(r->pr, at[A_VOCAB],
                  "'vocab_size': %" PRId64 " coded words of %d letters; there are %.0f, and at most half of them are drawn", t->vocab,
                  t->word_len, words);
    else if (t->vocab == -1 && t->word_len < 3)
        y_problem(r->pr, at[A_WORDLEN], "'coded_wordlen': %d letters make %.0f words, too few for one word in 50 tokens; give 'vocab_size'",
                  t->word_len, words);
}

static void check_cwe(struct reader *r, const struct ruler_task *t, const struct ynode *const *at)
{
    if (t->freq_ucw >= t->freq_cw)
        y_problem(r->pr, at[A_FUCW], "'freq_ucw': %d; it must be below freq_cw, %d, or no word is more common than the others", t->freq_ucw,
                  t->freq_cw);
}

/* ---- tasks ---- */

static void set_args(struct ruler_task *t, const double *v)
{
    switch (t->kind) {
    case K_NIAH:
        t->stack = (enum niah_stack)v[A_STACK];
        t->key = (enum niah_type)v[A_KEY];
        t->value = (enum niah_type)v[A_VALUE];
        t->v = (int)v[A_V];
        t->q = (int)v[A_Q];
        t->k = MAX((int)v[A_K], t->q);
        break;
    case K_VT:
        t->stack = (enum niah_stack)v[A_STACK];
        t->chains = (int)v[A_CHAINS];
        t->hops = (int)v[A_HOPS];
        break;
    case K_CWE:
        t->freq_cw = (int)v[A_FCW];
        t->freq_ucw = (int)v[A_FUCW];
        t->n_cw = (int)v[A_NCW];
        break;
    case K_FWE:
        t->alpha = v[A_ALPHA];
        t->word_len = (int)v[A_WORDLEN];
        t->vocab = (int64_t)v[A_VOCAB];
        break;
    case K_QA:
        t->dataset = (int)v[A_DATASET];
        break;
    }
}

static bool same(const struct ruler_task *a, const struct ruler_task *b)
{
    return a->kind == b->kind && a->gen_tokens == b->gen_tokens && a->stack == b->stack && a->key == b->key && a->value == b->value &&
           a->k == b->k && a->v == b->v && a->q == b->q && a->chains == b->chains && a->hops == b->hops && a->freq_cw == b->freq_cw &&
           a->freq_ucw == b->freq_ucw && a->n_cw == b->n_cw && a->alpha == b->alpha && a->word_len == b->word_len && a->vocab == b->vocab &&
           a->dataset == b->dataset && !a->n_lengths && !b->n_lengths;
}

static bool name_ok(struct reader *r, const struct ynode *key)
{
    size_t n = strlen(key->s);
    bool ok = n && n <= NAME_MAX_LEN && key->s[0] != '-' && key->s[0] != '_';
    for (const char *p = key->s; *p; p++)
        ok = ok && ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' || *p == '-');
    if (!ok)
        y_problem(r->pr, key, "task name '%.60s': up to %d letters, digits, '-' and '_', beginning with a letter or digit", key->s,
                  NAME_MAX_LEN);
    return ok;
}

static bool read_kind(struct reader *r, const struct ynode *key, const struct ynode *map, enum ruler_kind *kind)
{
    const struct ynode *v = y_get(map, "task");
    const char *all[2 * ARRAY_LEN(kinds)];
    char near[96];
    if (!v) {
        y_problem(r->pr, key, "task '%s' needs 'task': niah, variable_tracking, common_words_extraction, freq_words_extraction or qa",
                  key->s);
        return false;
    }
    if (!scalar(r, v, "task"))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (!strcmp(v->s, kinds[i]) || !strcmp(v->s, kinds_short[i])) {
            *kind = (enum ruler_kind)i;
            return true;
        }
        all[2 * i] = kinds[i];
        all[2 * i + 1] = kinds_short[i];
    }
    y_problem(r->pr, v, "'task': '%.40s' is none of niah, variable_tracking, common_words_extraction, freq_words_extraction, qa%s", v->s,
              hint(nearest_word(v->s, all, ARRAY_LEN(all)), near));
    return false;
}

static void read_lengths(struct reader *r, const struct ynode *v, struct ruler_task *t)
{
    if (v->kind != Y_SEQ || !v->n || v->n > MAX_LENGTHS) {
        y_problem(r->pr, v, "'lengths' must be a list of 1 to %d lengths", MAX_LENGTHS);
        return;
    }
    int64_t *l = arena_array(&r->s->mem, v->n, sizeof *l);
    for (size_t i = 0; l && i < v->n; i++) {
        double x;
        if (number(r, v->item[i], "lengths", 1, 1 << 24, true, &x))
            l[i] = (int64_t)x;
    }
    t->lengths = l;
    t->n_lengths = l ? v->n : 0;
}

static void read_task(struct reader *r, const struct ynode *key, const struct ynode *map)
{
    struct ruler_task t = {.name = arena_strdup(&r->s->mem, key->s), .custom = true};
    double v[N_ARGS], tokens;
    const struct ynode *at[N_ARGS];
    char near[96];
    bool ok = name_ok(r, key);
    if (map->kind != Y_MAP) {
        y_problem(r->pr, map, "task '%s' must be a map with 'task' and 'args'", key->s);
        return;
    }
    for (size_t i = 0; i < map->n; i++) {
        bool known = false;
        for (size_t k = 0; k < ARRAY_LEN(keys); k++)
            known |= strcmp(map->key[i]->s, keys[k]) == 0;
        if (!known)
            y_problem(r->pr, map->key[i], "unknown key '%.40s' of task '%s'%s%s", map->key[i]->s, key->s,
                      hint(nearest_word(map->key[i]->s, keys, ARRAY_LEN(keys)), near),
                      arg_of(map->key[i]->s) >= 0 ? "; it belongs into 'args'" : "");
    }
    const struct ynode *budget = y_get(map, "tokens_to_generate"), *lengths = y_get(map, "lengths");
    if (!read_kind(r, key, map, &t.kind))
        return;
    t.gen_tokens = kind_gen_tokens[t.kind];
    if (budget && number(r, budget, "tokens_to_generate", 1, 100000, true, &tokens))
        t.gen_tokens = (int64_t)tokens;
    if (lengths)
        read_lengths(r, lengths, &t);
    if (!read_args(r, key, y_get(map, "args"), t.kind, v, at) || !ok)
        return;
    set_args(&t, v);
    static void (*const check[])(struct reader *, const struct ruler_task *, const struct ynode *const *) = {check_niah, check_vt,
                                                                                                             check_cwe, check_fwe};
    if (t.kind < K_QA)
        check[t.kind](r, &t, at);
    const struct ruler_task *known = ruler_task_find(key->s, strlen(key->s));
    if (known && !same(known, &t))
        y_problem(r->pr, key, "'%s' is a built-in task with other parameters; give yours another name", key->s);
    else if (known)
        r->s->listed[known - ruler_tasks] = true;
    else if (r->s->n == RULER_MAX_TASKS)
        y_problem(r->pr, key, "more than %zu tasks of your own", RULER_MAX_TASKS - ruler_n_tasks);
    else if (r->s->n < RULER_MAX_TASKS) {
        r->s->listed[r->s->n] = true;
        r->s->task[r->s->n++] = t;
    }
}

static int read_doc(struct task_set *s, const struct ydoc *d, const char *flavour, struct err *e)
{
    struct str out = STR_INIT;
    struct yproblems pr = {.doc = d, .out = &out};
    struct reader r = {.s = s, .pr = &pr, .harness = flavour && strcmp(flavour, "lm-eval") == 0};
    if (d->root->kind != Y_MAP || !d->root->n)
        y_problem(&pr, d->root, "a task file is a map of name: {task, args}");
    for (size_t i = 0; d->root->kind == Y_MAP && i < d->root->n; i++)
        read_task(&r, d->root->key[i], d->root->item[i]);
    int rc = y_finish(&pr, e);
    str_free(&out);
    return rc ? rc : arena_ok(&s->mem, "a task file", e);
}

int task_set_load(struct task_set *s, const char *file, const char *flavour, struct err *e)
{
    *s = (struct task_set){.n = ruler_n_tasks};
    memcpy(s->task, ruler_tasks, ruler_n_tasks * sizeof *s->task);
    arena_init(&s->mem, 0);
    if (!file)
        return 0;
    struct arena a;
    struct ydoc d;
    arena_init(&a, 0);
    int rc = file_read(file, 1 << 20, &s->text, e);
    rc = rc ? rc : sha256_buf(str_c(&s->text), s->text.len, s->sha, e);
    rc = rc ? rc : ydoc_parse(&d, &a, file, str_c(&s->text), s->text.len, e);
    rc = rc ? rc : read_doc(s, &d, flavour, e);
    arena_free(&a);
    if (rc)
        task_set_free(s);
    return rc;
}

int task_set_of(struct task_set *s, const char *dir, struct err *e)
{
    char path[1024];
    path_join(path, dir, TASK_SET_FILE);
    return task_set_load(s, file_exists(path) ? path : NULL, NULL, e);
}

int task_set_keep(const struct task_set *s, const char *dir, bool force, struct err *e)
{
    char path[1024], was[65];
    path_join(path, dir, TASK_SET_FILE);
    if (!s->sha[0])
        return 0;
    if (file_exists(path)) {
        TRY(sha256_file(path, was, e));
        if (strcmp(was, s->sha) == 0)
            return 0;
        if (!force)
            return ERR(e, E_USAGE, "'%s': holds tasks of another task file (%s); use another folder, or --force to replace it", dir, path);
    }
    return file_write(path, str_c(&s->text), s->text.len, e);
}

void task_set_free(struct task_set *s)
{
    arena_free(&s->mem);
    str_free(&s->text);
}

const struct ruler_task *task_set_find(const struct task_set *s, const char *name, size_t n)
{
    for (size_t i = 0; i < s->n; i++)
        if (strlen(s->task[i].name) == n && memcmp(s->task[i].name, name, n) == 0)
            return &s->task[i];
    return NULL;
}

const char *task_set_hint(const struct task_set *s, const char *name, size_t n, char out[96])
{
    const char *names[RULER_MAX_TASKS];
    char given[64];
    snprintf(given, sizeof given, "%.*s", (int)MIN(n, sizeof given - 1), name);
    for (size_t i = 0; i < s->n; i++)
        names[i] = s->task[i].name;
    return hint(nearest_word(given, names, s->n), out);
}

void task_put(const struct ruler_task *t, struct jw *w)
{
    jw_kstr(w, "kind", kinds[t->kind]);
    jw_ki64(w, "tokens_to_generate", t->gen_tokens);
    if (t->kind == K_NIAH || t->kind == K_VT)
        jw_kstr(w, "type_haystack", stacks[t->stack]);
    switch (t->kind) {
    case K_NIAH:
        jw_kstr(w, "type_needle_k", types[t->key]);
        jw_kstr(w, "type_needle_v", types[t->value]);
        jw_ki64(w, "num_needle_k", t->k);
        jw_ki64(w, "num_needle_v", t->v);
        jw_ki64(w, "num_needle_q", t->q);
        break;
    case K_VT:
        jw_ki64(w, "num_chains", t->chains);
        jw_ki64(w, "num_hops", t->hops);
        break;
    case K_CWE:
        jw_ki64(w, "freq_cw", t->freq_cw);
        jw_ki64(w, "freq_ucw", t->freq_ucw);
        jw_ki64(w, "num_cw", t->n_cw);
        break;
    case K_FWE:
        jw_kf64(w, "alpha", t->alpha);
        jw_ki64(w, "coded_wordlen", t->word_len);
        jw_ki64(w, "vocab_size", t->vocab);
        break;
    case K_QA:
        jw_kstr(w, "dataset", datasets[t->dataset]);
        break;
    }
}
