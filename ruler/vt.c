/* Variable tracking (spec section 5): a few-shot example made first in the same random streams, then the samples. */
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
enum { ICL_TOKENS = 500 };

/* Names of a chain. */
static int64_t links(const struct gen *g)
{
    return g->task->hops + 1;
}

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

static int64_t distinct(const struct list *l)
{
    int64_t k = 0;
    for (size_t i = 0; i < l->n; i++) {
        size_t j = 0;
        while (j < i && strcmp(l->v[i], l->v[j]) != 0)
            j++;
        k += j == i;
    }
    return k;
}

/* Names until as many as the chains need differ; duplicates stay in the list. */
static int draw_names(struct gen *g, struct err *e)
{
    int64_t need = links(g) * g->task->chains;
    list_clear(&g->names);
    while ((int64_t)g->names.n < need || distinct(&g->names) < need) {
        str_clear(&g->tmp);
        TRY(draw_name(g, g->in_icl ? 3 : 5, &g->tmp, e));
        TRY(gen_add(&g->names, &g->tmp, e));
    }
    return 0;
}

/*
 * The lines of all chains into g->needles, the chains' values into g->values. A duplicate name has made the list of names longer: its end
 * is a chain that is too short, where the reference draws one more value and fails (or, when it comes out even, one chain more).
 */
static int draw_chains(struct gen *g, struct err *e)
{
    bool drawn = !g->in_icl || g->harness;
    int64_t l = links(g), n = (int64_t)g->names.n;
    list_clear(&g->needles);
    list_clear(&g->values);
    for (int64_t i = 0; i < n; i += l) {
        str_clear(&g->tmp);
        str_printf(&g->tmp, "%" PRId64, drawn ? np_randint(&g->np, 10000, 99999) : 12345);
        TRY(gen_add(&g->values, &g->tmp, e));
        if (i + l > n)
            return GEN_RETRY;
        for (int64_t j = 0; j < l; j++) {
            str_clear(&g->tmp);
            if (j)
                str_printf(&g->tmp, "VAR %s = VAR %s ", g->names.v[i + j], g->names.v[i + j - 1]);
            else
                str_printf(&g->tmp, "VAR %s = %s", g->names.v[i], g->values.v[g->values.n - 1]);
            TRY(gen_add(&g->needles, &g->tmp, e));
        }
    }
    return 0;
}

static void sort_places(int64_t *v, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        for (int64_t j = i; j > 0 && v[j] < v[j - 1]; j--) {
            int64_t t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    }
}

/* n pieces of noise with the chains' lines between them, chain after chain: v[i] >= 0 is a line, -1 - k piece k. *len: of them all. */
static int place_lines(struct gen *g, int64_t n, int64_t *v, int64_t *len, struct err *e)
{
    int64_t l = links(g), pos[MAX_REFS];
    *len = n;
    for (int64_t i = 0; i < n; i++)
        v[i] = -1 - i;
    for (int64_t first = 0; first < (int64_t)g->needles.n; first += l) {
        if (*len < l)
            return GEN_RETRY;
        if (py_sample(&g->py, *len, l, pos))
            return err_nomem(e, 1024, "drawing places");
        sort_places(pos, l);
        int64_t from = *len - 1, to = *len + l - 1;
        for (int64_t j = l - 1; j >= 0; j--) {
            while (from >= pos[j])
                v[to--] = v[from--];
            v[to--] = first + j;
        }
        *len += l;
    }
    return 0;
}

/*
 * Noise lines. The harness' have their newline, and are joined by a space; when they are no more than a chain has lines, their sentences
 * one by one (six pieces a line, the last one the newline).
 */
static int in_noise(struct gen *g, int64_t n, struct str *ctx, struct err *e)
{
    static const char *const sentence[] = {"The grass is green.", " The sky is blue.",      " The sun is yellow.",
                                           " Here we go.",        " There and back again.", "\n"};
    bool split = g->harness && n <= links(g);
    int64_t pieces = split ? n * (int64_t)ARRAY_LEN(sentence) : n, len;
    size_t room = (size_t)pieces + g->needles.n + 1;
    int64_t *v = malloc(room * sizeof *v);
    if (!v)
        return err_nomem(e, room * sizeof *v, "a haystack");
    int rc = place_lines(g, pieces, v, &len, e);
    for (int64_t i = 0; !rc && i < len; i++) {
        if (i)
            str_putc(ctx, g->harness ? ' ' : '\n');
        if (v[i] >= 0)
            str_puts(ctx, g->needles.v[v[i]]);
        else
            str_puts(ctx, split ? sentence[(-1 - v[i]) % (int64_t)ARRAY_LEN(sentence)] : ruler_noise);
        if (v[i] < 0 && g->harness && !split)
            str_putc(ctx, '\n');
    }
    if (g->harness)
        str_replace(ctx, ". \n", ".\n");
    free(v);
    return rc;
}

