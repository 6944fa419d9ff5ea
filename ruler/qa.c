/* Question answering over documents (spec section 5): qa_1 asks SQuAD's questions, qa_2 HotpotQA's. */
#include <stdlib.h>
#include <string.h>

#include "ruler/gen.h"

static const char qa_body[] = "Answer the question based on the given documents. Only give me the answer and do not output any other "
                              "words.\n\nThe following are given "
                              "documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me the answer and do "
                              "not output any other words.\n\n"
                              "Question: {query}";
static const char qa_prefix[] = " Answer:";

static struct ruler_qa *source(struct gen *g)
{
    return &g->res->qa[g->task->dataset];
}

/* Places of documents that question q does not name, ascending; *n of them. */
static int64_t *others(const struct ruler_qa *qa, const struct question *q, size_t *n, struct err *e)
{
    size_t total = qa->docs.n;
    int64_t *v = malloc((total + 1) * sizeof *v);
    bool *named = calloc(total + 1, sizeof *named);
    *n = 0;
    if (v && named) {
        for (size_t i = 0; i < q->n_ctx; i++)
            named[q->ctx[i]] = true;
        for (size_t i = 0; i < q->n_more; i++)
            named[q->more[i]] = true;
        for (size_t i = 0; i < total; i++)
            if (!named[i])
                v[(*n)++] = (int64_t)i;
    } else {
        free(v);
        v = NULL;
        err_nomem(e, total * 9, "documents");
    }
    free(named);
    return v;
}

/* Fewer documents are asked for than there are: the question's own, the rest of its article, then others by lot. out[n + q->n_more]. */
static int pick_some(struct gen *g, const struct ruler_qa *qa, const struct question *q, int64_t n, int64_t *out, struct err *e)
{
    int64_t extra = n - (int64_t)q->n_ctx, more = (int64_t)q->n_more, k = 0;
    if (extra < 0)
        return GEN_RETRY;
    for (size_t i = 0; i < q->n_ctx; i++)
        out[k++] = q->ctx[i];
    int64_t *drawn = malloc((size_t)(extra + 1) * sizeof *drawn), *rest = NULL;
    int rc = drawn ? GEN_OK : err_nomem(e, (size_t)extra * sizeof *drawn, "drawing documents");
    if (!rc && extra > more) {
        size_t n_rest;
        rest = others(qa, q, &n_rest, e);
        if (!rest)
            rc = -1;
        else if (extra - more > (int64_t)n_rest)
            rc = GEN_RETRY;
        for (int64_t i = 0; !rc && i < more; i++)
            out[k++] = q->more[i];
        if (!rc && py_sample(&g->py, (int64_t)n_rest, extra - more, drawn))
            rc = err_nomem(e, 1024, "drawing documents");
        for (int64_t i = 0; !rc && i < extra - more; i++)
            out[k++] = rest[drawn[i]];
    } else if (!rc) {
        if (py_sample(&g->py, more, extra, drawn))
            rc = err_nomem(e, 1024, "drawing documents");
        for (int64_t i = 0; !rc && i < extra; i++)
            out[k++] = q->more[drawn[i]];
    }
    free(drawn);
    free(rest);
    return rc;
}

/* The documents of a prompt in their shuffled order; *n is set to their number. */
static int pick(struct gen *g, int64_t *n, int64_t **out, struct err *e)
{
    struct ruler_qa *qa = source(g);
    const struct question *q = &qa->q[g->question];
    int64_t total = (int64_t)qa->docs.n;
    bool all = *n >= total;
    if (all && g->harness)
        *n = total;
    size_t room = (size_t)*n + 1;
    int64_t *v = malloc(room * sizeof *v), *w = malloc(room * sizeof *w);
    int rc = v && w ? 0 : err_nomem(e, room * 16, "documents");
    if (!rc && all) {
        for (int64_t i = 0; i < *n; i++)
            v[i] = i % total;
    } else if (!rc)
        rc = pick_some(g, qa, q, *n, v, e);
    const int64_t *p = rc ? NULL : gen_perm(g, (size_t)*n, e);
    if (!rc && !p)
        rc = -1;
    for (int64_t i = 0; !rc && i < *n; i++)
        w[i] = qa->order[v[p[i]]];
    if (!rc && all && g->harness)
        memcpy(qa->order, w, (size_t)total * sizeof *w); /* the harness shuffles its only list of documents */
    free(v);
    if (rc)
        free(w);
    else
        *out = w;
    return rc;
}

