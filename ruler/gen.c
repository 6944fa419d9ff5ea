#include "ruler/gen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/jwrite.h"
#include "core/prog.h"
#include "core/prov.h"

const char *const ruler_noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

#define NIAH(stack_, key_, value_, k_, v_, q_)                                                                                             \
    .kind = K_NIAH, .gen_tokens = 128, .stack = stack_, .key = key_, .value = value_, .k = k_, .v = v_, .q = q_
const struct ruler_task ruler_tasks[] = {
    {.name = "niah_single_1", NIAH(S_NOISE, T_WORDS, T_NUMBERS, 1, 1, 1)},
    {.name = "niah_single_2", NIAH(S_ESSAY, T_WORDS, T_NUMBERS, 1, 1, 1)},
    {.name = "niah_single_3", NIAH(S_ESSAY, T_WORDS, T_UUIDS, 1, 1, 1)},
    {.name = "niah_multikey_1", NIAH(S_ESSAY, T_WORDS, T_NUMBERS, 4, 1, 1)},
    {.name = "niah_multikey_2", NIAH(S_NEEDLE, T_WORDS, T_NUMBERS, 1, 1, 1)},
    {.name = "niah_multikey_3", NIAH(S_NEEDLE, T_UUIDS, T_UUIDS, 1, 1, 1)},
    {.name = "niah_multivalue", NIAH(S_ESSAY, T_WORDS, T_NUMBERS, 1, 4, 1)},
    {.name = "niah_multiquery", NIAH(S_ESSAY, T_WORDS, T_NUMBERS, 4, 1, 4)},
    {.name = "vt", .kind = K_VT, .gen_tokens = 30, .stack = S_NOISE, .chains = 1, .hops = 4},
    {.name = "cwe", .kind = K_CWE, .gen_tokens = 120, .freq_cw = 30, .freq_ucw = 3, .n_cw = 10},
    {.name = "fwe", .kind = K_FWE, .gen_tokens = 50, .alpha = 2, .word_len = 6, .vocab = -1},
    {.name = "qa_1", .kind = K_QA, .gen_tokens = 32, .dataset = 0},
    {.name = "qa_2", .kind = K_QA, .gen_tokens = 32, .dataset = 1},
};
const size_t ruler_n_tasks = ARRAY_LEN(ruler_tasks);

const struct ruler_task *ruler_task_find(const char *name, size_t n)
{
    for (size_t i = 0; i < ruler_n_tasks; i++)
        if (strlen(ruler_tasks[i].name) == n && memcmp(ruler_tasks[i].name, name, n) == 0)
            return &ruler_tasks[i];
    return NULL;
}

const char *ruler_cut(enum ruler_kind kind)
{
    static const char *const cut[] = {" The speci", " Answer: A", " Answer: T", " Answer: A", " Answer:"};
    return cut[kind];
}

const int64_t *gen_perm(struct gen *g, size_t n, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(g->perm); i++)
        if (g->perm[i].v && g->perm[i].n == n && g->perm[i].seed == g->perm_seed)
            return g->perm[i].v;
    struct perm *p = &g->perm[g->perm_next++ % (int)ARRAY_LEN(g->perm)];
    struct mt19937 r;
    free(p->v);
    p->n = n;
    p->seed = g->perm_seed;
    p->v = malloc((n + 1) * sizeof *p->v);
    if (!p->v) {
        err_nomem(e, n * sizeof *p->v, "shuffling");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        p->v[i] = (int64_t)i;
    py_seed(&r, p->seed);
    py_shuffle(&r, p->v, n);
    return p->v;
}

int gen_count(struct gen *g, const char *p, size_t n, int64_t *out, struct err *e)
{
    double t = g->timing ? now_s() : 0;
    *out = g->counter.count(g->counter.ctx, p, n);
    if (g->timing) {
        g->timing->tokenise += now_s() - t;
        g->timing->tokens += MAX(*out, 0);
    }
    if (*out < 0)
        return ERR(e, E_INPUT, "%s: the tokenizer refused a text of %zu bytes", g->task->name, n);
    return 0;
}

bool ruler_in_essay(const struct ruler_task *t)
{
    return (t->kind == K_NIAH || t->kind == K_VT) && t->stack == S_ESSAY;
}

bool ruler_has_layout(const struct ruler_task *t)
{
    return ruler_in_essay(t) || t->kind == K_CWE || t->kind == K_FWE;
}