/* The chains' lines in an order that keeps each chain's own: of the chains, the one with the lowest random number goes on. */
static int mix_lines(struct gen *g, struct list *out, struct err *e)
{
    double turn[MAX_REFS];
    int64_t next[MAX_REFS] = {0}, l = links(g), chains = (int64_t)g->needles.n / l;
    for (int64_t c = 0; c < chains; c++)
        turn[c] = py_random(&g->py);
    for (size_t i = 0; i < g->needles.n; i++) {
        int64_t low = -1;
        for (int64_t c = 0; c < chains; c++)
            if (next[c] < l && (low < 0 || turn[c] < turn[low]))
                low = c;
        const char *p = g->needles.v[low * l + next[low]];
        size_t n = strlen(p);
        py_strip(&p, &n);
        str_clear(&g->tmp);
        str_printf(&g->tmp, "%.*s.", (int)n, p);
        TRY(gen_add(out, &g->tmp, e));
        if (++next[low] < l)
            turn[low] = py_random(&g->py);
    }
    return 0;
}

static int in_essay(struct gen *g, int64_t n, struct str *ctx, struct err *e)
{
    struct list lines = {0};
    int rc = mix_lines(g, &lines, e);
    rc = rc ? rc : gen_essay(g, MIN(n, (int64_t)g->res->n_words), &lines, ctx, e);
    list_free(&lines);
    return rc;
}

static int vt_text(struct gen *g, int64_t n, struct err *e)
{
    struct str ctx = STR_INIT, query = STR_INIT, num = STR_INIT, templ = STR_INIT;
    TRY(draw_names(g, e));
    int rc = draw_chains(g, e);
    if (!rc)
        rc = g->task->stack == S_ESSAY ? in_essay(g, n, &ctx, e) : in_noise(g, n, &ctx, e);
    if (!rc) {
        str_puts(&query, g->values.v[0]);
        str_printf(&num, "%d", g->task->hops + 1);
        str_printf(&templ, "%s%s%s%s", g->in_icl ? "" : g->before, vt_body, g->in_icl ? "" : g->after,
                   g->harness ? vt_prefix_harness : vt_prefix);
        str_clear(&g->text);
        struct fill f[] = {{"context", &ctx}, {"query", &query}, {"num_v", &num}};
        gen_fill(&g->text, str_c(&templ), f, ARRAY_LEN(f));
        if (g->harness) {
            str_clear(&g->counted);
            str_printf(&g->counted, "%s ", str_c(&g->text));
            py_repr_list(&g->counted, (const char *const *)g->names.v, (size_t)links(g));
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
    for (int64_t i = 0; !rc && i < links(g); i++) {
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

static int64_t smallest(const struct gen *g)
{
    return g->task->stack == S_ESSAY ? 1 : links(g);
}

static int make_icl(struct gen *g, struct err *e)
{
    int64_t inc = g->task->stack == S_ESSAY ? 50 : 5, size, tokens;
    struct size_rule r = {.inc = inc, .lower = smallest(g), .probe = inc, .max = ICL_TOKENS, .extra = g->harness ? g->task->gen_tokens : 0};
    g->in_icl = true;
    TRY(gen_search(g, vt_text, &r, &size, e));
    if (gen_fit(g, g->harness ? vt_text : vt_full, &r, size, r.extra, &tokens, e)) {
        if (e->code != E_CHECK)
            return -1;
        return ERR(e, E_CHECK,
                   "task '%s' cannot be made: its example of %d chains of %d hops needs %" PRId64 " tokens and has %d; ask for fewer",
                   g->task->name, g->task->chains, g->task->hops, g->smallest, ICL_TOKENS);
    }
    g->in_icl = false;
    str_clear(&g->icl);
    str_printf(&g->icl, "%s ", str_c(&g->text));
    for (int64_t i = 0; i < links(g); i++) {
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
    int64_t inc = g->task->stack == S_ESSAY ? 500 : g->max_len < 4096 && !g->harness ? 5 : 10, size, tokens;
    struct size_rule r = {.inc = inc, .lower = smallest(g), .probe = inc, .max = g->max_len, .extra = g->task->gen_tokens + g->icl_tokens};
    TRY(gen_search(g, vt_text, &r, &size, e));
    for (int64_t i = 0; i < samples; i++) {
        gen_place(g, i);
        if (g->harness) { /* lengths are those of the text without the example, whose tokens are added */
            TRY(gen_fit(g, vt_text, &r, size, r.extra, &tokens, e));
            TRY(insert_icl(g, e));
        } else
            TRY(gen_fit(g, vt_full, &r, size, g->task->gen_tokens, &tokens, e));
        list_clear(&g->answers);
        for (int64_t k = 0; k < links(g); k++)
            TRY(list_add(&g->answers, g->names.v[k], strlen(g->names.v[k]), e));
        TRY(gen_record(g, i, tokens, out, e));
    }
    return 0;
}
