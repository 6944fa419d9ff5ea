/* Requests as text: prompts, few-shot examples, chat templates [lmeval.md 1]. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "lmeval/lmeval.h"

/* ---- Python's white space (str.isspace) ---- */

static bool py_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t py_rstrip(const char *s, size_t n)
{
    while (n) {
        size_t at = n - 1;
        int len;
        bool bad = false;
        while (at && ((unsigned char)s[at] & 0xc0) == 0x80 && n - at < 4)
            at--;
        if (!py_space(utf8_next(s + at, n - at, &len, &bad)) || bad || at + (size_t)len != n)
            break;
        n = at;
    }
    return n;
}

size_t py_lspaces(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        int len;
        bool bad = false;
        if (!py_space(utf8_next(s + at, n - at, &len, &bad)) || bad)
            break;
        at += (size_t)len;
    }
    return at;
}

static void add_stripped(struct str *out, const char *s)
{
    size_t n = py_rstrip(s, strlen(s)), from = py_lspaces(s, n);
    str_add(out, s + from, n - from);
}

/* ---- parts of a prompt ---- */

void lme_description(const struct lme_task *t, struct str *out)
{
    if (t->kind != LME_MMLU)
        return;
    str_puts(out, "The following are multiple choice questions (with answers) about ");
    for (const char *p = t->set; *p; p++)
        str_putc(out, *p == '_' ? ' ' : *p);
    str_puts(out, ".\n\n");
}

/* WinoGrande: the sentence up to the blank, with option i. */
static void add_filled(struct str *out, const struct lme_doc *d, int i)
{
    str_add(out, d->question, (size_t)(strchr(d->question, '_') - d->question));
    str_puts(out, d->choice[i]);
}

static void add_question(struct str *out, const struct lme_task *t, const struct lme_doc *d, int filled)
{
    switch (t->kind) {
    case LME_MMLU:
        add_stripped(out, d->question);
        for (int i = 0; i < 4; i++) {
            const char head[] = {'\n', (char)('A' + i), '.', ' '};
            str_add(out, head, sizeof head);
            str_puts(out, d->choice[i]);
        }
        str_puts(out, "\nAnswer:");
        break;
    case LME_ARC:
    case LME_PIQA:
        str_puts(out, "Question: ");
        str_puts(out, d->question);
        str_puts(out, "\nAnswer:");
        break;
    case LME_WINOGRANDE:
        add_filled(out, d, filled);
        break;
    }
}

/* The text after the delimiter: choice i; WinoGrande: what follows the blank. */
static void add_answer(struct str *out, const struct lme_task *t, const struct lme_doc *d, int i)
{
    if (t->kind == LME_MMLU)
        str_putc(out, (char)('A' + i));
    else if (t->kind == LME_WINOGRANDE)
        add_stripped(out, strchr(d->question, '_') + 1);
    else
        str_puts(out, d->choice[i]);
}

void lme_choice_text(const struct lme_task *t, const struct lme_doc *d, int i, struct str *out)
{
    if (t->kind == LME_WINOGRANDE)
        add_filled(out, d, i);
    else
        add_answer(out, t, d, i);
}

void lme_target_text(const struct lme_task *t, const struct lme_doc *d, struct str *out)
{
    if (t->kind == LME_WINOGRANDE)
        add_answer(out, t, d, 0);
    else
        str_printf(out, "%d", d->gold);
}

/* System instruction and description, an empty line between them unless there is white space at the seam already. */
static void add_system(struct str *out, const struct lme_task *t, const char *system)
{
    struct str d = STR_INIT;
    lme_description(t, &d);
    size_t n = system ? strlen(system) : 0;
    str_puts(out, system ? system : "");
    if (n && d.len && py_rstrip(system, n) == n && !py_lspaces(str_c(&d), d.len))
        str_puts(out, "\n\n");
    str_add(out, str_c(&d), d.len);
    str_free(&d);
}

/* ---- one document ---- */

struct maker {
    const struct lme_task *t;
    const struct lme_docs *pool;
    const struct lme_prompts *p;
    const struct lme_doc **shot; /* [shots] of the document */
    int64_t *draw;               /* [shots + 1] */
    int64_t *rest;               /* pool without the evaluated document */
    struct mt19937 rng;
    struct str system;
    struct lme_case c;
};

static void plain_context(const struct maker *k, const struct lme_doc *d, int filled, struct str *out)
{
    str_add(out, str_c(&k->system), k->system.len);
    for (int i = 0; i < k->p->shots; i++) {
        add_question(out, k->t, k->shot[i], k->shot[i]->gold);
        str_putc(out, ' ');
        add_answer(out, k->t, k->shot[i], k->shot[i]->gold);
        str_puts(out, "\n\n");
    }
    add_question(out, k->t, d, filled);
}

