/* Variable tracking (spec section 5): a few-shot example made first in the same random streams, then the samples. One chain of four hops.
 */
#include <stdlib.h>
#include <string.h>

#include "ruler/gen.h"

static const char vt_body[] =
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find all variables "
    "that are assigned the value {query} in the text above.";
static const char vt_prefix[] =
    " Answer: According to the chain(s) of variable assignment in the text above, {num_v} variables are assigned the value "
    "{query}, they are: ";
/* the spelling of the harness */
static const char vt_prefix_harness[] =
    " Answer: According to the chain(s) of variable assignment in the text above, {num_v} variables are assgined the "
    "value {query}, they are: ";
static const char vt_start[] = "Memorize and track t";
enum { HOPS = 4, NAMES = HOPS + 1, ICL_TOKENS = 500 };

static int draw_name(struct gen *g, int64_t len, struct str *out, struct err *e)
{
    int64_t c[64];
    if (len > (int64_t)ARRAY_LEN(c))
        return ERR(e, E_CHECK, "vt: a name of %" PRId64 " letters", len);
    py_choices(&g->py, 26, len, c);
    for (int64_t i = 0; i < len; i++)
        str_putc(out, (char)('A' + c[i]));
    return 0;
}

static size_t distinct(const struct list *l)
{
    size_t k = 0;
    for (size_t i = 0; i < l->n; i++) {
        size_t j = 0;
        while (j < i && strcmp(l->v[i], l->v[j]) != 0)
            j++;
        k += j == i;
    }
    return k;
}

/* Names until NAMES of them differ; duplicates stay in the list. */
static int draw_names(struct gen *g, struct err *e)
{
    list_clear(&g->names);
    while (g->names.n < NAMES || distinct(&g->names) < NAMES) {
        str_clear(&g->tmp);
        TRY(draw_name(g, g->in_icl ? 3 : 5, &g->tmp, e));
        TRY(gen_add(&g->names, &g->tmp, e));
    }
    return 0;
}

/* Chain line i of a prompt. */
static void chain_line(struct gen *g, int i, const struct str *value, struct str *out)
{
    if (i)
        str_printf(out, "VAR %s = VAR %s ", g->names.v[i], g->names.v[i - 1]);
    else
        str_printf(out, "VAR %s = %s", g->names.v[0], str_c(value));
}

static int draw_places(struct gen *g, int64_t n, int64_t pos[NAMES], struct err *e)
{
    if (n < NAMES)
        return GEN_RETRY;
    if (py_sample(&g->py, n, NAMES, pos))
        return err_nomem(e, 1024, "drawing places");
    for (int i = 0; i < NAMES; i++) {
        for (int j = i; j > 0 && pos[j] < pos[j - 1]; j--) {
            int64_t t = pos[j];
            pos[j] = pos[j - 1];
            pos[j - 1] = t;
        }
    }
    return 0;
}

/*
 * The harness' haystack: the noise line with its newline n times; when those are no more than the chain has lines, their sentences one by
 * one (six pieces a line, the last one the newline). Pieces are joined by a space.
 */
static int harness_context(struct gen *g, int64_t n, const struct str *value, struct str *ctx, struct err *e)
{
    static const char *const sentence[] = {"The grass is green.", " The sky is blue.",      " The sun is yellow.",
                                           " Here we go.",        " There and back again.", "\n"};
    int64_t parts = (int64_t)ARRAY_LEN(sentence), pieces = n > NAMES ? n : n * parts, pos[NAMES];
    int rc = draw_places(g, pieces, pos, e), next = 0;
    for (int64_t i = 0; !rc && i < pieces; i++) {
        if (i)
            str_putc(ctx, ' ');
        if (next < NAMES && pos[next] == i) {
            chain_line(g, next++, value, ctx);
            str_putc(ctx, ' ');
        }
        if (n > NAMES)
            str_printf(ctx, "%s\n", ruler_noise);
        else
            str_puts(ctx, sentence[i % parts]);
    }
    str_replace(ctx, ". \n", ".\n");
    return rc;
}

static int context(struct gen *g, int64_t n, const struct str *value, struct str *ctx, struct err *e)
{
    int64_t pos[NAMES];
    int rc = draw_places(g, n, pos, e), next = 0;
    for (int64_t i = 0; !rc && i < n; i++) {
        if (i)
            str_putc(ctx, '\n');
        if (next < NAMES && pos[next] == i) {
            chain_line(g, next++, value, ctx);
            str_putc(ctx, '\n');
        }
        str_puts(ctx, ruler_noise);
    }
    return rc;
}