void gen_place(struct gen *g, int64_t index)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325), i = (uint64_t)(index - PLACE_SEARCH); /* FNV-1a of the name: the stream */
    if (!g->drawn || !ruler_has_layout(g->task))
        return;
    for (const char *z = g->task->name; *z; z++)
        h = (h ^ (unsigned char)*z) * UINT64_C(0x100000001b3);
    if (ruler_in_essay(g->task))
        g->essay_first = g->res->sentence[ctr_below((uint64_t)g->seed, h, i, g->res->n_sentences)];
    else
        g->perm_seed = ctr_below((uint64_t)g->seed, h, i, UINT64_MAX);
}

int gen_add(struct list *l, const struct str *s, struct err *e)
{
    TRY(str_ok(s, "a task's text", e));
    return list_add(l, str_c(s), s->len, e);
}

void gen_fill(struct str *out, const char *t, const struct fill *f, size_t n)
{
    while (*t) {
        const char *open = strchr(t, '{');
        if (!open) {
            str_puts(out, t);
            return;
        }
        str_add(out, t, (size_t)(open - t));
        const char *close = strchr(open, '}');
        size_t i = 0, len = close ? (size_t)(close - open - 1) : 0;
        while (close && i < n && !(strlen(f[i].name) == len && memcmp(f[i].name, open + 1, len) == 0))
            i++;
        if (!close || i == n) {
            str_putc(out, '{');
            t = open + 1;
            continue;
        }
        str_add(out, str_c(f[i].value), f[i].value->len);
        t = close + 1;
    }
}

/* Tokens of one try at a size; a swallowed exception counts as too long (compact) or ends the run as in the reference. */
static int probe(struct gen *g, gen_fn fn, int64_t size, int64_t *tokens, struct err *e)
{
    int rc = fn(g, size, e);
    if (rc < 0)
        return -1;
    if (rc == GEN_RETRY) {
        if (!g->compact && g->task->kind == K_VT)
            return ERR(e, E_CHECK,
                       "task '%s': seed %" PRId64 " draws a name twice in the size search, where the reference ends; use another seed",
                       g->task->name, g->seed);
        if (!g->compact)
            return ERR(e, E_CHECK,
                       "task '%s' at length %" PRId64 ": the size search asks for %" PRId64
                       " units, which its first sample cannot have; the reference ends here; use flavour "
                       "'compact'",
                       g->task->name, g->max_len, size);
        *tokens = INT64_MAX / 2;
        return 0;
    }
    const struct str *s = g->harness ? &g->counted : &g->text;
    return gen_count(g, str_c(s), s->len, tokens, e);
}

/* lm-evaluation-harness: upwards in steps until a prompt with its answer is too long, then one step back. A prompt that fits exactly ends
 * it one step up. */
static int harness_search(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t *size, struct err *e)
{
    int64_t n = r->inc, tokens = 0;
    while (tokens + r->extra < r->max) {
        TRY(probe(g, fn, n, &tokens, e));
        if (tokens + r->extra > r->max) {
            n -= r->inc;
            break;
        }
        if (r->words && n > r->limit) {
            n = r->limit;
            break;
        }
        n += r->inc;
        if (!r->words && r->limit && n > r->limit) {
            n = r->limit;
            break;
        }
    }
    *size = n;
    return 0;
}

static int64_t upper_bound(const struct size_rule *r, int64_t tokens)
{
    double max = (double)r->max, per = (double)tokens / (double)r->probe;
    int64_t upper;
    if (r->cwe_upper) {
        double mod = fmod(max, per), d = (max - mod) / per, f = floor(d);
        upper = (int64_t)(d - f > 0.5 ? f + 1 : f) * 2;
    } else
        upper = (int64_t)(max / per * 3);
    return MAX(upper, 2 * r->inc);
}

static int search(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t *size, struct err *e)
{
    int64_t tokens, lower = r->inc, upper, best = r->lower;
    if (g->harness)
        return harness_search(g, fn, r, size, e);
    if (g->compact) {
        lower = r->lower;
        upper = lower - 1;
        for (int64_t n = r->lower;; n = r->limit && 2 * n > r->limit ? r->limit : 2 * n) {
            TRY(probe(g, fn, n, &tokens, e));
            if (tokens + r->extra > r->max) {
                upper = n - 1;
                break;
            }
            best = n;
            lower = n + 1;
            if (n == r->limit || n > (INT64_C(1) << 40)) {
                upper = n;
                break;
            }
        }
    } else {
        TRY(probe(g, fn, r->probe, &tokens, e));
        upper = upper_bound(r, tokens);
        best = r->inc;
    }
    while (lower <= upper) {
        int64_t mid = (lower + upper) / 2;
        TRY(probe(g, fn, mid, &tokens, e));
        if (tokens + r->extra <= r->max) {
            best = mid;
            lower = mid + 1;
        } else
            upper = mid - 1;
    }
    *size = best;
    return 0;
}