static int chat_context(const struct maker *k, const struct lme_doc *d, int filled, struct str *out, struct err *e)
{
    int n = 0, shots = k->p->multiturn ? k->p->shots : 0;
    struct chat_msg *msg = calloc((size_t)shots * 2 + 2, sizeof *msg);
    struct str *text = calloc((size_t)shots * 2 + 2, sizeof *text);
    int rc = msg && text ? 0 : err_nomem(e, (size_t)shots * 64, "a chat");
    for (int i = 0; rc == 0 && i < shots; i++) {
        add_question(&text[n++], k->t, k->shot[i], k->shot[i]->gold);
        add_answer(&text[n++], k->t, k->shot[i], k->shot[i]->gold);
    }
    for (int i = 0; rc == 0 && !k->p->multiturn && i < k->p->shots; i++) {
        add_question(&text[n], k->t, k->shot[i], k->shot[i]->gold);
        str_putc(&text[n], ' ');
        add_answer(&text[n], k->t, k->shot[i], k->shot[i]->gold);
        str_puts(&text[n], "\n\n");
    }
    if (rc == 0) {
        bool sys = k->system.len > 0;
        add_question(&text[n++], k->t, d, filled);
        if (sys)
            msg[0] = (struct chat_msg){"system", str_c(&k->system)};
        for (int i = 0; i < n && rc == 0; i++) {
            msg[i + sys] = (struct chat_msg){i & 1 ? "assistant" : "user", str_c(&text[i])};
            rc = str_ok(&text[i], "a chat", e);
        }
        rc = rc ? rc : chat_render(k->p->template, msg, (size_t)(n + sys), true, out, e);
    }
    for (int i = 0; text && i < n; i++)
        str_free(&text[i]);
    free(text);
    free(msg);
    return rc;
}

static bool same_doc(const struct lme_doc *a, const struct lme_doc *b)
{
    return a->gold == b->gold && !strcmp(a->question, b->question) && !strcmp(a->choice[0], b->choice[0]) &&
           !strcmp(a->choice[1], b->choice[1]);
}

/* Fewer than wanted are left: the sampler draws again from the pool without the evaluated document. */
static int redraw(struct maker *k, const struct lme_doc *d, struct err *e)
{
    int64_t n = 0;
    if (!k->rest)
        k->rest = malloc((size_t)k->pool->n * sizeof *k->rest);
    if (!k->rest)
        return err_nomem(e, (size_t)k->pool->n * 8, "few-shot pool");
    for (int64_t i = 0; i < k->pool->n; i++)
        if (!same_doc(&k->pool->doc[i], d))
            k->rest[n++] = i;
    if (n < k->p->shots)
        return ERR(e, E_USAGE, "task '%s': %d examples wanted, '%s' has %" PRId64 " other documents", k->t->name, k->p->shots,
                   k->pool->path, n);
    if (py_sample(&k->rng, n, k->p->shots, k->draw) != 0)
        return err_nomem(e, (size_t)n, "few-shot examples");
    for (int i = 0; i < k->p->shots; i++)
        k->shot[i] = &k->pool->doc[k->rest[k->draw[i]]];
    return 0;
}

/* The examples of the next document: draws, in document order, whether the document is evaluated or not. */
static int next_shots(struct maker *k, const struct lme_doc *d, struct err *e)
{
    int shots = k->p->shots, kept = 0;
    if (!shots)
        return 0;
    bool drop = k->t->kind == LME_PIQA || k->t->kind == LME_WINOGRANDE;
    if (k->t->kind == LME_MMLU) {
        for (int i = 0; i < shots; i++)
            k->shot[i] = &k->pool->doc[i];
        return 0;
    }
    if (py_sample(&k->rng, k->pool->n, shots + drop, k->draw) != 0)
        return err_nomem(e, (size_t)k->pool->n, "few-shot examples");
    for (int i = 0; i < shots + drop && kept < shots; i++) {
        const struct lme_doc *x = &k->pool->doc[k->draw[i]];
        if (!drop || !same_doc(x, d))
            k->shot[kept++] = x;
    }
    return kept < shots ? redraw(k, d, e) : 0;
}