static int vt_text(struct gen *g, int64_t n, struct err *e)
{
    struct str ctx = STR_INIT, query = STR_INIT, num = STR_INIT, templ = STR_INIT;
    bool drawn = !g->in_icl || g->harness;
    TRY(draw_names(g, e));
    str_printf(&query, "%" PRId64, drawn ? np_randint(&g->np, 10000, 99999) : 12345);
    int rc = 0;
    if (g->names.n != NAMES) { /* the rest of the list makes a short chain: one more value is drawn, then the reference fails */
        if (drawn)
            np_randint(&g->np, 10000, 99999);
        rc = GEN_RETRY;
    }
    if (!rc)
        rc = g->harness ? harness_context(g, n, &query, &ctx, e) : context(g, n, &query, &ctx, e);
    if (!rc) {
        str_printf(&num, "%d", NAMES);
        str_printf(&templ, "%s%s%s%s", g->in_icl ? "" : g->before, vt_body, g->in_icl ? "" : g->after,
                   g->harness ? vt_prefix_harness : vt_prefix);
        str_clear(&g->text);
        struct fill f[] = {{"context", &ctx}, {"query", &query}, {"num_v", &num}};
        gen_fill(&g->text, str_c(&templ), f, ARRAY_LEN(f));
        if (g->harness) {
            str_clear(&g->counted);
            str_printf(&g->counted, "%s ", str_c(&g->text));
            py_repr_list(&g->counted, (const char *const *)g->names.v, NAMES);
        }
        rc = str_ok(&g->text, "a prompt", e);
    }
    str_free(&ctx);
    str_free(&query);
    str_free(&num);
    str_free(&templ);
    return rc;
}

/* Puts the few-shot example, under fresh names and (not in the harness) a fresh value, before the task proper. */
static int insert_icl(struct gen *g, struct err *e)
{
    struct str icl = STR_INIT, name = STR_INIT, out = STR_INIT, value = STR_INIT;
    int rc = 0;
    str_puts(&icl, str_c(&g->icl));
    for (int i = 0; !rc && i < NAMES; i++) {
        str_clear(&name);
        rc = draw_name(g, (int64_t)strlen(g->vocab.v[i]), &name, e); /* vocab: the example's answers */
        if (!rc)
            str_replace(&icl, g->vocab.v[i], str_c(&name));
        if (!rc)
            rc = str_ok(&icl, "the example", e);
    }
    if (!rc) {
        if (!g->harness) {
            str_printf(&value, "%" PRId64, np_randint(&g->np, 10000, 99999));
            str_replace(&icl, "12345", str_c(&value));
        }
        int64_t at = find_bytes(str_c(&g->text), g->text.len, vt_start, strlen(vt_start));
        str_add(&out, g->text.p, (size_t)at);
        str_add(&out, str_c(&icl), icl.len);
        str_puts(&out, g->harness ? "\n\n" : "\n");
        str_puts(&out, g->text.p + at);
        str_free(&g->text);
        g->text = out;
        rc = str_ok(&g->text, "a prompt", e);
    }
    str_free(&icl);
    str_free(&name);
    str_free(&value);
    return rc;
}

/* Step 5's text: with the few-shot example under fresh names and value, before the task proper; flattened where asked for. */
static int vt_full(struct gen *g, int64_t n, struct err *e)
{
    int rc = vt_text(g, n, e);
    if (rc)
        return rc;
    if (!g->in_icl)
        rc = insert_icl(g, e);
    if (!rc && g->flat) {
        str_clear(&g->tmp);
        flatten(&g->tmp, str_c(&g->text), g->text.len);
        str_clear(&g->text);
        str_add(&g->text, str_c(&g->tmp), g->tmp.len);
    }
    return rc ? rc : str_ok(&g->text, "a prompt", e);
}

static int make_icl(struct gen *g, struct err *e)
{
    struct size_rule r = {.inc = 5, .lower = NAMES, .probe = 5, .max = ICL_TOKENS, .extra = g->harness ? g->task->gen_tokens : 0};
    int64_t size, tokens;
    g->in_icl = true;
    TRY(gen_search(g, vt_text, &r, &size, e));
    TRY(gen_fit(g, g->harness ? vt_text : vt_full, &r, size, r.extra, &tokens, e));
    g->in_icl = false;
    str_clear(&g->icl);
    str_printf(&g->icl, "%s ", str_c(&g->text));
    for (size_t i = 0; i < g->names.n; i++) {
        str_printf(&g->icl, "%s%s", i ? " " : "", g->names.v[i]);
        TRY(list_add(&g->vocab, g->names.v[i], strlen(g->names.v[i]), e));
    }
    str_puts(&g->icl, g->harness ? "\n\n" : "\n");
    TRY(str_ok(&g->icl, "the example", e));
    return gen_count(g, g->icl.p, g->icl.len, &g->icl_tokens, e);
}

int vt_make(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    TRY(make_icl(g, e));
    int64_t inc = g->max_len < 4096 && !g->harness ? 5 : 10, size, tokens;
    struct size_rule r = {.inc = inc, .lower = NAMES, .probe = inc, .max = g->max_len, .extra = g->task->gen_tokens + g->icl_tokens};
    TRY(gen_search(g, vt_text, &r, &size, e));
    for (int64_t i = 0; i < samples; i++) {
        if (g->harness) { /* lengths are those of the text without the example, whose tokens are added */
            TRY(gen_fit(g, vt_text, &r, size, r.extra, &tokens, e));
            TRY(insert_icl(g, e));
        } else
            TRY(gen_fit(g, vt_full, &r, size, g->task->gen_tokens, &tokens, e));
        list_clear(&g->answers);
        for (size_t k = 0; k < g->names.n; k++)
            TRY(list_add(&g->answers, g->names.v[k], strlen(g->names.v[k]), e));
        TRY(gen_record(g, i, tokens, out, e));
    }
    return 0;
}