/* drawn: a place of many tokens to the word would leave the samples of all others short, so the largest size of several places counts. */
enum { PLACES = 5 };
static int search_places(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t *size, struct err *e)
{
    int64_t best = 0;
    int n = g->drawn && ruler_in_essay(g->task) ? PLACES : 1;
    for (int i = 0; i < n; i++) {
        gen_place(g, PLACE_SEARCH - i);
        TRY(search(g, fn, r, size, e));
        best = MAX(best, *size);
    }
    *size = best;
    return 0;
}

int gen_search(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t *size, struct err *e)
{
    if (!g->timing)
        return search_places(g, fn, r, size, e);
    double other = g->timing->tokenise + g->splits->seconds, t = now_s();
    int rc = search_places(g, fn, r, size, e);
    g->timing->search += now_s() - t - (g->timing->tokenise + g->splits->seconds - other);
    return rc;
}

enum { STUCK_TRIES = 64 }; /* at the smallest size; the reference would go on for ever */
int gen_fit(struct gen *g, gen_fn fn, const struct size_rule *r, int64_t size, int64_t add, int64_t *tokens, struct err *e)
{
    int64_t used = size;
    int stuck = 0;
    g->smallest = 0;
    for (;;) {
        int rc = fn(g, used, e);
        if (rc < 0)
            return -1;
        if (rc == GEN_OK) {
            TRY(gen_count(g, str_c(&g->text), g->text.len, tokens, e));
            *tokens += add;
            if (*tokens <= r->max)
                return 0;
        }
        int64_t next = g->compact ? MAX(r->lower, used - MAX(1, used / 50)) : used > r->inc ? used - r->inc : used;
        if (next != used) {
            used = next;
            continue;
        }
        if (rc == GEN_OK)
            g->smallest = MAX(g->smallest, *tokens);
        if (++stuck < STUCK_TRIES)
            continue;
        if (!g->smallest)
            return ERR(e, E_CHECK, "task '%s' cannot be made at length %" PRId64 ": %" PRId64 " units are too few for it", g->task->name,
                       g->max_len, used);
        return ERR(e, E_CHECK,
                   "task '%s' cannot fit in length %" PRId64 ": its smallest prompt with the budget for the answer needs %" PRId64
                   " tokens; use a length of at least %" PRId64,
                   g->task->name, g->max_len, g->smallest, g->smallest + (g->max_len - r->max));
    }
}

/* Last place of z, or -1. */
static int64_t rfind(const struct str *s, const char *z)
{
    size_t n = strlen(z);
    for (size_t i = s->len + 1 >= n ? s->len + 1 - n : 0; i-- > 0;)
        if (memcmp(s->p + i, z, n) == 0)
            return (int64_t)i;
    return -1;
}

/* Start of the last character. */
static size_t last_char(const char *p, size_t n)
{
    while (n > 0 && ((unsigned char)p[n - 1] & 0xc0) == 0x80)
        n--;
    return n ? n - 1 : 0;
}

static void put_answers(struct gen *g, struct jw *w)
{
    jw_key(w, "outputs");
    jw_arr(w);
    for (size_t i = 0; i < g->answers.n; i++)
        jw_str(w, g->answers.v[i]);
    jw_end_arr(w);
}

/* A record of `tokens` tokens stands at the end of out. */
static int recorded(struct gen *g, int64_t tokens, struct str *out, struct err *e)
{
    g->least_length = g->records ? MIN(g->least_length, tokens) : tokens;
    g->most_length = MAX(g->most_length, tokens);
    g->sum_length += tokens;
    g->records++;
    if (interrupted())
        return ERR(e, E_INTERRUPTED, "interrupted while making task '%s'", g->task->name);
    if (!g->sink)
        return 0;
    int rc = g->sink(g->sink_ctx, str_c(out), out->len, e);
    str_clear(out);
    return rc;
}