static int make_case(struct maker *k, const struct lme_doc *d, int64_t id, struct err *e)
{
    struct lme_case *c = &k->c;
    const char *delim = k->p->chat ? "" : " ";
    c->id = id;
    c->doc = d;
    c->n_choice = d->n_choice;
    c->n_ctx = k->t->kind == LME_WINOGRANDE ? 2 : 1;
    c->n_req = c->n_choice * (k->p->mutual_info ? 2 : 1);
    for (int i = 0; i < c->n_ctx; i++) {
        str_clear(&c->ctx[i]);
        if (k->p->chat)
            TRY(chat_context(k, d, i, &c->ctx[i], e));
        else
            plain_context(k, d, i, &c->ctx[i]);
        TRY(str_ok(&c->ctx[i], "a prompt", e));
    }
    for (int r = 0; r < c->n_req; r++) {
        str_clear(&c->cont[r]);
        str_puts(&c->cont[r], delim);
        if (r < c->n_choice)
            add_answer(&c->cont[r], k->t, d, r);
        else
            lme_choice_text(k->t, d, r - c->n_choice, &c->cont[r]);
        TRY(str_ok(&c->cont[r], "a prompt", e));
    }
    return 0;
}

static int64_t limit_of(const struct lme_prompts *p, int64_t n)
{
    if (p->limit < 0)
        return n;
    int64_t k = p->limit < 1 ? (int64_t)ceil((double)n * p->limit) : p->limit >= (double)n ? n : (int64_t)p->limit;
    return MIN(k, n);
}

static bool selected(const struct lme_prompts *p, int64_t id)
{
    for (size_t i = 0; i < p->n_samples; i++)
        if (id >= p->samples[i].lo && id <= p->samples[i].hi)
            return true;
    return !p->samples;
}

int64_t lme_selected(const struct lme_prompts *p, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < limit_of(p, n); i++)
        count += selected(p, i);
    return count;
}

static int check_pool(const struct lme_task *t, const struct lme_docs *pool, const struct lme_prompts *p, struct err *e)
{
    int64_t need = p->shots + (t->kind == LME_PIQA || t->kind == LME_WINOGRANDE);
    if (p->shots && (!pool || pool->n < need))
        return ERR(e, E_USAGE, "task '%s': %d examples need %" PRId64 " documents to draw from; '%s' has %" PRId64, t->name, p->shots, need,
                   pool ? pool->path : "", pool ? pool->n : 0);
    for (int64_t i = 0; p->shots && i < pool->n; i++)
        if (pool->doc[i].gold < 0)
            return ERR(e, E_INPUT, "%s:%" PRId64 ": the row has no label", pool->path, pool->doc[i].line);
    return 0;
}

int lme_each(const struct lme_task *t, const struct lme_docs *docs, const struct lme_docs *pool, const struct lme_prompts *p,
             int (*fn)(void *ctx, const struct lme_case *c, struct err *e), void *ctx, struct err *e)
{
    TRY(check_pool(t, pool, p, e));
    for (size_t i = 0; i < p->n_samples; i++)
        if (p->samples[i].hi >= docs->n)
            return ERR(e, E_USAGE, "--samples: document %" PRId64 " of task '%s', which has %" PRId64 " (from 0)", p->samples[i].hi,
                       t->name, docs->n);
    struct maker k = {.t = t,
                      .pool = pool,
                      .p = p,
                      .shot = calloc((size_t)p->shots + 1, sizeof *k.shot),
                      .draw = calloc((size_t)p->shots + 2, sizeof *k.draw)};
    int rc = k.shot && k.draw ? 0 : err_nomem(e, (size_t)p->shots * 16, "few-shot examples");
    py_seed(&k.rng, p->seed);
    add_system(&k.system, t, p->system);
    int64_t n = limit_of(p, docs->n);
    for (int64_t i = 0; rc == 0 && i < n; i++) {
        rc = next_shots(&k, &docs->doc[i], e);
        if (rc == 0 && selected(p, i) && docs->doc[i].gold < 0)
            rc = ERR(e, E_INPUT, "%s:%" PRId64 ": the row has no label", docs->path, docs->doc[i].line);
        if (rc == 0 && selected(p, i))
            rc = make_case(&k, &docs->doc[i], i, e) || fn(ctx, &k.c, e);
    }
    for (size_t i = 0; i < ARRAY_LEN(k.c.ctx); i++)
        str_free(&k.c.ctx[i]);
    for (size_t i = 0; i < ARRAY_LEN(k.c.cont); i++)
        str_free(&k.c.cont[i]);
    str_free(&k.system);
    free(k.shot);
    free(k.draw);
    free(k.rest);
    return rc ? -1 : 0;
}