static int qa_text(struct gen *g, int64_t n, struct err *e)
{
    struct ruler_qa *qa = source(g);
    const struct question *q = &qa->q[g->question];
    struct str ctx = STR_INIT, query = STR_INIT, templ = STR_INIT;
    int64_t *doc = NULL;
    int rc = pick(g, &n, &doc, e);
    if (rc)
        return rc;
    for (int64_t i = 0; i < n; i++)
        str_printf(&ctx, "%sDocument %" PRId64 ":\n%s", i ? "\n\n" : "", i + 1, qa->docs.v[doc[i]]);
    free(doc);
    str_puts(&query, q->query);
    str_printf(&templ, "%s%s%s%s", g->before, qa_body, g->after, g->harness ? "" : qa_prefix);
    str_clear(&g->text);
    struct fill f[] = {{"context", &ctx}, {"query", &query}};
    gen_fill(&g->text, str_c(&templ), f, ARRAY_LEN(f));
    list_clear(&g->answers);
    for (size_t i = 0; !rc && i < q->n_answers; i++)
        rc = list_add(&g->answers, q->answer[i], strlen(q->answer[i]), e);
    if (!rc && g->harness) {
        str_clear(&g->counted);
        str_printf(&g->counted, "%s ", str_c(&g->text));
        py_repr_list(&g->counted, q->answer, q->n_answers);
        str_clear(&g->gen_prefix);
        str_puts(&g->gen_prefix, qa_prefix + 1);
        rc = str_ok(&g->counted, "a prompt", e);
    }
    str_free(&ctx);
    str_free(&query);
    str_free(&templ);
    return rc ? rc : str_ok(&g->text, "a prompt", e);
}

/* The message for sample `sample`, which never fits: what the longest of all samples needs with its own documents alone. */
static int no_fit(struct gen *g, int64_t sample, int64_t samples, const struct size_rule *r, struct err *e)
{
    const struct ruler_qa *qa = source(g);
    int64_t worst = -1, most = 0, here = 0;
    if (e->code != E_CHECK)
        return -1;
    for (int64_t i = 0; i < samples; i++) {
        int64_t tokens;
        g->question = i + g->pre_samples;
        TRY(qa_text(g, (int64_t)qa->q[g->question].n_ctx, e));
        TRY(gen_count(g, str_c(&g->text), g->text.len, &tokens, e));
        tokens += r->extra;
        if (tokens > most) {
            most = tokens;
            worst = i;
        }
        if (i == sample)
            here = tokens;
    }
    if (most > r->max)
        return ERR(e, E_CHECK,
                   "task '%s' cannot fit in length %" PRId64 ": sample %" PRId64 " (question %" PRId64
                   ") with its %zu documents and the budget for "
                   "the answer needs %" PRId64 " tokens; use a length of at least %" PRId64,
                   g->task->name, g->max_len, worst, worst + g->pre_samples, qa->q[worst + g->pre_samples].n_ctx, most, most);
    return ERR(e, E_CHECK,
               "task '%s' cannot be made at length %" PRId64 ": sample %" PRId64 " (question %" PRId64
               ") fits with its %zu documents (%" PRId64 " tokens), but the steps of %" PRId64
               " go from more documents than fit to fewer than it has, where the reference never ends; use a "
               "longer length or flavour 'compact'",
               g->task->name, g->max_len, sample, sample + g->pre_samples, qa->q[sample + g->pre_samples].n_ctx, here, r->inc);
}

int qa_make(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    struct ruler_qa *qa = source(g);
    if (!qa->n_q)
        return ERR(e, E_INPUT, "task '%s': its question file was not given (%s)", g->task->name,
                   qa == g->res->qa ? "SQuAD's dev-v2.0.json" : "hotpot_dev_distractor_v1.json");
    if (g->pre_samples + samples > (int64_t)qa->n_q)
        return ERR(e, E_INPUT,
                   "task '%s': %" PRId64 " samples from question %" PRId64 " on, but the file holds %zu questions; ask for fewer samples",
                   g->task->name, samples, g->pre_samples, qa->n_q);
    int64_t size, tokens;
    struct size_rule r = {.inc = 10,
                          .lower = (int64_t)qa->q[0].n_ctx,
                          .probe = 10,
                          .limit = (int64_t)qa->docs.n,
                          .max = g->max_len,
                          .extra = g->task->gen_tokens};
    g->question = 0;
    TRY(gen_search(g, qa_text, &r, &size, e));
    for (int64_t i = 0; i < samples; i++) {
        g->question = i + g->pre_samples;
        r.lower = (int64_t)qa->q[g->question].n_ctx;
        if (gen_fit(g, qa_text, &r, size, r.extra, &tokens, e))
            return no_fit(g, i, samples, &r, e);
        TRY(gen_record(g, i, tokens, out, e));
    }
    return 0;
}