/* lm-evaluation-harness' document. vt, cwe and fwe have their answer prefix in the text: it is cut off; cwe and fwe strip what is left. */
static int harness_record(struct gen *g, int64_t index, int64_t tokens, struct str *out, struct err *e)
{
    struct jw w;
    const char *p = str_c(&g->text), *q;
    size_t n = g->text.len, m;
    bool inside = g->task->kind == K_VT || g->task->kind == K_CWE || g->task->kind == K_FWE;
    if (inside) {
        int64_t cut = rfind(&g->text, ruler_cut(g->task->kind));
        if (cut < 0)
            BUG("%s: no answer prefix", g->task->name);
        q = p + cut;
        m = n - (size_t)cut;
        n = (size_t)cut;
        py_strip(&q, &m);
        if (g->task->kind != K_VT)
            py_strip(&p, &n);
    } else {
        q = str_c(&g->gen_prefix);
        m = g->gen_prefix.len;
    }
    jw_init(&w, out, false);
    w.ascii = true;
    jw_obj(&w);
    jw_ki64(&w, "index", index);
    jw_key(&w, "input");
    jw_strn(&w, p, n);
    if (g->task->kind == K_CWE) {
        jw_key(&w, "input_example");
        jw_strn(&w, str_c(&g->example), g->example.len);
    }
    put_answers(g, &w);
    jw_ki64(&w, "length", tokens);
    jw_ki64(&w, "max_length", g->max_len);
    jw_key(&w, "gen_prefix");
    jw_strn(&w, q, m);
    jw_end_obj(&w);
    str_putc(out, '\n');
    TRY(jw_ok(&w, g->task->name, e));
    return recorded(g, tokens, out, e);
}

int gen_record(struct gen *g, int64_t index, int64_t tokens, struct str *out, struct err *e)
{
    struct jw w;
    TRY(str_ok(&g->text, "a prompt", e));
    if (g->harness)
        return harness_record(g, index, tokens, out, e);
    if (g->flat && g->task->kind != K_VT) {
        str_clear(&g->tmp);
        flatten(&g->tmp, str_c(&g->text), g->text.len);
        str_clear(&g->text);
        str_add(&g->text, str_c(&g->tmp), g->tmp.len);
    }
    int64_t cut = rfind(&g->text, ruler_cut(g->task->kind)), at_tokens = 0;
    size_t p = cut >= 0 ? (size_t)cut : last_char(str_c(&g->text), g->text.len);
    if (g->task->kind == K_NIAH) {
        const char *a = g->answers.v[0];
        int64_t at = find_bytes(g->text.p, p, a, strlen(a));
        size_t head = at >= 0 ? (size_t)at : last_char(g->text.p, p);
        index = at >= 0 ? (int64_t)utf8_count(g->text.p, head) : -1;
        TRY(gen_count(g, g->text.p, head, &at_tokens, e));
    }
    jw_init(&w, out, false);
    w.ascii = true;
    jw_obj(&w);
    jw_ki64(&w, "index", index);
    jw_key(&w, "input");
    jw_strn(&w, g->text.p, p);
    put_answers(g, &w);
    jw_ki64(&w, "length", tokens);
    jw_ki64(&w, "length_w_model_temp", tokens);
    jw_key(&w, "answer_prefix");
    jw_strn(&w, g->text.p + p, g->text.len - p);
    if (g->task->kind == K_NIAH)
        jw_ki64(&w, "token_position_answer", at_tokens);
    jw_end_obj(&w);
    str_putc(out, '\n');
    TRY(jw_ok(&w, g->task->name, e));
    return recorded(g, tokens, out, e);
}

static void gen_free(struct gen *g)
{
    struct list *l[] = {&g->answers, &g->needles, &g->keys, &g->values, &g->names, &g->vocab};
    struct str *s[] = {&g->text, &g->tmp, &g->tmp2, &g->icl, &g->counted, &g->gen_prefix, &g->example};
    for (size_t i = 0; i < ARRAY_LEN(l); i++)
        list_free(l[i]);
    for (size_t i = 0; i < ARRAY_LEN(s); i++)
        str_free(s[i]);
    for (size_t i = 0; i < ARRAY_LEN(g->perm); i++) {
        free(g->perm[i].v);
        g->perm[i].v = NULL;
    }
}

int gen_task(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    int rc = 0;
    struct splits own = {0};
    g->perm_seed = (uint64_t)g->seed;
    if (!g->splits)
        g->splits = &own;
    if (!g->harness) {
        py_seed(&g->py, (uint64_t)g->seed);
        np_seed(&g->np, g->np_given ? g->np_start : (uint32_t)g->seed);
    }
    if (!g->before)
        g->before = g->after = "";
    switch (g->task->kind) {
    case K_NIAH:
        rc = niah_make(g, samples, out, e);
        break;
    case K_VT:
        rc = vt_make(g, samples, out, e);
        break;
    case K_CWE:
        rc = cwe_make(g, samples, out, e);
        break;
    case K_FWE:
        rc = fwe_make(g, samples, out, e);
        break;
    case K_QA:
        rc = qa_make(g, samples, out, e);
        break;
    }
    gen_free(g);
    splits_free(&own);
    if (g->splits == &own)
        g->splits = NULL;
    return rc;
}
